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
BUDGET: Final = 0.01
"""Part of the requests of the window that may fail or be given up: the error budget of the alerts on requests. Beyond it the service is
held up; below it the verdict only names them."""
FEWEST_LOST: Final = 2
"""Failed and given-up requests from which the service may be held up: one alone shows nothing, unless no other request is served."""
HELD_S: Final = 2.0
"""Longest time that a request stays in the router without a replica before that counts: one that moves is there for less. From this
age on, a verdict also names the requests that wait elsewhere. A client that leaves without a token gave its request up if it waited for so
long: below it, it cancels of its own accord (completions of an editor, a time-out of 100 ms)."""
SILENT_S: Final = 5.0
"""Time without a token from a replica where a request waits for its first, from which the replica gives none: five reports, and more
than the step of an engine with a long prompt takes."""
STUCK_S: Final = 30.0
"""Age of the oldest request that waits, or time without a token, from which a service without any answer counts as out."""
LEAST_SURPLUS: Final = 0.01
"""Part of the service from which a client is said to have taken more than it was owed."""
NAMED: Final = 3
"""Clients that a verdict names on each side."""


class Level(StrEnum):
    """What a verdict says, the worst first."""

    OUT = "Out"
    """No client is served."""
    HELD_UP = "HeldUp"
    """Requests find no replica, or many fail."""
    UNFAIR = "Unfair"
    UNJUDGED = "Unjudged"
    """Clients wait that cannot be judged yet."""
    FAIR = "Fair"
    NOTHING = "Nothing"
    """No request came, so nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Time in which requests waited, and no token came from where they were."""

    seconds: float
    fleet_s: float = 0.0
    """Time in which no replica gave a token; 0: one does, or this is not known."""
    replicas: tuple[str, ...] = ()
    """The replicas that gave none; empty: none of the fleet did, or the reader does not see replicas."""
    waiting: int = 0
    """Requests there whose answer has not begun."""
    stopped: int = 0
    """Answers there that have begun, and do not go on."""
    ended_s: float = 0.0
    """Time since it was over; 0: it is not."""


