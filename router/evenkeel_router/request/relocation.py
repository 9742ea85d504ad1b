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
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from evenkeel_fairshare.fleet.contract import ReplicaSet, replica_set, slots_of

from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.ledger.held_work import TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict

_log = logging.getLogger(__name__)


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
        elif incarnation not in self._pending and (idle := self._idle()):
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
        return replica_set(
            [
                member.slot
                for member in fleet
                if member.routable
                and member.slot is not None
                and not fleet.outstanding[member.slot]
                and accounting.is_idle(accounting.incarnation(member.name))
            ]
        )

    def _take_back(self, incarnation: str) -> None:
        """Take back all requests that only wait."""
        relocated = 0
        for client, waiting in self._waiting(incarnation, self._fleet.routable).items():
            relocated += self._break_off(incarnation, client, waiting)
        if relocated:
            _log.info("%d requests that waited at a draining replica are relocated", relocated)

    def _fill(self, incarnation: str, idle: ReplicaSet) -> None:
        """Take back one request that has waited too long for an idle replica."""
        policy, now_s = self._fleet.policy, self._now()
        found: list[tuple[float, str, int, Attempt]] = []
        for client, waiting in self._waiting(incarnation, idle).items():
            # The youngest: of all that wait by the report it is the least likely to have begun since.
            for number, attempt in reversed(waiting):
                slots = slots_of(ReplicaSet(idle & ~attempt.tried))
                dispatch, wait_s = attempt.ticket.match.dispatch, now_s - attempt.dispatched_s
                at = attempt.ticket.slot
                fit = [slot for slot in slots if wait_s > policy.longest_wait_s(dispatch, at, slot)]
                if fit:
                    attempt.invited = replica_set(fit)
                    found.append((wait_s, client, number, attempt))
                    break
        if found:
            _, client, number, attempt = max(found, key=lambda one: one[0])
            self._break_off(incarnation, client, [(number, attempt)])

    def _waiting(
        self, incarnation: str, others: ReplicaSet
    ) -> dict[str, list[tuple[int, Attempt]]]:
        """Client → its unanswered attempts that only wait by the last report and may go to one of `others`, oldest first.

        Without the clients whose requests were taken back and have no verdict yet.
        """
        unanswered: dict[str, list[tuple[int, Attempt]]] = defaultdict(list)
        for attempt in self._unanswered:
            booking = None if attempt.taken_back else attempt.open_booking
            if booking is not None and booking.incarnation == incarnation:
                unanswered[booking.client.identity].append((booking.number, attempt))
        accounting, found = self._accounting, {}
        for client, theirs in unanswered.items():
            if client not in self._pending.get(incarnation, ()):
                theirs.sort(key=lambda one: one[0])
                held = accounting.held(incarnation, client)
                count = held.waiting_here(accounting.open_at(incarnation, client), len(theirs))
                last = theirs[len(theirs) - count :]
                found[client] = [one for one in last if others & ~one[1].tried]
        return found

    def _break_off(self, incarnation: str, client: str, waiting: list[tuple[int, Attempt]]) -> int:
        """Take these attempts of a client back; returns their number."""
        accounting = self._accounting
        held = accounting.held(incarnation, client)
        open_here = accounting.open_at(incarnation, client)
        taken = [one for one in waiting if one[1].exchange and one[1].exchange.break_off()]
        numbers = tuple(number for number, _ in taken)
        pending = PendingVerdict(TakenBack(held, held.share(open_here), numbers))
        for _, attempt in taken:
            attempt.taken_back = pending
        if taken:
            self._pending.setdefault(incarnation, {})[client] = pending
        return len(taken)
