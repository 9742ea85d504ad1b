"""How the requests of a client ended in the last minute. All of them are counted; records are kept of the newest only."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from evenkeel_fairshare.verdict import HELD_S, SILENT_S

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


class Endings:
    """Endings of one client's requests. Pure: times are handed in, of a clock that only grows."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[tuple[float, Counter[str]]] = deque()
        """(begin of a slot, ending → requests), the oldest first."""

    def add(self, ending: str, now_s: float) -> None:
        """A request ended."""
        slots = self._slots
        if not slots or now_s - slots[-1][0] >= SLOT_S:
            self._forget(now_s)
            slots.append((now_s, Counter()))
        slots[-1][1][ending] += 1

    def counts(self, now_s: float) -> Counter[str]:
        """Ending → requests of the last minute."""
        self._forget(now_s)
        found: Counter[str] = Counter()
        for _, counts in self._slots:
            found.update(counts)
        return found

    def _forget(self, now_s: float) -> None:
        while self._slots and now_s - self._slots[0][0] > MINUTE_S + SLOT_S:
            self._slots.popleft()
