"""The verdict on one client, beside that on the whole (`verdict`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evenkeel_fairshare.verdict import (
    AS_OWED,
    FEWEST_LOST,
    HELD_S,
    NO_SILENCE,
    Judgement,
    Level,
    Silence,
    count_of,
    who_is_there,
)

MORE_THAN_SHARE: Final = 1.05
"""Times its share from which a client counts as using capacity that others leave idle."""
LOSING: Final = 0.1
"""Part of one client's requests from which their loss is the first thing to say of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """What is judged of one client."""

    given_over_owed: float | None = None
    """Part of what it was owed that it was given; None for a client that did not wait for most of the last minute."""
    hurts: bool = False
    """Whether it took what others, given too little, were owed."""
    active: bool = False
    """Whether it has requests, or received service in the window."""
    failed: int = 0
    """Requests of the last minute that the service failed."""
    given_up: int = 0
    """Requests of the last minute that the client gave up, as in `RunRecord`."""
    ended: int = 0
    """Requests of the last minute that ended, as in `RunRecord`."""
    left: int = 0
    """Requests of the last minute that the client left sooner, as in `RunRecord`."""
    running: int = 0
    """Requests whose answer has begun."""
    nobody_answered: bool = False
    """Whether the service answers no client, as in `RunRecord`."""
    waiting: int = 0
    """Requests whose answer has not begun."""
    oldest_s: float = 0.0
    """Age of the oldest of them."""
    held: int = 0
    """Requests that no replica takes."""
    held_s: float = 0.0
    silence: Silence = NO_SILENCE
    """The client's requests at replicas that give no token."""
    received: float | None = None
    """The client's part of the fleet's service in the window, 0 to 1; None if the fleet served none."""
    share: float = 0.0
    """The part that it would be owed if every active client waited."""


def judge_client(record: ClientRecord) -> Judgement:
    """What one client gets. It names the longer window, where two figures of a page differ by it."""
    if trouble := _client_held_up(record):
        return Judgement(Level.HELD_UP, trouble)
    none = record.left >= FEWEST_LOST and not record.ended and not record.running
    if none:
        level = Level.HELD_UP if record.nobody_answered else Level.NOTHING
        return Judgement(
            level,
            f"None of {count_of(record.left)} of the last minute was answered: the client left within {HELD_S:.0f} s.",
        )
    part = record.given_over_owed
    given = "" if part is None else f": {_given(part)}"
    if part is not None and part < AS_OWED:
        return Judgement(Level.UNFAIR, f"Gets too little{given}.")
    if record.hurts:
        return Judgement(Level.UNFAIR, f"Takes what others are owed{given}.")
    if part is not None:
        return Judgement(Level.FAIR, f"Gets its share{given}.")
    level = Level.FAIR if record.active or record.waiting else Level.NOTHING
    waits = record.waiting and record.oldest_s >= HELD_S
    return Judgement(Level.UNJUDGED if waits else level, _without_competing(record))


def _given(part: float) -> str:
    return f"it was given {part:.0%} of what it was owed while it waited in the last minute"


def _without_competing(record: ClientRecord) -> str:
    """What a client gets that did not wait for most of the last minute."""
    if record.waiting and record.oldest_s < HELD_S:
        return "Requests have begun to wait."
    if record.waiting:
        wait = "waits" if record.waiting == 1 else "wait"
        return f"{count_of(record.waiting)} {wait}, the oldest for {record.oldest_s:.0f} s."
    if not record.active:
        return "Sends no requests."
    idle = record.received is not None and record.received > MORE_THAN_SHARE * record.share
    what = "Uses idle capacity" if idle else "Gets all that it requests"
    return f"{what}; no request waits."


def _client_held_up(record: ClientRecord) -> str:
    """What keeps a client from answers, other than another client; empty: nothing."""
    silence = record.silence
    if silence.seconds:
        return f"No token for {silence.seconds:.0f} s: {who_is_there(silence)}."
    if record.held and record.held_s >= HELD_S:
        return "Requests wait in the router, because no replica takes them."
    for count, what in ((record.failed, "fail"), (record.given_up, "are given up")):
        if count and count >= LOSING * record.ended:
            return f"Requests {what}: {count} of {record.ended} in the last minute."
    return ""