NO_SILENCE: Final = Silence(seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is judged: a whole run, or the last minute of a fleet."""

    shares: WindowShares = field(default_factory=WindowShares)
    minute: bool = False
    """Whether the record is of the last minute."""
    answered: int = 0
    """Requests that ended with an answer, or whose client left within one."""
    answered_beyond: int = 0
    """Answered requests of clients that asked for more than their share, and were given it."""
    failed: int = 0
    """Requests that the service failed."""
    given_up: int = 0
    """Requests whose client left without an answer after `HELD_S`, or within an answer that had stopped."""
    given_up_beyond: int = 0
    """Further requests that were given up, of clients that asked for more than their share and were given it: they wait behind their
    own requests."""
    left: int = 0
    """Requests whose client left sooner, without an answer. They show nothing while anybody is answered."""
    declined: int = 0
    """Requests that broke a limit, were invalid, or fit no replica: no fault of the service."""
    running: int = 0
    """Requests whose answer has begun."""
    waiting: int = 0
    """Requests whose answer has not begun, wherever they are."""
    oldest_s: float = 0.0
    """Age of the oldest of them."""
    unjudged: int = 0
    """Waiting requests whose clients are not judged, because they did not wait for half of the minute yet."""
    unjudged_s: float = 0.0
    """Age of the oldest of these; 0 while none waits for longer than its prompt takes, and `HELD_S`."""
    slow: int = 0
    """Requests whose first token came after `HELD_S` or more."""
    held: int = 0
    """Waiting requests that no replica has: the router holds them."""
    held_s: float = 0.0
    """Age of the oldest of these."""
    silence: Silence = NO_SILENCE
    """Replicas that give no token now."""
    was_silent: Silence = NO_SILENCE
    """The longest silence of the window that is over."""
    replicas: int | None = None
    """Replicas of the fleet; None where they are not known, and for a tenant."""
    routable: int | None = None
    """Replicas that take requests."""
    serves: bool = False
    """Whether the fleet gave service, perhaps to requests that this router did not see."""
    elsewhere: bool = False
    """Whether requests of other routers may have been answered. Service alone does not show it: what a client leaves is charged, too."""
    starts: bool = False
    """Whether a request starts the first replica of a service at zero."""
    others_answered: bool = False
    """Whether clients of other tenants are answered, where the record is of one."""
    others_took: Taken | None = None
    """What other tenants were given, those that were given more than they were owed, where the record is of one."""
    hurts: bool = False
    """Whether clients of this tenant took what those of others, given too little, were owed."""

    @property
    def ended(self) -> int:
        """Requests that ended otherwise than by a limit, a fault of their own, or a client that left at once."""
        return self.answered + self.failed + self.given_up + self.given_up_beyond

    @property
    def counted_given_up(self) -> int:
        """Requests that were given up by the service's fault. Clients that ask for more than their share wait behind their own requests:
        what they give up counts only where no other client is answered."""
        others = self.others_answered or self.answered > self.answered_beyond
        return self.given_up + (0 if others else self.given_up_beyond)

    @property
    def nobody_answered(self) -> bool:
        """Whether all clients left sooner than they give up, and no client is answered. One request alone shows nothing."""
        answered = self.answered or self.running or self.others_answered
        return not answered and self.ended == 0 and self.left >= FEWEST_LOST


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
    fair = is_fair(shares.given_over_owed) and not record.hurts
    if held := list(_held_up(record)):
        sentence = f"Held up: {'; '.join(held)}."
        return Judgement(Level.HELD_UP, sentence if fair else f"{sentence} {_of_shares(record)}")
    known = record.ended + record.running + (0 if record.left else record.waiting)
    serves = record.serves and not record.left
    if not known and not serves and not shares.given_over_owed and record.oldest_s < HELD_S:
        return Judgement(Level.NOTHING, f"Nothing to judge: {_why_nothing(record)}.")
    unjudged = _unjudged(record) if fair else ""
    sentence = unjudged or _of_shares(record)
    if shares.idle_s >= 1:
        sentence += (
            f" A replica was empty for {shares.idle_s:.0f} s while requests waited at another."
        )
    if lost := _lost(record):
        sentence += f" {lost}{_whose(record)}."
    level = Level.UNJUDGED if unjudged else Level.FAIR
    return Judgement(level if fair else Level.UNFAIR, sentence)


def _unjudged(record: RunRecord) -> str:
    """The words for clients that wait and are not judged; empty: no such client waits for long. Beside clients with a fair share, short waits are usual:
    there it takes `SILENT_S`."""
    judged = record.shares.given_over_owed
    if record.unjudged_s < (SILENT_S if judged else HELD_S):
        return ""
    wait = "waits" if record.unjudged == 1 else "wait"
    what = f"{count_of(record.unjudged)} {wait}, the oldest for {record.unjudged_s:.0f} s"
    if judged:
        what += f"; {_given_at_least(record)}"
    elif record.minute and record.unjudged_s < STUCK_S:
        what += "; clients are judged once they have waited for half a minute"
    return f"Not judged{' yet' if record.minute else ''}: {what}."


def _given_at_least(record: RunRecord) -> str:
    """The least part of a fair verdict. It is of every client that waited only if all that wait now are judged."""
    who = "every client that waited"
    if record.unjudged:
        who += f" for half of {'the last minute' if record.minute else 'a minute'}"
    return f"{who} was given at least {min(record.shares.least, 1.0):.0%} of what it was owed"


def _out(record: RunRecord) -> str:
    """Why no client is served; empty: at least one is."""
    if record.routable == 0 and not record.starts:
        few = {
            None: "no replica takes requests",
            0: "there is no replica",
            1: "the only replica takes no requests",
        }
        return few.get(record.replicas, f"none of {record.replicas} replicas takes requests")
    silence = record.silence
    if silence.fleet_s >= STUCK_S and _all_are_silent(record):
        names = _named(silence.replicas)
        return f"no token came for {silence.fleet_s:.0f} s{f' from {names}' if names else ''}"
    if record.answered or record.running:
        return ""
    given_up = record.counted_given_up
    if record.ended and record.failed + given_up == record.ended:
        also = " or were given up" if given_up else ""
        return f"all {count_of(record.ended)} that ended failed{also}"
    stuck = record.oldest_s >= STUCK_S and not (record.routable == 0 and record.starts)
    if stuck:
        return "no answer has begun in the last minute"
    return _nobody(record) if record.nobody_answered and not record.elsewhere else ""


def _nobody(record: RunRecord) -> str:
    """The words for a service that answered no client, although none waited for long."""
    window = " of the last minute" if record.minute else ""
    left = f"their clients left within {HELD_S:.0f} s"
    return f"none of {count_of(record.left)}{window} was answered; {left}"


def _all_are_silent(record: RunRecord) -> bool:
    """Whether every request that is open is where no token comes from."""
    silence = record.silence
    return record.waiting + record.running <= silence.waiting + silence.stopped + record.held


def _held_up(record: RunRecord) -> Iterator[str]:
    silence, was = record.silence, record.was_silent
    names = _named(silence.replicas)
    there = silence.waiting + silence.stopped
    if silence.seconds and ((there and _all_are_silent(record)) or not names):
        at = f" at {names}" if names else ""
        yield f"no token for {silence.seconds:.0f} s: {who_is_there(silence)}{at}"
    elif silence.seconds:
        give = "give" if len(silence.replicas) > 1 else "gives"
        yield f"{names} {give} no token for {silence.seconds:.0f} s: {who_is_there(silence)} there"
    elif was.seconds:
        where = f"{names} gave no token" if (names := _named(was.replicas)) else "no token came"
        ago = f", until {was.ended_s:.0f} s ago" if was.ended_s >= 1 else ""
        yield f"{where} for {was.seconds:.0f} s of the last minute{ago}, while requests waited"
    if _is_beyond_budget(record):
        yield _lost(record)
    if record.nobody_answered:
        yield _nobody(record)
    if record.held and record.held_s >= HELD_S:
        what = "the first replica" if record.starts and not record.routable else "a replica"
        wait = "waits" if record.held == 1 else "wait"
        yield f"{count_of(record.held)} {wait} for {what}, the oldest for {record.held_s:.0f} s"


def _is_beyond_budget(record: RunRecord) -> bool:
    """Whether more requests are lost than the service may lose."""
    lost = record.failed + record.counted_given_up
    return lost >= max(FEWEST_LOST, BUDGET * record.ended)


def _lost(record: RunRecord) -> str:
    """The requests that failed or were given up; empty: none."""
    given_up = record.given_up + record.given_up_beyond
    window = " of the last minute" if record.minute else ""
    of = f"of {count_of(record.ended)}{window}"
    were = f"{'was' if given_up == 1 else 'were'} given up"
    if record.failed:
        also = f", and {given_up:,} {were}" if given_up else ""
        return f"{record.failed:,} {of} failed{also}"
    return f"{given_up:,} {of} {were}" if given_up else ""


def _whose(record: RunRecord) -> str:
    """Words for the requests of `_lost` whose clients wait behind their own; empty: there are none."""
    if not record.given_up_beyond:
        return ""
    some = f"{record.given_up_beyond:,} of them " if record.failed or record.given_up else ""
    return f", {some}by clients that ask for more than their share"


def _named(replicas: tuple[str, ...]) -> str:
    few = _few(list(replicas))
    return f"replica{'s' if len(replicas) > 1 else ''} {', '.join(few)}" if replicas else ""


def who_is_there(silence: Silence) -> str:
    """Words for the requests at replicas that give no token."""
    stopped = f"{silence.stopped:,} answer{'s have' if silence.stopped > 1 else ' has'} stopped"
    if not silence.waiting:
        return stopped if silence.stopped else "clients leave without an answer"
    waits = f"{count_of(silence.waiting)} {'waits' if silence.waiting == 1 else 'wait'}"
    return f"{waits} and {stopped}" if silence.stopped else waits


def _who_waits(record: RunRecord) -> str:
    if not record.waiting:
        return ""
    waits = f"; {count_of(record.waiting)} {'waits' if record.waiting == 1 else 'wait'}"
    return waits if record.oldest_s < 1 else f"{waits}, the oldest for {record.oldest_s:.0f} s"


def _why_nothing(record: RunRecord) -> str:
    if record.left:
        left = "its client left" if record.left == 1 else "their clients left"
        return f"{count_of(record.left)} had no answer, because {left} within {HELD_S:.0f} s"
    if record.declined:
        return f"all {count_of(record.declined)} were refused"
    if record.routable == 0 and record.starts:
        return "no request came, and the first one starts a replica"
    return "no request came"


def count_of(count: int) -> str:
    """A number of requests, in words."""
    return "1 request" if count == 1 else f"{count:,} requests"


def _of_shares(record: RunRecord) -> str:
    parts = record.shares.given_over_owed
    window = f"in the {'last' if record.minute else 'worst'} minute"
    took = [*_took(record)]
    if record.hurts and is_fair(parts):
        return f"Unfair: {window} {', '.join(_few(took))}; hurt: clients of other tenants."
    if not parts and not record.slow:
        return "Fair: no client had to wait for another."
    if not parts:
        half = "the last minute" if record.minute else "a minute"
        slow = f"{count_of(record.slow)} had {'its' if record.slow == 1 else 'their'} first token"
        return f"Fair: no client waited for half of {half}; {slow} after {HELD_S:.0f} s or more."
    if is_fair(parts):
        return f"Fair: {_given_at_least(record)}."
    (client, least), *others = sorted(
        ((name, part) for name, part in parts.items() if part < AS_OWED), key=itemgetter(1)
    )
    lost = [f"{client} (given {least:.0%} of what it was owed while it waited)"]
    lost += [f"{name} ({part:.0%})" for name, part in others]
    hurt = ", ".join(_few(lost))
    if took:
        return f"Unfair: {window} {', '.join(_few(took))}; hurt: {hurt}."
    return f"Unfair: hurt {window}: {hurt}."


def _took(record: RunRecord) -> Iterator[str]:
    """Clients whose surplus shows in whole per cents. To a tenant, all others are one."""
    others = {} if record.others_took is None else {"other tenants": record.others_took}
    words = "took {:.0%} of the service, owed {:.0%}"
    for name, part in (others | dict(record.shares.took)).items():
        if part.given - part.owed >= LEAST_SURPLUS:
            yield f"{name} {words.format(part.given, part.owed)}"
            words = "{:.0%}, owed {:.0%}"


def _few(names: list[str]) -> list[str]:
    rest = len(names) - NAMED
    return [*names[:NAMED], f"and {rest} more"] if rest > 0 else names
