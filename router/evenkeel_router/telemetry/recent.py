"""This router's requests of the last minute, and those in flight: what a verdict judges first, and the latencies of clients.

A request that waits belongs to its client's latency before it ends: otherwise a client that is never answered has none. Its age is a
lower bound, so it counts once it is above the median of the requests that were answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.verdict import HELD_S, Judgement, RunRecord, judge
from msgspec import Struct, field

from evenkeel_router.api.errors import OURS, Outcome
from evenkeel_router.request.request_log import RequestLogLine
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.history import STRIDE, WHOLE_SERVICE
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import Steps, shares_of

MINUTE_S: Final = 60.0
FAILS: Final = 0.1
"""Share of failures from which a replica is shown as failing."""
_OURS: Final = frozenset(outcome.value for outcome in OURS)


class Recent(Struct):
    """Requests of one client, of a tenant, or of all."""

    answered: int = 0
    failed: int = 0
    given_up: int = 0
    """Requests whose clients left before the answer began."""
    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    held: int = 0
    held_s: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)
    replicas: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Requests by the replica that had them last, and whether the service failed them."""
    ttfts_s: list[float] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)
    """Ages of the requests that wait."""

    def ended(self, line: RequestLogLine) -> None:
        """A request of the last minute."""
        if line.outcome:
            self.causes[line.outcome] += 1
        if line.replica:
            self.replicas[line.replica, line.outcome in _OURS] += 1
        if line.outcome in _OURS:
            self.failed += 1
        elif not line.outcome:
            self.answered += 1
        elif line.outcome == Outcome.CLIENT_GONE.value and not line.ttft_s:
            self.given_up += 1
        if line.ttft_s:
            self.ttfts_s.append(line.ttft_s)

    def open(self, one: RequestState, now_s: float) -> None:
        """A request in flight."""
        if one.first_byte_s is not None:
            self.running += 1
            self.ttfts_s.append(one.first_byte_s - one.started_s)
            return
        age_s = now_s - one.started_s
        self.waiting += 1
        self.ages_s.append(age_s)
        self.oldest_s = max(self.oldest_s, age_s)
        if one.holding_since_s:
            self.held += 1
            self.held_s = max(self.held_s, now_s - one.holding_since_s)

    def add(self, other: Recent) -> None:
        """Another client's requests, for all together; their latencies are not mixed."""
        for name in ("answered", "failed", "given_up", "running", "waiting", "held"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.oldest_s = max(self.oldest_s, other.oldest_s)
        self.held_s = max(self.held_s, other.held_s)
        self.causes.update(other.causes)
        self.replicas.update(other.replicas)

    def failing(self, replica: str) -> float:
        """The part of a replica's requests that failed; 0 below `FAILS`, and after one failure only. The replica may be trusted: it is not
        suspect while all others fail alike (R20)."""
        failed = self.replicas[replica, True]
        share = failed / max(1, failed + self.replicas[replica, False])
        return share if failed > 1 and share >= FAILS else 0.0

    def latency_s(self) -> tuple[float | None, float | None]:
        """Median and 95th percentile of the times to the first token."""
        return latency_s([self])


NO_REQUESTS: Final = Recent()


def latency_s(of: Iterable[Recent]) -> tuple[float | None, float | None]:
    """Median and 95th percentile of the times to the first token of several clients; None without a request."""
    known: list[float] = []
    ages: list[float] = []
    for one in of:
        known += one.ttfts_s
        ages += one.ages_s
    least_s = percentile(known, 50) if known else HELD_S  # one that only came has not waited
    together = [*known, *(age_s for age_s in ages if age_s >= least_s)]
    if not together:
        return None, None
    return percentile(together, 50), percentile(together, 95)


def recent_requests(rooms: Rooms, now_s: float) -> Steps[dict[str, Recent]]:
    """Client → its requests; and of each tenant, and of all (`WHOLE_SERVICE`) together."""
    since_unix_s = time.time() - MINUTE_S
    found: dict[str, Recent] = {}
    for distributions in rooms.totals.distributions():
        lines: Collection[RequestLogLine] = tuple(distributions.recent)
        for n, line in enumerate(reversed(lines)):  # type: ignore[call-overload]
            if line.time < since_unix_s:
                break
            found.setdefault(line.client, Recent()).ended(line)
            if n % STRIDE == 0:
                yield
    for n, one in enumerate(list(rooms.intake.active_requests)):
        if one.client is not None:
            found.setdefault(one.client.identity, Recent()).open(one, now_s)
        if n % STRIDE == 0:
            yield
    together: dict[str, Recent] = {}
    for name, own in found.items():
        for level in (tenant_of(name), WHOLE_SERVICE):
            together.setdefault(level, Recent()).add(own)
    return found | together


def judged(
    rooms: Rooms, own: Recent, tenant: str = WHOLE_SERVICE, *, served: float = 0.0
) -> Judgement:
    """The verdict on the last minute, of the clients of one `namespace/tenant` or of all. `own`: their requests at this router. `served`:
    service of a tenant, by whichever router; that of all is in the ledger's figures."""
    fleet = rooms.replicas.fleet
    routable = sum(member.routable for member in fleet)
    return judge(
        RunRecord(
            shares=shares_of(rooms, tenant),
            answered=own.answered,
            failed=own.failed,
            given_up=own.given_up,
            running=own.running,
            waiting=own.waiting,
            oldest_s=own.oldest_s,
            held=own.held,
            held_s=own.held_s,
            # How many replicas there are is not shown to a tenant.
            replicas=sum(1 for _ in fleet) if tenant == WHOLE_SERVICE else None,
            routable=routable if tenant == WHOLE_SERVICE else min(routable, 1),
            serves=served > 0 or (not tenant and rooms.service_ledger.fairness.now.given > 0),
            starts=rooms.replicas.activation.holds,
        )
    )
