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

import asyncio
import logging
from collections import defaultdict
from collections.abc import Set as AbstractSet
from contextlib import suppress
from math import ceil
from typing import Final, NamedTuple

from evenkeel_router.api.identity import WHOLE, Paid
from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.request_state import RequestState

_log = logging.getLogger(__name__)
NOTICE_S: Final = 5.0
"""How long a replica may take to drop a request: SGLang checks every 4 s for clients that left."""


class TakenBack(NamedTuple):
    """The requests of one client that this router took back from one replica."""

    before: HeldWork
    share: float
    """This router's part of what the replica had of the client."""
    numbers: tuple[int, ...]
    """Of the bookings, oldest first."""

    def is_noticed(self, now: HeldWork) -> bool:
        """Whether the replica has certainly dropped the requests.

        Other routers take back theirs at about the same time. Where they have some, fewer that wait may be fewer of
        theirs, and only an empty queue is certain.
        """
        others = self.before.waiting > len(self.numbers) and self.share < 1
        left = 0.0 if others else self.before.waiting - len(self.numbers)
        return now.waiting <= max(0.0, left)

    def is_settled(self, now: HeldWork) -> bool:
        """Whether the reports also show those that had begun: each one admitted since counts as one that was broken off.

        An older replica does not report what it broke off; then the verdict is settled once it has nothing of the client.
        """
        over = now.waiting + now.running == 0
        return self.is_noticed(now) and (over or self._aborted(now) >= self._admitted(now))

    def verdict(self, now: HeldWork) -> RelocationVerdict:
        """The oldest ran, as many as were admitted since; the others did not. Before the replica dropped them, all may have run.

        Those that ran were broken off there, or finished before the replica noticed, and then no client received them.
        """
        taken, noticed = len(self.numbers), self.is_noticed(now)
        aborted = min(ceil(self.share * self._aborted(now)), taken)
        admitted = min(ceil(self.share * self._admitted(now)), taken) if noticed else taken
        began = max(aborted, admitted)
        # What other routers have there may have been admitted since, and finish for its client.
        finished = began - aborted if self.share == 1 and noticed else 0
        tokens = ceil(self.share * max(0, now.aborted_tokens - self.before.aborted_tokens))
        paid = dict.fromkeys(self.numbers[:finished], Paid(True, WHOLE))
        for place, number in enumerate(self.numbers[finished:began]):
            # Evenly, to the token.
            paid[number] = Paid(True, (tokens + place) // (began - finished))
        return RelocationVerdict(paid, frozenset(self.numbers[began:]))

    def _admitted(self, now: HeldWork) -> float:
        return max(0.0, now.admitted - self.before.admitted)

    def _aborted(self, now: HeldWork) -> int:
        return max(0, now.aborted - self.before.aborted)


class PendingVerdict:
    """The requests that were taken back of one client at one replica, until a report shows which had begun."""

    def __init__(self, taken: TakenBack) -> None:
        self._taken = taken
        self._verdict: RelocationVerdict | None = None
        """By the last report; None: there was none yet."""
        self._noticed = asyncio.Event()

    def reported(self, held: HeldWork) -> bool:
        """A report shows what the replica has of the client. Whether it has dropped what was taken back."""
        self._verdict = self._taken.verdict(held)
        settled = self._taken.is_settled(held)
        if settled:
            self.end()
        return settled

    def end(self) -> None:
        """No more reports follow."""
        self._noticed.set()

    async def verdict(self) -> RelocationVerdict | None:
        """Which requests had begun; None if no report showed it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                await self._noticed.wait()
        return self._verdict


class Relocation:
    """Relocates what waits."""

    def __init__(
        self, fleet: Fleet, accounting: Accounting, active_requests: AbstractSet[RequestState]
    ) -> None:
        self._fleet = fleet
        self._accounting = accounting
        self._active_requests = active_requests
        self._pending: dict[str, dict[str, PendingVerdict]] = {}
        """By incarnation and client. No empty ones."""

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
        unanswered: dict[str, list[tuple[int, Attempt]]] = defaultdict(list)
        for request_state in self._active_requests:
            attempt = request_state.attempt
            if attempt is None or request_state.first_byte_s is not None or attempt.taken_back:
                continue
            booking = attempt.open_booking
            if booking is not None and booking.incarnation == incarnation:
                unanswered[booking.client.identity].append((booking.number, attempt))
        relocated = 0
        for client, theirs in unanswered.items():
            if client not in self._pending.get(incarnation, ()):
                theirs.sort(key=lambda one: one[0])
                relocated += self._take_back_from(incarnation, client, theirs)
        if relocated:
            _log.info("%d requests that waited at a draining replica are relocated", relocated)

    def _take_back_from(
        self, incarnation: str, client: str, unanswered: list[tuple[int, Attempt]]
    ) -> int:
        """Take back those of a client's unanswered attempts (oldest first) that only wait; returns their number."""
        accounting, routable = self._accounting, self._fleet.routable
        held = accounting.held(incarnation, client)
        open_here = accounting.open_at(incarnation, client)
        waiting = held.waiting_here(open_here, len(unanswered))
        if not waiting:
            return 0
        taken = [
            (number, attempt)
            for number, attempt in unanswered[-waiting:]
            if routable & ~attempt.tried and attempt.exchange and attempt.exchange.break_off()
        ]
        numbers = tuple(number for number, _ in taken)
        pending = PendingVerdict(TakenBack(held, held.share(open_here), numbers))
        for _, attempt in taken:
            attempt.taken_back = pending
        if taken:
            self._pending.setdefault(incarnation, {})[client] = pending
        return len(taken)
