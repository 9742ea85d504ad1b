"""Replicas that give no token while requests wait there, and times in which no replica took requests: now, and in the last minute.

A token shows in two ways: the router passed content on (`Intake.content_s`), or the replica's reports show that it served something. Where
a replica makes no reports, a whole answer shows nothing until it is there: then only streams count, or `STUCK_S`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from evenkeel_fairshare.verdict import NO_SILENCE, SILENT_S, STUCK_S, Silence

from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.endings import MINUTE_S
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.request.intake import Intake

NO_REPLICA: Final = ""
"""In place of a replica's name: no replica took requests."""


class Episode(NamedTuple):
    """A silence."""

    replica: str
    """Its name, or `NO_REPLICA`."""
    begin_s: float
    seen_s: float
    """When it was last seen."""


class Silences:
    """The silences of one router's replicas. Someone looks every two seconds at least (`sampler`)."""

    def __init__(self, replicas: Replicas, service_ledger: ServiceLedger, intake: Intake) -> None:
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._intake = intake
        self.now: dict[str, float] = {}
        """Silent replica, or `NO_REPLICA` → since when, as of the last look."""
        self._grew: dict[str, tuple[float, float]] = {}
        """Replica → (reported service, when it was first seen to be so much)."""
        self._over: deque[Episode] = deque()
        self._open: dict[str, Episode] = {}

    def look(self, now_s: float) -> None:
        """Find the silences of this moment."""
        self._read_reports(now_s)
        self.now = {
            name: since_s
            for name, (since_s, limit_s) in self._waits().items()
            if now_s - since_s >= limit_s
        }
        for name, since_s in self.now.items():
            self._open[name] = Episode(name, since_s, now_s)
        for name in self._open.keys() - self.now.keys():
            self._over.append(self._open.pop(name))
        while self._over and now_s - self._over[0].seen_s > MINUTE_S:
            self._over.popleft()

    def longest(self, now_s: float) -> Silence:
        """The longest silence that ended in the last minute; as much of it as lies in the minute."""
        found = NO_SILENCE
        for replica, begin_s, seen_s in self._over:
            seconds = seen_s - max(begin_s, now_s - MINUTE_S)
            if seconds > found.seconds:
                found = Silence(seconds=seconds, replicas=(replica,) if replica else ())
        return found

    def _read_reports(self, now_s: float) -> None:
        grew: dict[str, tuple[float, float]] = {}
        for name in self._replicas.reports:
            account = self._service_ledger.account(name)
            service = 0.0 if account is None else account.service
            known = self._grew.get(name)
            grew[name] = known if known is not None and known[0] == service else (service, now_s)
        self._grew = grew

    def _waits(self) -> dict[str, tuple[float, float]]:
        """Replica, or `NO_REPLICA` → since when requests wait there without a token, and the limit for it."""
        begins: dict[tuple[str, float], float] = {}
        held = not self._replicas.fleet.routable and not self._replicas.activation.holds
        for one in list(self._intake.active_requests):
            if one.holding_since_s and held:
                key, begin_s = (NO_REPLICA, SILENT_S), one.holding_since_s
            elif one.sent_s and one.replica in self._replicas.configured:
                reports = one.replica in self._grew
                if one.first_byte_s is not None and not reports:
                    continue  # its client may not read
                key = one.replica, SILENT_S if reports or one.stream else STUCK_S
                begin_s = one.first_byte_s or one.sent_s
            else:
                continue
            begins[key] = min(begins.get(key, begin_s), begin_s)
        found: dict[str, tuple[float, float]] = {}
        for (name, limit_s), begin_s in sorted(begins.items()):
            since_s = begin_s
            if name != NO_REPLICA:
                url = self._replicas.configured[name].url
                _, grew_s = self._grew.get(name, (0.0, 0.0))
                since_s = max(begin_s, grew_s, self._intake.content_s.get(url, 0.0))
            found.setdefault(name, (since_s, limit_s))  # the shorter limit comes first
        return found
