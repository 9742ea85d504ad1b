"""Relocating requests that wait at a draining replica (docs/design/0003; R7, R11).

    drain → next report → taken back → next report → what had begun → forwarded to another replica

A draining replica would serve the rest of its queue by the number of requests that each client has there, whatever the weights,
and this adds up over drains. So with every report of a draining replica, the router takes back the requests that have not begun
by that report. It does so only if another replica is routable at which the request was not tried. Requests that
run are finished.

No report shows for certain which requests have not begun. So a request that was taken back waits for another report,
which shows how many may have begun and the output that they were charged for. Those count as charged there, and go on
with the flag of R11 and that output.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Set as AbstractSet

from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict

_log = logging.getLogger(__name__)


class Relocation:
    """Relocates what waits."""

    def __init__(
        self, fleet: Fleet, accounting: Accounting, unanswered: AbstractSet[Attempt]
    ) -> None:
        """`unanswered`: the attempts whose client was sent nothing yet."""
        self._fleet = fleet
        self._accounting = accounting
        self._unanswered = unanswered
        self._pending: dict[str, dict[str, PendingVerdict]] = {}
        """Incarnation → client → the verdict that its requests wait for. No empty ones."""

    def reported(self, incarnation: str) -> None:
        """A report of an incarnation is in the ledger."""
        self._settle(incarnation)
        accounting = self._accounting
        knows = accounting.is_draining(incarnation) and not accounting.is_incomplete(incarnation)
        if knows and self._fleet.routable:
            self._take_back(incarnation)

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

    def _take_back(self, incarnation: str) -> None:
        unanswered: dict[str, list[tuple[Booking, Attempt]]] = defaultdict(list)
        for attempt in self._unanswered:
            booking = None if attempt.taken_back else attempt.open_booking
            if booking is not None and booking.incarnation == incarnation:
                unanswered[booking.client.identity].append((booking, attempt))
        relocated = 0
        for client, theirs in unanswered.items():
            if client not in self._pending.get(incarnation, ()):
                theirs.sort(key=lambda one: one[0].number)
                relocated += self._take_back_from(incarnation, client, theirs)
        if relocated:
            _log.info("%d requests that waited at a draining replica are relocated", relocated)

    def _take_back_from(
        self, incarnation: str, client: str, unanswered: list[tuple[Booking, Attempt]]
    ) -> int:
        """Take back those of a client's unanswered attempts (oldest first) that only wait; returns their number.

        An attempt of which a sequence has begun stays.
        """
        accounting, routable = self._accounting, self._fleet.routable
        held = accounting.held(incarnation, client)
        open_here = accounting.open_at(incarnation, client)
        waiting = held.waiting_here(open_here, sum(one.sequences for one, _ in unanswered))
        taken: list[tuple[Booking, Attempt]] = []
        for booking, attempt in reversed(unanswered):
            waiting -= booking.sequences
            if waiting < 0:
                break
            if routable & ~attempt.tried and attempt.exchange and attempt.exchange.break_off():
                taken.append((booking, attempt))
        if not taken:
            return 0
        numbers = tuple(number for booking, _ in reversed(taken) for number in booking.numbers)
        pending = PendingVerdict(TakenBack(held, held.share(open_here), numbers))
        for _, attempt in taken:
            attempt.taken_back = pending
        self._pending.setdefault(incarnation, {})[client] = pending
        return len(taken)
