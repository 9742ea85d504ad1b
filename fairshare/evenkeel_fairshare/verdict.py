"""The verdict on a run, or on the last minute of a fleet: one function over one record, for every tool that gives one.

`simulate`, `replay`, `demo` and `plan` judge the records of requests, routers (`top`, the console) what they and the replicas counted.
A verdict has three levels. Can anybody be served? Is anybody held up? Is it fair? The first level with a fault decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Final

from evenkeel_fairshare.window import Taken, WindowShares

AS_OWED: Final = 0.8
"""Part of its owed service from which a client counts as served fairly. The difference to 1 is the tolerance of a window of one
minute."""
MORE_THAN_SHARE: Final = 1.05
"""Times its share from which a client counts as using capacity that others leave idle."""
FAILING: Final = 0.1
"""Part of the requests that ended from which their failures are a fault of the service as a whole."""
FEWEST_FAILED: Final = 2
"""Failed requests from which that is said: one alone shows nothing, unless no other request is served."""
HELD_S: Final = 2.0
"""Longest time that a request stays in the router without a replica before that counts: one that moves is there for less. From this
age on, a verdict also names the requests that wait elsewhere."""
STUCK_S: Final = 30.0
"""Age of the oldest request that waits from which a service without any answer counts as out."""
NAMED: Final = 3
"""Clients that a verdict names on each side."""


class Level(StrEnum):
    """What a verdict says, the worst first."""

    OUT = "Out"
    """No client is served."""
    HELD_UP = "HeldUp"
    """Requests find no replica, or many fail."""
    UNFAIR = "Unfair"
    FAIR = "Fair"
    NOTHING = "Nothing"
    """No request came, so nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is judged: a whole run, or the last minute of a fleet."""

    shares: WindowShares = field(default_factory=WindowShares)
    answered: int = 0
    """Requests that ended with an answer."""
    failed: int = 0
    """Requests that the service failed."""
    given_up: int = 0
    """Requests whose client left before the answer began."""
    declined: int = 0
    """Requests that broke a limit, were invalid, or fit no replica: no fault of the service."""
    running: int = 0
    """Requests whose answer has begun."""
    waiting: int = 0
    """Requests whose answer has not begun, wherever they are."""
    oldest_s: float = 0.0
    """Age of the oldest of them."""
    held: int = 0
    """Waiting requests that no replica has: the router holds them."""
    held_s: float = 0.0
    """Age of the oldest of these."""
    replicas: int | None = None
    """Replicas of the fleet; None where they are not known, and for a tenant."""
    routable: int | None = None
    """Replicas that take requests."""
    serves: bool = False
    """Whether the fleet gave service, perhaps to requests that this router did not see."""
    starts: bool = False
    """Whether a request starts the first replica of a service at zero."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict: its level, and one sentence."""

    level: Level
    sentence: str


def is_fair(given_over_owed: Mapping[str, float]) -> bool:
    """Whether each client was given what it was owed while it waited."""
    return min(given_over_owed.values(), default=1.0) >= AS_OWED


def judge(record: RunRecord) -> Judgement:
    """The verdict."""
    if out := _out(record):
        return Judgement(Level.OUT, f"No client is served: {out}{_who_waits(record)}.")
    shares = record.shares
    fair = is_fair(shares.given_over_owed)
    if held := list(_held_up(record)):
        sentence = f"Held up: {'; '.join(held)}."
        return Judgement(Level.HELD_UP, sentence if fair else f"{sentence} {_of_shares(shares)}")
    known = record.answered + record.failed + record.running + record.waiting
    if not known and not record.serves and not shares.given_over_owed:
        return Judgement(Level.NOTHING, f"Nothing to judge: {_why_nothing(record)}.")
    sentence = _of_shares(shares)
    if not shares.given_over_owed and record.waiting and record.oldest_s >= HELD_S:
        wait = "waits" if record.waiting == 1 else "wait"
        sentence = f"Fair so far: {_requests(record.waiting)} {wait}, the oldest for {record.oldest_s:.0f} s."
    if shares.idle_s >= 1:
        sentence += (
            f" A replica was empty for {shares.idle_s:.0f} s while requests waited at another."
        )
    return Judgement(Level.FAIR if fair else Level.UNFAIR, sentence)


