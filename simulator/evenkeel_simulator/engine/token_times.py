"""When each output token of each request was made, for measures that need more than a mean speed (QoE).

All running requests get a token at the end of each decode step. So the ends of steps are kept once per engine, and a request keeps
only from which step to which it ran.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from evenkeel_simulator.engine.request import EngineRequest


class TokenTimes:
    """One engine's decode steps, and the parts of them in which each request ran. Memory: 8 bytes per step."""

    def __init__(self) -> None:
        self._ends_s = array("d")
        self._parts: dict[EngineRequest, list[tuple[float, int, int | None]]] = {}
        """Request → (time of the token at the end of a prefill, first step afterwards, step at which it left the batch)."""

    def decoded(self, durations_s: Sequence[float], end_s: float) -> None:
        """Add the ends of consecutive decode steps, the last of which ended at `end_s`."""
        start_s = end_s - sum(durations_s)
        self._ends_s.extend(list(accumulate(durations_s, initial=start_s))[1:])

    def begins(self, request: EngineRequest, now_s: float) -> None:
        """Add a request to the batch; its prefill made a token at `now_s`."""
        self._parts.setdefault(request, []).append((now_s, len(self._ends_s), None))

    def pauses(self, request: EngineRequest) -> None:
        """Note that a request left the batch, for good or not."""
        token_s, first, _ = self._parts[request][-1]
        self._parts[request][-1] = (token_s, first, len(self._ends_s))

    def take(self, request: EngineRequest) -> list[float]:
        """The times of all its output tokens, ascending; it is forgotten."""
        times: list[float] = []
        for token_s, first, end in self._parts.pop(request, ()):
            times += [token_s, *self._ends_s[first:end]]
        return times
