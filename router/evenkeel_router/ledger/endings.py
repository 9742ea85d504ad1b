"""How the requests of a client ended in the last minute. All of them are counted; records are kept of the newest only."""

from __future__ import annotations

from collections import Counter
from typing import Final

from evenkeel_fairshare.verdict import HELD_S, SILENT_S
from msgspec import Struct

from evenkeel_router.api.errors import Outcome

MINUTE_S: Final = 60.0
SLOT_S: Final = 2.0
"""Requests are counted together for so long: a minute may have so many seconds more."""
ANSWERED: Final = "answered"
"""The answer was sent, or the client left within an answer that went on."""
GIVEN_UP: Final = "given_up"
"""The client left without an answer after `HELD_S`, or within an answer that had stopped for `SILENT_S`."""
BEYOND: Final = "_beyond"
"""Added for clients that asked for more than their share, and were given it: they wait behind their own requests."""


def ending_of(
    outcome: Outcome | None,
    *,
    ttft_s: float | None,
    duration_s: float,
    silent_s: float,
    beyond: bool,
) -> str:
    """How a request ended: one of the above, or its outcome.

    `ttft_s`: None without content. `silent_s`: time since its replica sent content to any client. `beyond`: see `BEYOND`.
    """
    found = ANSWERED
    if outcome is Outcome.CLIENT_GONE and ttft_s is not None:
        stopped = min(silent_s, duration_s - ttft_s) >= SILENT_S
        found = GIVEN_UP if stopped else ANSWERED
    elif outcome is Outcome.CLIENT_GONE and duration_s >= HELD_S:
        found = GIVEN_UP
    elif outcome is not None:
        return str(outcome.value)
    return found + BEYOND if beyond else found


class _Slot(Struct, gc=False):
    """Requests of `SLOT_S` that ended alike."""

    number: float
    ending: str
    requests: int = 1


class Endings:
    """Endings of one client's requests. Pure: times are handed in, of a clock that only grows.

    A client that came once takes 150 bytes here, so this is a list: a deque alone takes 600.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        """The oldest first."""

    def add(self, ending: str, now_s: float) -> None:
        """A request ended."""
        number = now_s // SLOT_S
        for slot in reversed(self._slots):
            if slot.number != number:
                break
            if slot.ending == ending:
                slot.requests += 1
                return
        self._forget(now_s)
        self._slots.append(_Slot(number, ending))

    def counts(self, now_s: float) -> Counter[str]:
        """Ending → requests of the last minute."""
        self._forget(now_s)
        found: Counter[str] = Counter()
        for slot in self._slots:
            found[slot.ending] += slot.requests
        return found

    def _forget(self, now_s: float) -> None:
        oldest = (now_s - MINUTE_S) // SLOT_S
        if self._slots and self._slots[0].number < oldest:
            self._slots = [slot for slot in self._slots if slot.number >= oldest]
