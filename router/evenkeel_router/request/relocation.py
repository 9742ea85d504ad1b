"""Relocating requests that wait at a draining replica, or while another one is idle (docs/design/0003; R2, R7, R11).

    drain → next report → taken back → next report → what had begun → forwarded to another replica

A draining replica would serve the rest of its queue by the number of requests that each client has there, whatever the weights,
and this adds up over drains. So with every report of a draining replica, the router takes back the requests that have not begun
by that report. It does so only if another replica is routable at which the request was not tried. Requests that
run are finished.

With every other report, the router takes back one request if a replica is idle: a request that has waited for longer than the idle
replica takes for the part of its prefix that it lacks. It is sent to the idle replica.

A replica that is new, or was suspect, gets few requests until it has answered (R20). What comes meanwhile queues at the others. So
for `CATCH_UP_S` after its first answer the router takes back, with each report of another replica, as many of the requests that have
waited too long as bring both to the mean.

No report shows for certain which requests have not begun. So a request that was taken back waits for another report,
which shows how many may have begun and the output that they were charged for. Those count as charged there, and go on
with the flag of R11 and that output.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet, replica_set, slots_of

from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict

_log = logging.getLogger(__name__)

CATCH_UP_S: Final = 10.0
"""Time for which a replica that is trusted again gets requests that wait elsewhere."""


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
        self._catching_up: dict[int, float] = {}
        """Slot of a replica that is trusted since a short while → when it need not catch up any more."""

    def reported(self, incarnation: str) -> None:
        """A report of an incarnation is in the ledger."""
        if incarnation in self._pending:
            self._settle(incarnation)
        accounting, behind = self._accounting, self._behind()
        if accounting.is_incomplete(incarnation) or not self._fleet.routable:
            return
        if accounting.is_draining(incarnation):
            self._take_back(incarnation)
        elif incarnation not in self._pending and accounting.may_wait_at(incarnation):
            if behind:
                self._level(incarnation, behind)
            elif idle := self._idle():
                self._fill(incarnation, idle)

    def forget(self, incarnation: str) -> None:
        """No report of it will come any more."""
        for pending in self._pending.pop(incarnation, {}).values():
            pending.end()

    def _settle(self, incarnation: str) -> None:
        pending = self._pending.pop(incarnation)
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

    def _behind(self) -> ReplicaSet:
        """Routable replicas that are to catch up."""
        fleet = self._fleet
        if not fleet.returned and not self._catching_up:
            return EMPTY
        now_s = self._now()
        for slot in slots_of(fleet.returned):
            self._catching_up[slot] = now_s + CATCH_UP_S
        fleet.returned = EMPTY
        for slot, until_s in list(self._catching_up.items()):
            if until_s <= now_s:
                del self._catching_up[slot]
        return ReplicaSet(replica_set(list(self._catching_up)) & fleet.routable)

    def _level(self, incarnation: str, behind: ReplicaSet) -> None:
        """Take back what brings an incarnation and the replicas `behind` to the mean, from each client in proportion."""
        fleet = self._fleet
        numbers = {slot: fleet.outstanding[slot] for slot in slots_of(fleet.routable)}
        mean = sum(numbers.values()) / len(numbers)
        missing = sum(max(0.0, mean - numbers[slot]) for slot in slots_of(behind))
        surplus = {slot: number - mean for slot, number in numbers.items() if number > mean}
        can = self._overdue(incarnation, behind)
        waiting = sum(_sequences(found.attempts) for found in can.values())
        relocated, due = 0, 0.0
        for client, found in can.items():
            excess = surplus.get(found.attempts[0].ticket.slot)
            if excess is None:
                break  # all are at the same replica
            part = min(1.0, min(1.0, missing / sum(surplus.values())) * excess / waiting)
            # What one client is short of a whole request goes over to the next: many have a single one.
            due += part * _sequences(found.attempts)
            taken: list[Attempt] = []
            for attempt in found.attempts:
                sequences = _sequences([attempt])
                if sequences <= due + 1e-9:
                    due -= sequences
                    attempt.invited = behind
                    taken.insert(0, attempt)
            if taken:
                relocated += self._break_off(incarnation, client, taken, found.open_here)
        if relocated:
            _log.info("%d requests that waited are relocated to replicas that had few", relocated)

    def _overdue(self, incarnation: str, others: ReplicaSet) -> dict[str, _Waiting]:
        """What has waited there for longer than one of `others` takes for what it lacks of the prefix; the youngest first."""
        now_s, overdue = self._now(), {}
        for client, found in self._waiting(incarnation, others).items():
            attempts = [
                attempt
                for attempt in reversed(found.attempts)
                if self._fit(attempt, others, now_s - attempt.dispatched_s)
            ]
            if attempts:
                overdue[client] = _Waiting(attempts, found.open_here)
        return overdue

    def _fit(self, attempt: Attempt, others: ReplicaSet, wait_s: float) -> list[int]:
        """Slots of `others` to which a request that has waited for so long should rather go."""
        avoided = attempt.tried | self._fleet.avoided_by(attempt.ticket.match.dispatch.client)
        dispatch, at = attempt.ticket.match.dispatch, attempt.ticket.slot
        longest_wait_s = self._fleet.policy.longest_wait_s
        slots = slots_of(ReplicaSet(others & ~avoided))
        return [slot for slot in slots if wait_s > longest_wait_s(dispatch, at, slot)]

    def _take_back(self, incarnation: str) -> None:
        """Take back all requests that only wait."""
        relocated = 0
        for client, found in self._waiting(incarnation, self._fleet.routable).items():
            relocated += self._break_off(incarnation, client, found.attempts, found.open_here)
        if relocated:
            _log.info("%d requests that waited at a draining replica are relocated", relocated)

    def _fill(self, incarnation: str, idle: ReplicaSet) -> None:
        """Take back one request that has waited too long for an idle replica: of those the one that waited longest.

        Of each client the youngest: of all that wait by the report it is the least likely to have begun since.
        """
        overdue = self._overdue(incarnation, idle)
        if overdue:
            client, found = min(overdue.items(), key=lambda one: one[1].attempts[0].dispatched_s)
            attempt = found.attempts[0]
            wait_s = self._now() - attempt.dispatched_s
            attempt.invited = replica_set(self._fit(attempt, idle, wait_s))
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
        """Take these attempts of a client back, oldest first; returns their number."""
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


def _sequences(attempts: Sequence[Attempt]) -> int:
    return sum(one.ticket.match.dispatch.sequences for one in attempts)
