"""What clients were given over what they were owed in the last minute: the figures behind every verdict (design §7).

Routers add a moment with each round of reports, experiments and replays one for each second of their records. Both judge by the same
rule: a client counts if it waited for at least half of the window. Otherwise a client whose requests wait for a second now and then
would be judged by those seconds alone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 60.0
"""Window over which shares are compared: the duration of a few long requests."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of a short time."""

    at_s: float
    competed: Mapping[str, tuple[float, float]]
    """Client → (owed service, service) since the previous moment, for clients that waited throughout."""
    total: float = 0.0
    """Service of the whole fleet until now."""
    idle_s: float = 0.0
    """Seconds since the previous moment in which a replica was empty while requests waited at another (`idle.IdleReplicas`)."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A client that was given more than it was owed: parts, 0 to 1, of what the clients that waited were given together."""

    given: float
    owed: float


@dataclass(frozen=True, slots=True)
class WindowShares:
    """Who lost and who took in a window."""

    given_over_owed: Mapping[str, float] = field(default_factory=dict)
    """Client → service over owed service, for clients that waited for at least half of the window."""
    took: Mapping[str, Taken] = field(default_factory=dict)
    """Client → what it took, for clients that were given more than they were owed, the largest surplus first."""
    idle_s: float = 0.0
    """Seconds of the window in which a replica was empty while requests waited at another."""

    @property
    def least(self) -> float:
        """The least of `given_over_owed`; 1 without a client."""
        return min(self.given_over_owed.values(), default=1.0)


@dataclass(slots=True)
class _Sums:
    """One client within the window."""

    owed: float = 0.0
    given: float = 0.0
    times: int = 0


class Window:
    """Moments of the last `WINDOW_S`."""

    def __init__(self) -> None:
        self.moments: deque[Moment] = deque()
        """Moments in the order of time; the first one ends the time before the window."""
        self._sums: defaultdict[str, _Sums] = defaultdict(_Sums)

    @property
    def span_s(self) -> float:
        """Length of the window, seconds."""
        return self.moments[-1].at_s - self.moments[0].at_s if self.moments else 0.0

    def add(self, moment: Moment) -> None:
        """Advance the window to this moment."""
        self.moments.append(moment)
        for client, (owed, given) in moment.competed.items():
            sums = self._sums[client]
            sums.owed += owed
            sums.given += given
            sums.times += 1
        while len(self.moments) > 2 and moment.at_s - self.moments[1].at_s >= WINDOW_S:
            self.moments.popleft()
            # The figures of the first moment belong to the time before it, so before the window.
            for client, (owed, given) in self.moments[0].competed.items():
                sums = self._sums[client]
                sums.owed -= owed
                sums.given -= given
                sums.times -= 1
                if not sums.times:
                    del self._sums[client]

    def shares(self) -> WindowShares:
        """Who lost and who took."""
        least = (len(self.moments) - 1) / 2
        owed = {client: sums for client, sums in self._sums.items() if sums.owed > 0}
        surplus = {client: sums.given - sums.owed for client, sums in owed.items()}
        took = sorted((client for client in owed if surplus[client] > 0), key=surplus.__getitem__)
        # What was owed is what was given: both sums are of the same service.
        whole = max(sum([sums.given for sums in owed.values()]), 1e-9)
        return WindowShares(
            given_over_owed={
                client: max(0.0, sums.given / sums.owed)
                for client, sums in owed.items()
                if sums.times >= least
            },
            took={
                client: Taken(owed[client].given / whole, owed[client].owed / whole)
                for client in reversed(took)
            },
            idle_s=sum([moment.idle_s for moment in [*self.moments][1:]]),
        )
