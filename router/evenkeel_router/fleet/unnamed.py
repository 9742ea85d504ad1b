"""The share of a replica's requests that came without a readable client key (design R12).

Routers send a key with each request. So requests without one come past the routers, or a part of the engine loses the key. All of
them are one client's for the policy, which is then not fair among their senders.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 60.0
LONGEST_WINDOW_S: Final = 600.0
"""A window goes on up to this time until it has enough requests."""
ENOUGH: Final = 20
"""Requests below which a window says nothing."""
RISES_AT, FALLS_AT = 0.03, 0.01


class UnnamedShare:
    """The share at one replica, from the totals of its reports, one window after another."""

    def __init__(self) -> None:
        self.share = 0.0
        """The share in the last window. 0 until a window has more than `RISES_AT`, and again after one with less than `FALLS_AT`."""
        self._incarnation = ""
        self._began_s = 0.0
        self._before = (0, 0)

    def take(self, incarnation: str, *, requests: int, unnamed: int, now_s: float) -> None:
        """The totals of a report: all requests, and those without a key."""
        if incarnation != self._incarnation:
            self.share, self._incarnation = 0.0, incarnation
            self._began_s, self._before = now_s, (requests, unnamed)
            return
        new = requests - self._before[0]
        window_s = now_s - self._began_s
        if window_s < WINDOW_S or (new < ENOUGH and window_s < LONGEST_WINDOW_S):
            return
        share = (unnamed - self._before[1]) / new if new >= ENOUGH else 0.0
        self.share = share if share > (FALLS_AT if self.share else RISES_AT) else 0.0
        self._began_s, self._before = now_s, (requests, unnamed)