def _out(record: RunRecord) -> str:
    """Why no client is served; empty: at least one is."""
    if record.routable == 0 and not record.starts:
        if record.replicas is None:
            return "no replica takes requests"
        few = {0: "there is no replica", 1: "the only replica takes no requests"}
        return few.get(record.replicas, f"none of {record.replicas} replicas takes requests")
    if record.answered or record.running:
        return ""
    if record.given_up:
        all_ = _requests(record.failed + record.given_up)
        return f"all {all_} that ended failed or were given up"
    if record.failed:
        return f"all {_requests(record.failed)} that ended failed"
    stuck = record.oldest_s >= STUCK_S and not (record.routable == 0 and record.starts)
    return "no answer has begun for a minute" if stuck else ""


def _held_up(record: RunRecord) -> Iterator[str]:
    ended = record.answered + record.failed
    if record.failed >= max(FEWEST_FAILED, FAILING * ended):
        yield f"{record.failed} of {_requests(ended)} failed"
    if record.held and record.held_s >= HELD_S:
        what = "the first replica" if record.starts and not record.routable else "a replica"
        wait = "waits" if record.held == 1 else "wait"
        yield f"{_requests(record.held)} {wait} for {what}, the oldest for {record.held_s:.0f} s"


def _who_waits(record: RunRecord) -> str:
    if not record.waiting:
        return ""
    waits = f"; {_requests(record.waiting)} {'waits' if record.waiting == 1 else 'wait'}"
    return waits if record.oldest_s < 1 else f"{waits}, the oldest for {record.oldest_s:.0f} s"


def _why_nothing(record: RunRecord) -> str:
    if record.declined:
        return f"all {_requests(record.declined)} were refused"
    if record.routable == 0 and record.starts:
        return "no request came, and the first one starts a replica"
    return "no request came"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _of_shares(shares: WindowShares) -> str:
    parts = shares.given_over_owed
    if not parts:
        return "Fair: no client had to wait for another."
    if is_fair(parts):
        part = min(shares.least, 1.0)
        return f"Fair: every client that waited was given at least {part:.0%} of what it was owed."
    (client, least), *others = sorted(
        ((name, part) for name, part in parts.items() if part < AS_OWED), key=itemgetter(1)
    )
    lost = [f"{client} (given {least:.0%} of what it was owed)"]
    lost += [f"{name} ({part:.0%})" for name, part in others]
    hurt = f"hurt: {', '.join(_few(lost))}."
    took = [*_took(shares.took)]
    return f"Unfair: {', '.join(_few(took))}; {hurt}" if took else f"Unfair: {hurt}"


def _took(took: Mapping[str, Taken]) -> Iterator[str]:
    """Clients whose surplus shows in whole per cents."""
    words = "took {:.0%} of the service, owed {:.0%}"
    for name, part in took.items():
        if part.given - part.owed >= 0.01:
            yield f"{name} {words.format(part.given, part.owed)}"
            words = "{:.0%}, owed {:.0%}"


def _few(names: list[str]) -> list[str]:
    rest = len(names) - NAMED
    return [*names[:NAMED], f"and {rest} more"] if rest > 0 else names


def client_in_words(
    *,
    given_over_owed: float | None,
    waits: bool,
    active: bool,
    failed: int = 0,
    ended: int = 0,
    held: int = 0,
    received: float | None,
    share: float,
) -> str:
    """A sentence on one client.

    `given_over_owed`: of a client that waited for most of the window, else None. `waits`: one of its requests waits now.
    `active`: it has requests, or received service in the window. `failed`: of its `ended` requests of the last minute, those that the
    service failed. `held`: its requests that no replica takes. `received`: its part of the fleet's service in the window,
    0 to 1, None if the fleet served none. `share`: the part that it would be owed if every active client waited.
    """
    if failed and failed >= FAILING * ended:
        return f"Requests fail: {failed} of {ended} in the last minute."
    if held:
        return "Requests wait in the router, because no replica takes them."
    if given_over_owed is not None:
        what = "Gets too little" if given_over_owed < AS_OWED else "Gets its share"
        return f"{what}: it was given {given_over_owed:.0%} of what it was owed while it waited."
    if waits:
        return "Requests have begun to wait."
    if not active:
        return "Sends no requests."
    idle = received is not None and received > MORE_THAN_SHARE * share
    what = "Uses idle capacity" if idle else "Gets all that it requests"
    return f"{what}; no request waits."
