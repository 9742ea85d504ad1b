"""What engines report of their queue and batch at `/metrics`, and how many requests may be at one by it (R12). Pure.

| | requests that wait | requests that run | part of the memory in use |
|---|---|---|---|
| vLLM | `vllm:num_requests_waiting` | `vllm:num_requests_running` | `vllm:kv_cache_usage_perc` |
| SGLang | `sglang:num_queue_reqs` | `sglang:num_running_reqs` | `sglang:token_usage` |

Two limits follow. `limit` counts requests of all routers at the engine, in its queue and in its batch. `unanswered` counts those of them
whose streams have not begun: a queue shows there at once, and there are more of them the longer a request takes to reach the engine.

| a reading says               | `limit`                                                 | `unanswered`                      |
|------------------------------|---------------------------------------------------------|-----------------------------------|
| the first one of a process   | as many as run and their queue, at least `FIRST`        | `QUEUE`                           |
| none waits, others held up   | twice; an eighth more once `QUEUE` waited; not if memory is full | twice; one more once `QUEUE` waited |
| `QUEUE` wait                 | the same                                                | a quarter less, at least `QUEUE`  |
| none waits or is held up here, but at other routers | as many as run and their queue, at most a quarter less | the same |
| more than `QUEUE` wait       | as many as run and their queue, at most a quarter less, at least `FIRST` | the same way     |
| the same, twice, at a small batch; once where it was full before | the same way, and `FIRST` is no bound |        |

The batch is the largest of the last `READINGS`. An engine fills a place at the begin of its next step, and reports between the steps: where
requests end in every step, most readings have a place less than the batch, and some have several.

The queue of a batch (`queue_of`) is a quarter of it, at most `QUEUE`. In a batch of two, one request that waits would already wait as
long as half of a request takes, whatever its client is owed. Beside long requests the place that the engine cannot fill by itself
costs little: it is free until the router sees the end of a request.

The limit of a small batch grows to find out whether the batch can. If that made a queue, the next attempt comes after twice as many
readings as before, from `FIRST_PAUSE` to `LONGEST_PAUSE`. A queue that another router made begins the pause anew: one attempt is enough for
all routers. The request of an attempt is one whose client has others waiting.

The figures are claims (R18): they count up to `MOST_REPORTED`, and the limits grow up to `LARGEST_BATCH`. Otherwise one engine's
page could let every request of one client through its gate.

SGLang renews its figures with each prefill, and otherwise only every 40 decode steps. So a reading may be old, and one reading alone
never cuts a limit by more than a quarter.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

QUEUE: Final = 2.0
"""Most requests that may wait in the engine: it fills a place in its batch without asking the router."""
QUEUE_PART: Final = 0.25
"""Part of the batch that may wait."""
READINGS: Final = 4
"""Readings, two seconds, whose largest batch is the engine's."""
FIRST_PAUSE: Final = 4
LONGEST_PAUSE: Final = 64
"""Readings from one attempt to use a larger batch to the next one, after one was in vain, and after many were."""
FIRST: Final = 4.0
LEAST_KEPT: Final = 0.75
GROWTH: Final = 1.125
FULL: Final = 0.95
"""Part of the memory from which on the batch cannot grow: vLLM and SGLang take running requests out of the batch when it is full."""
MOST_REPORTED: Final = 65_536.0
LARGEST_BATCH: Final = 8192.0
"""Most sequences at an engine. The largest batches of real ones have some thousands."""

