"""Holding a request while no replica is routable (DESIGN section 5, step 4; section 6).

How long depends on what may bring a replica: `queueTimeout` where one may return, `activationTimeout` where the
service's first request in a while starts one, not at all where people scaled the service to zero.
"""

from __future__ import annotations

import asyncio

from evenkeel_contract.routerconfig import AtZero

from evenkeel_router.api.errors import Refusal
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.request import own_answers
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.settings import Settings


class ReplicaWait:
    """Holds requests in the wait queue."""

    def __init__(self, settings: Settings, replicas: Replicas, accounting: Accounting) -> None:
        self._settings = settings
        self._replicas = replicas
        self._accounting = accounting
        self._now = asyncio.get_running_loop().time

    async def wait(
        self, request_state: RequestState, admitted: AdmittedRequest, deadline_s: float
    ) -> float:
        """Wait until a replica is routable; raises `Refusal` where none is by the deadline.

        Returns the deadline of a next wait: the same, later by the time that it waited for a service at zero.
        """
        activation = self._replicas.activation
        while True:
            if self._settings.config.at_zero is AtZero.REFUSE:
                raise own_answers.scaled_to_zero()
            at_zero, began_s = activation.holds, self._now()
            until_s = self._activated_by_s(request_state, deadline_s) if at_zero else deadline_s
            request_state.holding_since_s = began_s
            try:
                came = await self._wait(admitted, until_s - began_s)
            finally:
                waited_s = self._now() - began_s
                request_state.held_s += waited_s
                request_state.holding_since_s = 0.0
            if at_zero:
                request_state.activation_s += waited_s
                deadline_s += waited_s
            if came:
                return deadline_s
            # The last replica may have left while it waited: then another one may be started for it.
            if at_zero or not activation.holds:
                raise self._in_vain(at_zero=at_zero)

    async def _wait(self, admitted: AdmittedRequest, left_s: float) -> bool:
        if left_s <= 0:
            return False
        try:
            await self._replicas.wait_queue.wait(
                client=admitted.client.identity,
                cost=self._accounting.cost.input_cost(admitted.match.dispatch.input_tokens),
                weight=admitted.client.weight,
                timeout_s=left_s,
            )
        except TimeoutError:
            return False
        return True

    def _activated_by_s(self, request_state: RequestState, deadline_s: float) -> float:
        limit_s = self._settings.config.limits.activation_timeout_s
        return max(deadline_s, request_state.started_s + limit_s)

    def _in_vain(self, *, at_zero: bool) -> Refusal:
        limits = self._settings.config.limits
        waited_s = limits.activation_timeout_s if at_zero else limits.queue_timeout_s
        why = self._replicas.fleet.why_unroutable()
        return own_answers.no_replica(why, waited_s, at_zero=at_zero)
