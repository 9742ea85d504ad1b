"""Deficit round robin for tokens: each client in its turn spends a quantum (VTC paper, App. C.2).

Clients form a ring in order of joining. A client without credit gets a quantum at the begin of its turn. It is served while
it has credit. Output is charged as it is produced, so a client may need many turns until it has credit again. There is one
level: a weight is the tenant's weight times the client's.

The policy does not walk the ring. A charge determines how many turns a client still needs, so the next client is the least
(round, place in the ring): O(log n), however small the quantum.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    Arrival,
    ClientDeficits,
    Request,
)
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.metered import ClientAccount, MeteredPolicy


@dataclass(slots=True, eq=False)
class Seat(ClientAccount):
    """A client's place in the ring (`tie`); its `rank` is the round in which it is served next."""

    step: float = 0.0
    """Weighted tokens per turn: the quantum times the weight."""
    balance: float = 0.0
    """C_i after its turn in round `turned`, weighted tokens, without later turns."""
    turned: int = 0

    @property
    def quanta_wanted(self) -> int:
        """Turns in which it gets a quantum: until C_i > 0, or until C_i >= 0 without a waiting request."""
        if self.waiting:
            return max(0, int(-self.balance // self.step) + 1)
        return max(0, -int(self.balance // self.step))


class Drr(MeteredPolicy[Seat]):
    """App. C.2. Input is charged in full, cached or not, as under VTC.

    An idle client keeps its debt, which later turns pay off, and loses its credit. Without debt it leaves the ring. Beyond
    `rules.remembered` idle clients with debts the smaller half of the debts is cancelled.
    """

    name: ClassVar[str] = "DRR"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, *, rules: DeficitRules | None = None, cost: Cost | None = None) -> None:
        super().__init__(cost)
        self._rules = rules or DeficitRules()
        self._away: dict[str, Seat] = {}
        """The idle clients in the ring, which have debts."""
        self._joined = 0
        self._round = 0
        self._place = 0
        """The place whose turn it is: all places up to here had their turn in this round."""

    def arrive(self, request: Request, now_s: float) -> Arrival:
        seat = self._sit(request.client)
        self._settle(seat)
        seat.step = self._rules.first_quantum * request.tenant_weight * request.client_weight
        self._enqueue(request, seat)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Ends at the first request that does not fit; the next pass goes on with the same client's turn."""
        while (seat := self._queued.find()) is not None:
            self._round, self._place = int(seat.rank), seat.tie
            request = next(iter(seat.queue))
            if (yield request) is not AdmissionResult.ADMITTED:
                return
            self._admit(request, seat)

    def leave(self, request: Request, now_s: float) -> None:
        super().leave(request, now_s)
        seat = self._accounts[request.client]
        if seat.is_idle:
            self._go(request.client, seat)

    def clients(self) -> Mapping[str, ClientDeficits]:
        """Every client in the ring."""
        states = {}
        for client, seat in self._accounts.items():
            self._settle(seat)
            if not seat.is_idle or seat.balance < 0:
                states[client] = ClientDeficits(seat.balance, 0.0, seat.waiting)
        return states

    def _sit(self, client: str) -> Seat:
        """The client's seat; a new one at the end of the ring if it has none or its debt is paid off."""
        seat = self._accounts.get(client)
        if self._away.pop(client, None) is not None and seat is not None:
            self._settle(seat)
            if seat.balance >= 0:
                seat = None
        if seat is None:
            self._joined += 1
            seat = Seat(tie=self._joined, turned=self._round - 1)
            self._accounts[client] = seat
        return seat

    def _go(self, client: str, seat: Seat) -> None:
        self._settle(seat)
        if seat.balance >= 0:
            del self._accounts[client]
            return
        self._away[client] = seat
        if len(self._away) > self._rules.remembered:
            self._forget()

    def _forget(self) -> None:
        """Remove half of the idle clients, the smallest debts first, among equals the longest idle."""
        for seat in self._away.values():
            self._settle(seat)
        by_debt = sorted(self._away, key=lambda client: self._away[client].balance, reverse=True)
        for client in by_debt[: len(by_debt) // 2]:
            del self._away[client], self._accounts[client]

    def _settle(self, seat: Seat) -> None:
        """Update the balance to the current turn; needed before any change of the quantum."""
        turned = self._round if seat.tie <= self._place else self._round - 1
        if turned > seat.turned:
            seat.balance += seat.step * min(turned - seat.turned, seat.quanta_wanted)
            seat.turned = turned

    def _charge(self, account: Seat, cost: float) -> None:
        self._settle(account)
        account.balance -= cost
        self._rank(account)

    def _rank(self, seat: Seat) -> None:
        """A client with credit is served in its current turn, or in its next."""
        its_turn = seat.tie == self._place
        seat.rank = seat.turned + (seat.quanta_wanted or (0 if its_turn else 1))

    def _enqueue(self, request: Request, account: Seat) -> None:
        self._settle(account)
        account.queue[request] = None
        account.waiting += 1
        self._waiting += 1
        self._rank(account)
        self._queued.add(account)

    def _dequeue(self, request: Request, account: Seat) -> None:
        self._settle(account)
        del account.queue[request]
        account.waiting -= 1
        self._waiting -= 1
