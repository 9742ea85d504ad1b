"""Holding a request while no replica is routable (design §5.4, §6).

Place in the flow: match → **hold** → select. The only place where the router delays anybody. How long depends on whether
somebody will bring a replica: `queueTimeout` where one may come back, `activationTimeout` where one is being started
for the service's first request in a while, not at all where the service was scaled to zero by hand.
"""

from __future__ import annotations

import asyncio
from typing import Final

from evenkeel_contract.routerconfig import AtZero

from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.state import RouterState

RETRY_AFTER_S: Final = 1.0
NOBODY_COMES_S: Final = 10.0
"""To try again after where people, or an autoscaler that looks every quarter of a minute, decide."""


class ReplicaWait:
    """Holds requests in the waiting room."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._now = asyncio.get_running_loop().time

    async def hold(
        self, request_state: RequestState, order: AdmittedRequest, deadline_s: float
    ) -> float:
        """Wait until a replica is routable; raises `Refusal` where none is by the deadline.

        Returns the deadline of another wait: that of this one, later by what it waited for a service at zero.
        """
        state = self._state
        while True:
            if state.config.at_zero is AtZero.REFUSE:
                raise _nobody_comes()
            at_zero, began_s = state.activation.holds, self._now()
            until_s = self._activated_by_s(request_state, deadline_s) if at_zero else deadline_s
            came = await self._wait(order, until_s - began_s)
            if at_zero:
                waited_s = self._now() - began_s
                request_state.activation_s += waited_s
                deadline_s += waited_s
            if came:
                return deadline_s
            # The last replica may have left while it waited: then another one may be started for it.
            if at_zero or not state.activation.holds:
                raise self._in_vain(at_zero=at_zero)

    async def _wait(self, order: AdmittedRequest, left_s: float) -> bool:
        if left_s <= 0:
            return False
        try:
            await self._state.wait_queue.wait(
                client=order.client.identity,
                cost=self._state.totals.cost.input_cost(order.plan.dispatch.input_tokens),
                weight=order.client.weight,
                timeout_s=left_s,
            )
        except TimeoutError:
            return False
        return True

    def _activated_by_s(self, request_state: RequestState, deadline_s: float) -> float:
        limit_s = self._state.config.limits.activation_timeout_s
        return max(deadline_s, request_state.started_s + limit_s)

    def _in_vain(self, *, at_zero: bool) -> Refusal:
        limits, why = self._state.config.limits, self._state.fleet.why_unroutable()
        if at_zero:
            waited_s = limits.activation_timeout_s
            message = (
                f"The service stood at zero, and no replica was ready within {waited_s:g} s: {why}."
            )
        else:
            message = f"No replica was ready within {limits.queue_timeout_s:g} s: {why}."
        return Refusal(Outcome.UNAVAILABLE, message, code="no_replica", retry_after_s=RETRY_AFTER_S)


def _nobody_comes() -> Refusal:
    message = "The service is scaled to zero replicas, and no request starts one."
    return Refusal(
        Outcome.UNAVAILABLE, message, code="scaled_to_zero", retry_after_s=NOBODY_COMES_S
    )
