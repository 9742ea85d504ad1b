"""Whom a free place calls: requests that wait at other gates of this router, and at other routers (R12).

A request that is called arrives at the gate of the free place as a guest: a copy of it, with the prefix that this replica has cached and
the seed of its client here (R5). The policy decides between the guests and the requests that wait there (`gates`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.gate.turns import Foreign, Place, Turn
from evenkeel_router.gate.waiters import GUESTS, Waiters
from evenkeel_router.gate.window import GatedRequest
from evenkeel_router.ledger.service_ledger import ServiceLedger

OLDEST: Final = 4
"""Requests of a client of which a free place may call one: the others are younger."""

Guests: TypeAlias = dict[GatedRequest, Turn | Foreign]
"""Guest → what it stands for."""


class Calls:
    """All that may be called."""

    def __init__(
        self, replicas: Replicas, service_ledger: ServiceLedger, numbers: Iterator[int]
    ) -> None:
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._numbers = numbers
        self.waiting: Waiters[Turn] = Waiters()
        self.foreign: Waiters[Foreign] = Waiters()
        """Clients that wait at other routers (`lending`)."""

    def guests(self, place: Place, now_s: float, *, lends: bool) -> Guests:
        """The guests that have arrived at a gate. `lends`: those of other routers, too."""
        guests: Guests = {}
        if not (self.waiting or self.foreign) or not place.gate.calls:
            return guests
        if self._replicas.fleet.routable >> place.slot & 1:
            self._call(place, guests, now_s)
            if lends:
                self._call_others(place, guests, now_s)
        return guests

    def _call(self, place: Place, guests: dict[GatedRequest, Turn | Foreign], now_s: float) -> None:
        """Let clients that wait at other gates arrive as guests."""
        gate = place.gate
        for client in self.waiting.clients():
            if client not in gate.clients and (found := self.guest(place, client, now_s)):
                guest, turn = found
                if not gate.would_send(guest):
                    continue
                gate.arrive(guest, now_s)
                guests[guest] = turn
                if len(guests) == GUESTS:
                    return

    def _call_others(
        self, place: Place, guests: dict[GatedRequest, Turn | Foreign], now_s: float
    ) -> None:
        """Let clients that wait at other routers arrive as guests."""
        gate, most = place.gate, len(guests) + GUESTS
        for client in self.foreign.clients():
            if client in gate.clients:
                continue
            guest, foreign = self._foreign(client, now_s)
            if gate.would_send(guest):
                gate.arrive(guest, now_s)
                guests[guest] = foreign
                if len(guests) == most:
                    return

    def next_foreign(self, place: Place, now_s: float) -> tuple[GatedRequest, Foreign] | None:
        """The next client that waits at another router, for a place that is not this router's."""
        if self._replicas.fleet.routable >> place.slot & 1:
            for client in self.foreign.clients(1):
                return self._foreign(client, now_s)
        return None

    def _foreign(self, client: str, now_s: float) -> tuple[GatedRequest, Foreign]:
        weights, tenant = self._service_ledger.weights, tenant_of(client)
        foreign = next(self.foreign.oldest(client))
        input_tokens, max_output_tokens = foreign.tokens
        guest = GatedRequest(
            id=str(next(self._numbers)),
            client=client,
            tenant=tenant,
            arrival_s=now_s,
            input_tokens=input_tokens,
            max_output_tokens=max_output_tokens,
            client_weight=weights.client(client),
            tenant_weight=weights.tenant(tenant),
            lent=True,
        )
        return guest, foreign

    def guest(self, place: Place, client: str, now_s: float) -> tuple[GatedRequest, Turn] | None:
        """The oldest request of a client that has waited longer than its cache is worth, as it would wait at another gate."""
        for turn in islice(self.waiting.oldest(client), OLDEST):
            request = turn.request
            if not turn.waits or turn.ticket is None or turn.client is None:
                continue  # its client has just left
            if now_s - request.arrival_s < turn.place.gate.worth_s(request):
                continue
            seed = self._service_ledger.accounting.seed(turn.client, place.incarnation, now_s=now_s)
            guest = replace(
                request,
                id=str(next(self._numbers)),
                seed=seed.client,
                tenant_seed=seed.tenant,
                matched_tokens=self._replicas.fleet.predicted(turn.ticket.match, place.slot),
            )
            return guest, turn
        return None
