"""This router's requests of the last minute, and those in flight: what a verdict judges first, and the latencies of clients.

How requests ended is counted for all of them (`ledger.endings`); latencies, and the replicas that had requests last, are those of the newest
ones, of which a router keeps records. A request *waits* until its answer begins, wherever it is: held by the router, at a gate, or in an engine.

A request that waits belongs to its client's latency before it ends, and one that was given up: otherwise a client that is never answered has
none. Its age is a lower bound, so it counts once it is above the median of the requests that were answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from evenkeel_contract.adminstate import Here
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.verdict import (
    HELD_S,
    LEAST_SURPLUS,
    NO_SILENCE,
    Judgement,
    RunRecord,
    Silence,
    is_fair,
    judge,
)
from evenkeel_fairshare.window import Taken, WindowShares
from msgspec import Struct, field

from evenkeel_router.api.errors import OURS, Outcome
from evenkeel_router.ledger.endings import ANSWERED, BEYOND, GIVEN_UP, MINUTE_S
from evenkeel_router.request.request_log import RequestLogLine
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.history import STRIDE, WHOLE_SERVICE
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.silences import FLEET, SLOWEST
from evenkeel_router.telemetry.snapshot import Seen, Steps, shares_of

FAILS: Final = 0.1
"""Share of failures from which a replica is shown as failing."""
_OURS: Final = frozenset(outcome.value for outcome in OURS)
_CLIENT_GONE: Final = Outcome.CLIENT_GONE.value
_DECLINED: Final = frozenset(one.value for one in Outcome) - _OURS - {_CLIENT_GONE}


class Recent(Struct):
    """Requests of one client, of a tenant, or of all."""

    endings: Counter[str] = field(default_factory=Counter)
    """How the requests of the last minute ended (`ledger.endings`)."""
    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    late: bool = False
    """Whether one of them waits for longer than its prompt takes, and `HELD_S`."""
    unjudged: int = 0
    """Waiting requests whose clients are not judged, as in `RunRecord`."""
    unjudged_s: float = 0.0
    held: int = 0
    held_s: float = 0.0
    at: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Requests in flight by their replica (empty: none yet), and whether their answer has begun."""
    replicas: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Requests by the replica that had them last, and whether the service failed them."""
    slow: int = 0
    """Streams of which there is a record, whose first token came after `HELD_S` or more."""
    ttfts_s: list[float] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)
    """Ages of the requests that wait, and of those that were given up without a token when their clients left."""

    @property
    def answered(self) -> int:
        """Requests that ended with an answer, or whose client left within one."""
        return self.endings[ANSWERED] + self.endings[ANSWERED + BEYOND]

    @property
    def failed(self) -> int:
        """Requests that the service failed."""
        return self.failures.total()

    @property
    def failures(self) -> Counter[str]:
        """Requests that the service failed, by cause, as in docs/reference/errors.md."""
        return +Counter({name: self.endings[name] for name in _OURS})

    @property
    def given_up(self) -> int:
        """Requests that the client gave up."""
        return self.endings[GIVEN_UP] + self.endings[GIVEN_UP + BEYOND]

    def counted_given_up(self, everything: Recent | None = None) -> int:
        """Given-up requests that count against the service (`RunRecord`). `everything`: the requests of all, where these are some of them."""
        others = everything is not None and everything.answered > self.answered
        return RunRecord(
            answered=self.answered,
            answered_beyond=self.endings[ANSWERED + BEYOND],
            given_up=self.endings[GIVEN_UP],
            given_up_beyond=self.endings[GIVEN_UP + BEYOND],
            others_answered=others,
        ).counted_given_up

    @property
    def left(self) -> int:
        """Requests whose client left without an answer, sooner than it gives up."""
        return self.endings[_CLIENT_GONE]

    @property
    def nobody_answered(self) -> bool:
        """Whether no request was answered, and clients left sooner than they give up (`RunRecord`)."""
        return RunRecord(left=self.left, running=self.running, answered=self.ended).nobody_answered

    @property
    def ended(self) -> int:
        """Requests that ended otherwise than by a limit, a fault of their own, or a client that left at once."""
        return self.answered + self.failed + self.given_up

    @property
    def causes(self) -> Counter[str]:
        """Requests without an answer by cause, as in docs/reference/errors.md."""
        found = Counter({name: self.endings[name] for name in (*_OURS, *_DECLINED, _CLIENT_GONE)})
        found[_CLIENT_GONE] += self.given_up
        return +found

    def ended_with(self, line: RequestLogLine) -> None:
        """A request of the last minute of which there is a record."""
        if line.replica:
            self.replicas[line.replica, line.outcome in _OURS] += 1
        if line.ttft_s:
            self.ttfts_s.append(line.ttft_s)
            self.slow += line.stream and line.ttft_s >= HELD_S
        elif line.outcome == _CLIENT_GONE and line.duration_s >= HELD_S:
            self.ages_s.append(line.duration_s)

    def here(self) -> Here:
        """The counts that `/v1/state` shows."""
        lost = self.causes.total()
        return Here(unanswered=self.waiting, begun=self.running, lost=lost)

    def at_replicas(self) -> dict[str, Here]:
        """Replica → its requests there, and those of the last minute that failed there last."""
        return {
            name: Here(
                unanswered=self.at[name, False],
                begun=self.at[name, True],
                lost=self.replicas[name, True],
            )
            for name in {name for name, _ in (*self.at, *self.replicas)} - {FLEET}
        }

    def open(self, one: RequestState, now_s: float) -> None:
        """A request in flight."""
        at = _replica_of(one)
        if one.first_byte_s is not None:
            self.running += 1
            self.ttfts_s.append(one.first_byte_s - one.started_s)
            self.at[at, True] += 1
            return
        age_s = now_s - one.started_s
        self.waiting += 1
        self.ages_s.append(age_s)
        self.oldest_s = max(self.oldest_s, age_s)
        self.late = self.late or age_s - one.estimate_tokens / SLOWEST >= HELD_S
        self.at[at, False] += 1
        if one.holding_since_s:
            self.held += 1
            self.held_s = max(self.held_s, now_s - one.holding_since_s)

    def add(self, other: Recent) -> None:
        """Another client's requests, for all together; their latencies are not mixed."""
        for name in ("running", "waiting", "unjudged", "held", "slow"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.oldest_s = max(self.oldest_s, other.oldest_s)
        self.unjudged_s = max(self.unjudged_s, other.unjudged_s)
        self.held_s = max(self.held_s, other.held_s)
        for counts in ("endings", "at", "replicas"):
            getattr(self, counts).update(getattr(other, counts))

    def silence(self, since_s: Mapping[str, float], now_s: float, *, named: bool = True) -> Silence:
        """The requests at replicas that give no token. `since_s`: silent replica → since when. `named`: all of these, with their names;
        otherwise those that have one of the requests."""
        # Where clients leave soon, a silent replica may have no request just now.
        here = since_s.keys() if named else {name for name, _ in self.at if name in since_s}
        at = sorted(here - {FLEET})
        if not at:
            return NO_SILENCE
        return Silence(
            seconds=now_s - min(since_s[name] for name in (*at, FLEET) if name in since_s),
            fleet_s=now_s - since_s.get(FLEET, now_s),
            replicas=tuple(at) if named else (),
            waiting=sum(self.at[name, False] for name in at),
            stopped=sum(self.at[name, True] for name in at),
        )

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


def _replica_of(one: RequestState) -> str:
    """The replica that has a request in flight, or at whose gate it waits; `FLEET` if none."""
    if one.sent_s:
        return one.replica
    return one.ticket.member.name if one.gate_since_s and one.ticket is not None else FLEET


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
    rooms.silences.look(now_s)
    found: dict[str, Recent] = {}
    for n, totals in enumerate(list(rooms.totals.clients())):
        if endings := totals.endings.counts(now_s):
            found.setdefault(totals.identity, Recent()).endings = endings
        if n % STRIDE == 0:
            yield
    yield from _read_records(rooms, found)
    for n, one in enumerate(list(rooms.intake.active_requests)):
        if one.client is not None:
            found.setdefault(one.client.identity, Recent()).open(one, now_s)
        if n % STRIDE == 0:
            yield
    together: dict[str, Recent] = {}
    for name, own in found.items():
        if name not in rooms.service_ledger.fairness.now.given_over_owed:
            own.unjudged, own.unjudged_s = own.waiting, own.oldest_s if own.late else 0.0
        for level in (tenant_of(name), WHOLE_SERVICE):
            together.setdefault(level, Recent()).add(own)
    return found | together


def _read_records(rooms: Rooms, found: dict[str, Recent]) -> Steps[None]:
    since_unix_s = time.time() - MINUTE_S
    for distributions in rooms.totals.distributions():
        lines: Collection[RequestLogLine] = tuple(distributions.recent)
        for n, line in enumerate(reversed(lines)):  # type: ignore[call-overload]
            if line.time < since_unix_s:
                break
            found.setdefault(line.client, Recent()).ended_with(line)
            if n % STRIDE == 0:
                yield


def judged(
    rooms: Rooms,
    own: Recent,
    now_s: float,
    tenant: str = WHOLE_SERVICE,
    *,
    served: float = 0.0,
    everything: Recent = NO_REQUESTS,
) -> Judgement:
    """The verdict on the last minute, of the clients of one `namespace/tenant` or of all. `own`: their requests at this router, and beside
    those of a tenant `everything`: those of all. `served`: service of a tenant, by whichever router; that of all is in the ledger's figures."""
    fleet, silences, whole = rooms.replicas.fleet, rooms.silences, tenant == WHOLE_SERVICE
    routable = sum(member.routable for member in fleet)
    shares = shares_of(rooms, tenant)
    return judge(
        RunRecord(
            shares=shares,
            others_took=None if whole else _others_took(rooms, tenant),
            hurts=not whole and _hurts_others(rooms, shares),
            minute=True,
            answered=own.answered,
            answered_beyond=own.endings[ANSWERED + BEYOND],
            failed=own.failed,
            given_up=own.endings[GIVEN_UP],
            given_up_beyond=own.endings[GIVEN_UP + BEYOND],
            left=own.left,
            declined=sum(own.endings[name] for name in _DECLINED),
            running=own.running,
            waiting=own.waiting,
            oldest_s=own.oldest_s,
            unjudged=own.unjudged,
            unjudged_s=own.unjudged_s,
            slow=own.slow,
            held=own.held,
            held_s=own.held_s,
            # Which replicas there are is not shown to a tenant.
            silence=own.silence(silences.now, now_s, named=whole),
            was_silent=silences.longest(now_s) if whole else NO_SILENCE,
            replicas=sum(1 for _ in fleet) if whole else None,
            routable=routable if whole else min(routable, 1),
            serves=served > 0 or (whole and rooms.service_ledger.fairness.now.given > 0),
            starts=rooms.replicas.activation.holds,
            others_answered=everything.answered + everything.running > own.answered + own.running,
        )
    )


def _others_took(rooms: Rooms, tenant: str) -> Taken:
    """What the clients of other tenants were given together, those that were given more than they were owed."""
    took = rooms.service_ledger.fairness.now.took.items()
    others = [part for name, part in took if tenant_of(name) != tenant]
    return Taken(sum(one.given for one in others), sum(one.owed for one in others))


def _hurts_others(rooms: Rooms, shares: WindowShares) -> bool:
    """Whether clients of these shares took what others, given too little, were owed."""
    fair = is_fair(rooms.service_ledger.fairness.now.given_over_owed)
    return not fair and any(one.given - one.owed >= LEAST_SURPLUS for one in shares.took.values())


def seen(rooms: Rooms, now_s: float) -> Steps[Seen]:
    """The verdict on all clients, and the requests of this router, for `/v1/state`."""
    recent = yield from recent_requests(rooms, now_s)
    own = recent.get(WHOLE_SERVICE, NO_REQUESTS)
    clients = {name: of.here() for name, of in recent.items() if name.count("/") == 2}
    return Seen(judged(rooms, own, now_s), own.here(), clients, own.at_replicas())
