"""Replicas that give no token while requests wait there, or fleets that give none: now, and in the last minute.

A token shows in two ways: the router passed content on (`Intake.content_s`), or the replica's reports show that it served something. Where
a replica makes no reports, a whole answer shows nothing until it is there: then only streams count, or `STUCK_S`. A silence lasts although clients leave and others
come: the requests that were left without a token count as long as others follow them (`request.abandoned`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from evenkeel_fairshare.verdict import NO_SILENCE, SILENT_S, STUCK_S, Silence

from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.endings import MINUTE_S
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.request_state import RequestState

SLOWEST: Final = 2000.0
"""Input tokens per second of a slow replica: for a long prompt it may compute for so long without a token or a change in its report."""
FLEET: Final = ""
"""The key of all replicas together, and requests that no replica takes."""


class Episode(NamedTuple):
    """A silence."""

    replica: str
    """Name of the replica, or `FLEET`."""
    begin_s: float
    seen_s: float
    """When it was last seen."""


class _Waiting(NamedTuple):
    """Requests without a token at one replica, or anywhere."""

    since_s: float
    limit_s: float
    """Time from which this is a silence."""


class Silences:
    """The silences of one router's replicas. Someone looks every two seconds at least (`sampler`)."""

    def __init__(self, replicas: Replicas, service_ledger: ServiceLedger, intake: Intake) -> None:
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._intake = intake
        self.now: dict[str, float] = {}
        """Silent replica, or `FLEET` → since when, as of the last look."""
        self._grew: dict[str, tuple[float, float]] = {}
        """Replica → (reported service, when it was first seen to be so much)."""
        self._over: deque[Episode] = deque()
        self._open: dict[str, Episode] = {}

    def look(self, now_s: float) -> None:
        """Find the silences of this moment."""
        self._read_reports(now_s)
        self.now = {
            name: one.since_s
            for name, one in self._waits(now_s).items()
            if now_s - one.since_s >= one.limit_s
        }
        for name, since_s in self.now.items():
            self._open[name] = Episode(name, since_s, now_s)
        for name in self._open.keys() - self.now.keys():
            self._over.append(self._open.pop(name))
        while self._over and now_s - self._over[0].seen_s > MINUTE_S:
            self._over.popleft()

    def longest(self, now_s: float) -> Silence:
        """The longest silence that ended in the last minute; as much of it as lies in the minute. One of the whole fleet comes before
        that of a replica."""
        found, whole = NO_SILENCE, False
        for replica, begin_s, seen_s in self._over:
            seconds = seen_s - max(begin_s, now_s - MINUTE_S)
            if seconds > 0 and (replica == FLEET, seconds) > (whole, found.seconds):
                found = Silence(
                    seconds=seconds, replicas=(replica,) if replica else (), ended_s=now_s - seen_s
                )
                whole = replica == FLEET
        return found

    def _read_reports(self, now_s: float) -> None:
        grew: dict[str, tuple[float, float]] = {}
        for name in self._replicas.reports:
            account = self._service_ledger.account(name)
            service = 0.0 if account is None else account.service
            known = self._grew.get(name)
            grew[name] = known if known is not None and known[0] == service else (service, now_s)
        self._grew = grew

    def _waits(self, now_s: float) -> dict[str, _Waiting]:
        """Replica, or `FLEET` → since when requests wait there without a token."""
        begins: dict[tuple[str, float], float] = {}
        longest: dict[str, int] = {}
        for one in list(self._intake.active_requests):
            if (found := self._place(one)) is not None:
                (place, limit_s), begin_s = found
                for name in (place, FLEET):
                    key = name, limit_s
                    begins[key] = min(begins.get(key, begin_s), begin_s)
                    longest[name] = max(longest.get(name, 0), one.estimate_tokens)
        tokens_s = {
            name: max(self._grew.get(name, (0.0, 0.0))[1], self._intake.content_s.get(one.url, 0.0))
            for name, one in self._replicas.configured.items()
        }
        tokens_s[FLEET] = max(tokens_s.values(), default=0.0)
        self._join_abandoned(begins, longest, tokens_s, now_s)
        waits: dict[str, _Waiting] = {}
        for (name, limit_s), begin_s in sorted(begins.items()):
            token_s, before = tokens_s[name], self._open.get(name)
            # The requests that waited first may have been given up.
            if before is not None and before.begin_s >= token_s:
                begin_s = min(begin_s, before.begin_s)
            limit_s += longest[name] / SLOWEST
            waits.setdefault(
                name, _Waiting(max(begin_s, token_s), limit_s)
            )  # the shorter limit first
        return waits

    def _join_abandoned(
        self,
        begins: dict[tuple[str, float], float],
        longest: dict[str, int],
        tokens_s: dict[str, float],
        now_s: float,
    ) -> None:
        """Requests whose clients left without a token waited, too, where others followed them, or the last one left just now."""
        for replica, one in self._replicas.configured.items():
            reports = replica in self._grew
            for stream in (True, False):
                run = self._intake.abandoned.runs.get((one.url, stream))
                if run is None:
                    continue
                limit_s = SILENT_S if reports or stream else STUCK_S
                for name in (replica, FLEET):
                    next_s = begins.get((name, limit_s), now_s)
                    if next_s - run.last_s <= SILENT_S and tokens_s[name] <= run.last_s:
                        begins[name, limit_s] = min(next_s, run.first_s)
                        longest[name] = max(longest.get(name, 0), run.tokens)

    def _place(self, one: RequestState) -> tuple[tuple[str, float], float] | None:
        """Where a request has no token, with the limit, and since when; None if that shows nothing."""
        if one.holding_since_s:
            cold = self._replicas.activation.holds
            return None if cold else ((FLEET, SILENT_S), one.holding_since_s)
        if not one.sent_s or one.replica not in self._replicas.configured:
            return None
        reports = one.replica in self._grew
        if one.first_byte_s is not None:
            # Without reports, its client may be the one that does not read.
            return ((one.replica, SILENT_S), one.first_byte_s) if reports else None
        limit_s = SILENT_S if reports or one.stream else STUCK_S
        return (one.replica, limit_s), one.sent_s
