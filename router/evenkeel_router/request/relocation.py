"""Relocating requests that wait at a draining replica, or while another one is idle (docs/design/0003; R2, R7, R11).

    drain → next report → taken back → next report → what had begun → forwarded to another replica

A draining replica would serve the rest of its queue by the number of requests that each client has there, whatever the weights,
and this adds up over drains. So with every report of a draining replica, the router takes back the requests that have not begun
by that report. It does so only if another replica is routable at which the request was not tried. Requests that
run are finished.

With every other report, the router takes back one request if a replica is idle: a request that has waited for longer than the idle
replica takes for the part of its prefix that it lacks. It is sent to the idle replica.

No report shows for certain which requests have not begun. So a request that was taken back waits for another report,
which shows how many may have begun and the output that they were charged for. Those count as charged there, and go on
with the flag of R11 and that output.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from evenkeel_fairshare.fleet.contract import ReplicaSet, replica_set, slots_of

from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """What a client has waiting at one replica."""

    attempts: list[Attempt]
    """Unanswered attempts that only wait, oldest first."""
    open_here: int
    """All requests of the client that this router has open there."""


class Relocation:
    """Relocates what waits."""

    def __init__(
        self,
        fleet: Fleet,
        accounting: Accounting,
        unanswered: AbstractSet[Attempt],
        now: Callable[[], float],
    ) -> None:
        """`unanswered`: the attempts whose client was sent nothing yet. `now`: the loop's time."""
        self._fleet = fleet
        self._accounting = accounting
        self._unanswered = unanswered
        self._now = now
        self._pending: dict[str, dict[str, PendingVerdict]] = {}
        """Incarnation → client → the verdict that its requests wait for. No empty ones."""

    def reported(self, incarnation: str) -> None:
        """A report of an incarnation is in the ledger."""
        self._settle(incarnation)
        accounting = self._accounting
        if accounting.is_incomplete(incarnation) or not self._fleet.routable:
            return
        if accounting.is_draining(incarnation):
            self._take_back(incarnation)
        elif (
            incarnation not in self._pending
            and accounting.may_wait_at(incarnation)
            and (idle := self._idle())
        ):
            self._fill(incarnation, idle)

    def forget(self, incarnation: str) -> None:
        """No report of it will come any more."""
        for pending in self._pending.pop(incarnation, {}).values():
            pending.end()

    def _settle(self, incarnation: str) -> None:
        pending = self._pending.pop(incarnation, {})
        for client, verdict in list(pending.items()):
            if verdict.reported(self._accounting.held(incarnation, client)):
                del pending[client]
        if pending:
            self._pending[incarnation] = pending

    def _idle(self) -> ReplicaSet:
        """Routable replicas without a request, by this router's count and by their last reports."""
        fleet, accounting = self._fleet, self._accounting
        vacant = map(fleet.slots.__getitem__, slots_of(ReplicaSet(fleet.routable & fleet.vacant)))
        return replica_set(
            [
                member.slot
                for member in vacant
                if member is not None
                and member.slot is not None
                and accounting.is_idle(accounting.incarnation(member.name))
            ]
        )

    def _take_back(self, incarnation: str) -> None:
        """Take back all requests that only wait."""
        relocated = 0
        for client, found in self._waiting(incarnation, self._fleet.routable).items():
            relocated += self._break_off(incarnation, client, found.attempts, found.open_here)
        if relocated:
            _log.info("%d requests that waited at a draining replica are relocated", relocated)

    def _fill(self, incarnation: str, idle: ReplicaSet) -> None:
        """Take back one request that has waited too long for an idle replica: of those the one that waited longest."""
        policy, now_s = self._fleet.policy, self._now()
        longest: tuple[float, str, _Waiting, Attempt, ReplicaSet] | None = None
        for client, found in self._waiting(incarnation, idle).items():
            # The youngest: of all that wait by the report it is the least likely to have begun since.
            for attempt in reversed(found.attempts):
                avoided = attempt.tried | self._fleet.avoided_by(client)
                slots = slots_of(ReplicaSet(idle & ~avoided))
                dispatch, wait_s = attempt.ticket.match.dispatch, now_s - attempt.dispatched_s
                at = attempt.ticket.slot
                fit = [slot for slot in slots if wait_s > policy.longest_wait_s(dispatch, at, slot)]
                if fit:
                    if longest is None or wait_s > longest[0]:
                        longest = wait_s, client, found, attempt, replica_set(fit)
                    break
        if longest is not None:
            _, client, found, attempt, attempt.invited = longest
            self._break_off(incarnation, client, [attempt], found.open_here)

    def _waiting(self, incarnation: str, others: ReplicaSet) -> dict[str, _Waiting]:
        """What only waits at an incarnation by its last report and may go to one of `others`, by client.

        Without the clients whose requests were taken back and have no verdict yet.
        """
        unanswered: dict[str, list[tuple[Booking, Attempt]]] = defaultdict(list)
        taken: Counter[str] = Counter()
        for attempt in self._unanswered:
            booking = attempt.booking
            if booking is not None and booking.incarnation == incarnation:
                if attempt.taken_back is not None:
                    taken[booking.client.identity] += booking.sequences
                elif attempt.open_booking is not None:
                    unanswered[booking.client.identity].append((booking, attempt))
        accounting, found = self._accounting, {}
        for client, theirs in unanswered.items():
            if client not in self._pending.get(incarnation, ()):
                theirs.sort(key=lambda one: one[0].number)
                # The booking of what was taken back is closed a little after its verdict.
                open_here = accounting.open_at(incarnation, client) - taken[client]
                held = accounting.held(incarnation, client)
                count = held.waiting_here(open_here, sum(one.sequences for one, _ in theirs))
                last: list[Attempt] = []
                for booking, attempt in reversed(theirs):
                    count -= booking.sequences
                    if count < 0:  # a sequence of this attempt has begun
                        break
                    last.append(attempt)
                can = [one for one in reversed(last) if others & ~one.tried]
                found[client] = _Waiting(can, open_here)
        return found

    def _break_off(
        self, incarnation: str, client: str, waiting: list[Attempt], open_here: int
    ) -> int:
        """Take these attempts of a client back; returns their number."""
        taken = [one for one in waiting if one.exchange and one.exchange.break_off()]
        numbers = tuple(
            number for one in taken if one.booking is not None for number in one.booking.numbers
        )
        held = self._accounting.held(incarnation, client)
        pending = PendingVerdict(TakenBack(held, held.share(open_here), numbers))
        for attempt in taken:
            attempt.taken_back = pending
        self._pending.setdefault(incarnation, {})[client] = pending
        return len(taken)