_SAMPLE: Final = re.compile(
    rb"^(?:vllm:(?:num_requests_(waiting|running)|kv_cache_(usage)_perc)"
    rb"|sglang:(?:num_(queue|running)_reqs|token_(usage)))(\{[^}\n]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
_ONE_PRIORITY: Final = re.compile(rb'[{,]priority="[^"]')
"""The label of samples that count one priority: SGLang adds them to the sample of all."""
_WAITING: Final = (b"waiting", b"queue")


class EngineLoad(NamedTuple):
    """One reading."""

    running: float
    """Sequences that run."""
    waiting: float
    """Sequences that wait."""
    usage: float
    """Part of the memory for KV that is in use, from 0 to 1. The largest of several engines behind one port."""


def read_load(page: bytes) -> EngineLoad | None:
    """The load in a `/metrics` page in Prometheus' text format; None if it has no figures of a queue."""
    sums = {b"waiting": 0.0, b"running": 0.0}
    usage, found = 0.0, False
    for match in _SAMPLE.finditer(page):
        name = next(filter(None, match.groups()[:4]))
        if _ONE_PRIORITY.search(match[5] or b""):
            continue
        try:
            value = float(match[6])
        except ValueError:
            return None
        value = min(max(value, 0.0), MOST_REPORTED)
        if name == b"usage":
            usage = max(usage, min(value, 1.0))
        else:
            found |= name in _WAITING
            sums[b"waiting" if name in _WAITING else name] += value
    return EngineLoad(sums[b"running"], sums[b"waiting"], usage) if found else None


def queue_of(running: float) -> float:
    """Requests that may wait in an engine in which so many run."""
    return min(QUEUE, running * QUEUE_PART // 1)


@dataclass(slots=True, eq=False)
class EngineLimit:
    """How many requests of all routers may be at one process of an engine."""

    limit: float = 0.0
    """Requests that may be at the engine; 0 before the first reading."""
    unanswered: float = QUEUE
    load: EngineLoad | None = None
    """The last reading; None: there is none, or it is too old."""
    _slow_start: bool = True
    _waited: float = 0.0
    """Requests that waited at the last reading."""
    _ran: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    """Requests that ran at the last readings."""
    _full: float = 0.0
    """The batch when a small one was found to be full; 0: it was not, or more ran since."""
    _pause: int = 0
    """Readings until the limit of a small batch may grow."""
    _last_pause: int = 0
    _next_pause: int = FIRST_PAUSE

    def lost(self) -> None:
        """The engine does not answer any more: until it does, latency alone shows how busy it is."""
        self.load = None

    @property
    def known(self) -> float:
        """Requests that the engine is known to take: no more than before an attempt to use a larger batch."""
        return min(self.limit, self._full + queue_of(self._full)) if self._full else self.limit

    @property
    def is_small(self) -> bool:
        """Whether the batch is so small that one request more would wait long."""
        return queue_of(self.limit) < QUEUE

    def read(
        self,
        load: EngineLoad,
        *,
        begun: int,
        held_up: bool,
        streams_held_up: bool,
        others_wait: bool = False,
    ) -> None:
        """Take a reading.

        `begun`: streams of this router that run, as it sees them. `held_up`: requests wait for `limit`; `streams_held_up`: for
        `unanswered`. `others_wait`: requests wait at other routers, which know by that how large the batch is.
        """
        self.load = load
        self._ran.append(max(load.running, begun))
        running = max(self._ran)
        queue = queue_of(running)
        taken = running + queue
        waited, self._waited = self._waited, load.waiting
        if running > self._full:  # the batch is larger than it was
            self._full, self._pause, self._next_pause = 0.0, 0, FIRST_PAUSE
        if not self.limit:
            self.limit = min(max(FIRST, taken), LARGEST_BATCH)
            return
        if load.waiting >= QUEUE:
            self._slow_start = False
            self.unanswered = max(QUEUE, LEAST_KEPT * self.unanswered)
        # A request that waits may enter with the next step: one reading counts only where the batch was found to be full before.
        waits = load.waiting if self._full else min(load.waiting, waited)
        if queue < QUEUE and waits > queue:
            self._slow_start = False
            self._is_full(running)
            self.limit = max(1.0, LEAST_KEPT * self.limit, min(self.limit, taken))
        elif load.waiting > QUEUE:
            kept = max(FIRST, LEAST_KEPT * self.limit, taken)
            self.limit = min(self.limit, kept)
        elif not load.waiting:
            if held_up and load.usage < FULL and self._may_grow():
                self.limit *= 2 if self._slow_start else GROWTH
            elif others_wait and not held_up and queue < QUEUE:
                kept = max(1.0, LEAST_KEPT * self.limit, taken)
                self.limit = min(self.limit, kept)
            if streams_held_up:
                self.unanswered += self.unanswered if self._slow_start else 1
        self.limit = min(self.limit, LARGEST_BATCH)
        self.unanswered = min(self.unanswered, LARGEST_BATCH)

    def _is_full(self, running: float) -> None:
        """A request waits beside a small batch: an attempt was in vain. During the pause it was another router's, which counts too."""
        if not self._pause:
            self._last_pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        self._pause = self._last_pause
        self._full = running

    def _may_grow(self) -> bool:
        """Whether the limit may grow: not while the batch was full a short time ago."""
        if not self._pause:
            return True
        self._pause -= 1
        return False
