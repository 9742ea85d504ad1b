"""The rules of the contenders that are rules only: routing by prefix and queue, queues in turns, limits per key. Pure.

The head to head sends by them itself, so that they cost no process and no hop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, Usage, slots_of

PREFIX_WEIGHT: Final = 3.0
QUEUE_WEIGHT: Final = 2.0
MEMORY_WEIGHT: Final = 2.0
"""Weights of prefix-cache-scorer, queue-scorer and kv-cache-utilization-scorer in llm-d's example configurations."""
CONCURRENCY: Final = 15
"""Requests that an engine holds before the queues fill: `maxConcurrency` in the example of llm-d's page on flow control, for a batch of
ten and a queue of five. The batches here are of about that size."""
FEW: Final = 8
"""About what the engines' memory holds of the agents' requests."""

Item = TypeVar("Item")


class WeightedScores(FleetPolicy):
    """llm-d's sum: 3 · cached part of the prompt + 2 · queue score + 2 · free part of the KV pool. The highest; of equal ones the one
    with fewer open requests, then the lower slot.

    The queue score is 1 for the shortest queue, 0 for the longest, and 1 for all if they are equal. The scheduler reads queues and
    pools from the engines' metrics; here they are the open requests and their input tokens.
    """

    name: ClassVar[str] = "WeightedScores"
    matches_prefix: ClassVar[bool] = True

    def __init__(self, pool_tokens: int) -> None:
        self._pool_tokens = pool_tokens
        self._open_tokens: Counter[int] = Counter()
        """Input tokens of open requests by slot."""

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        slots = list(slots_of(routable))
        loads = [outstanding[slot] for slot in slots]
        high, low = max(loads), min(loads)

        def score(slot: int) -> tuple[float, int]:
            queue = (high - outstanding[slot]) / (high - low) if high > low else 1.0
            held = request.longest >> slot & 1
            matched = request.matched_tokens if held else request.matched_at(slot)
            prefix = matched / max(1, request.input_tokens)
            free = max(0.0, 1.0 - self._open_tokens[slot] / self._pool_tokens)
            together = PREFIX_WEIGHT * prefix + QUEUE_WEIGHT * queue + MEMORY_WEIGHT * free
            return together, -outstanding[slot]

        return max(slots, key=score)

    def dispatched(self, request: Dispatch, slot: int) -> None:
        self._open_tokens[slot] += request.input_tokens

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        self._open_tokens[slot] -= request.input_tokens


class TurnQueues(Generic[Item]):
    """A queue for each team, served in turns, a request each: llm-d's `round-robin-fairness-policy` with first come, first served in
    a queue. While fewer than `places` requests are at the engines, the next one goes (its concurrency detector)."""

    def __init__(self, places: int) -> None:
        """Raises `ValueError` without a place."""
        if places < 1:
            raise ValueError(f"places is {places}, must be at least 1")
        self._free = places
        self._queues: dict[str, deque[Item]] = {}
        """Teams with waiting requests; the first is next."""

    def arrive(self, team: str, item: Item) -> None:
        """A request waits. A team that had none comes last."""
        self._queues.setdefault(team, deque()).append(item)

    def next(self) -> Item | None:
        """The request that goes to an engine now; None: none waits, or no place is free."""
        if not self._free or not self._queues:
            return None
        team = next(iter(self._queues))
        queue = self._queues.pop(team)
        item = queue.popleft()
        if queue:
            self._queues[team] = queue
        self._free -= 1
        return item

    def ended(self) -> None:
        """A request left its engine."""
        self._free += 1


class KeyLimits:
    """Tokens per window of each key, counted when an answer ends, input and output, cached or not; windows of fixed length.

    As gateways count: a key under its limit may send, however many of its requests still run.
    """

    def __init__(self, limits: Mapping[str, float], *, window_s: float = 60.0) -> None:
        self._limits = limits
        self._window_s = window_s
        self._window = 0
        self._used: Counter[str] = Counter()

    def admits(self, team: str, now_s: float) -> bool:
        """Whether the team may send a request now."""
        self._turn(now_s)
        return self._used[team] < self._limits[team]

    def count(self, team: str, tokens: int, now_s: float) -> None:
        """An answer ended."""
        self._turn(now_s)
        self._used[team] += tokens

    def _turn(self, now_s: float) -> None:
        window = int(now_s / self._window_s)
        if window != self._window:
            self._window = window
            self._used.clear()


def backoff_s(refusals: int, jitter: float) -> float:
    """The wait of a client that was refused so many times: from half a second, doubling, up to 8 s, less up to a quarter (`jitter`, 0 to
    1), as OpenAI's client waits. Unlike that client it does not give up."""
    return min(8.0, 0.5 * 2.0 ** min(refusals - 1, 8)) * (1 - jitter / 4)
