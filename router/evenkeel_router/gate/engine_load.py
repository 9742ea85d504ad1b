"""What engines report of their queue and batch at `/metrics`, and how many requests may be at one by it (R12). Pure.

| | requests that wait | requests that run | part of the memory in use |
|---|---|---|---|
| vLLM | `vllm:num_requests_waiting` | `vllm:num_requests_running` | `vllm:kv_cache_usage_perc` |
| SGLang | `sglang:num_queue_reqs` | `sglang:num_running_reqs` | `sglang:token_usage` |

Two limits follow. `limit` counts requests of all routers at the engine, in its queue and in its batch. `unanswered` counts those of them
whose streams have not begun: a queue shows there at once, and there are more of them the longer a request takes to reach the engine.

| a reading says               | `limit`                                                 | `unanswered`                      |
|------------------------------|---------------------------------------------------------|-----------------------------------|
| the first one of a process   | as many as run and `QUEUE`, at least `FIRST`            | `QUEUE`                           |
| none waits, others held up   | twice; an eighth more once `QUEUE` waited; not if memory is full | twice; one more once `QUEUE` waited |
| `QUEUE` wait                 | the same                                                | a quarter less, at least `QUEUE`  |
| more than `QUEUE` wait       | as many as run and `QUEUE`, at most a quarter less      | the same way                      |

The figures are claims (R18): they count up to `MOST_REPORTED`, and the limits grow up to `LARGEST_BATCH`. Otherwise one engine's
page could let every request of one client through its gate.

SGLang renews its figures with each prefill, and otherwise only every 40 decode steps. So a reading may be old, and one reading alone
never cuts a limit by more than a quarter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

QUEUE: Final = 2.0
"""Requests that may wait in the engine: it fills a place in its batch without asking the router."""
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


@dataclass(slots=True, eq=False)
class EngineLimit:
    """How many requests of all routers may be at one process of an engine."""

    limit: float = 0.0
    """Requests that may be at the engine; 0 before the first reading."""
    unanswered: float = QUEUE
    load: EngineLoad | None = None
    """The last reading; None: there is none, or it is too old."""
    _slow_start: bool = True

    def lost(self) -> None:
        """The engine does not answer any more: until it does, latency alone shows how busy it is."""
        self.load = None

    def read(self, load: EngineLoad, *, begun: int, held_up: bool, streams_held_up: bool) -> None:
        """Take a reading.

        `begun`: streams of this router that run, as it sees them. `held_up`: requests wait for `limit`; `streams_held_up`: for
        `unanswered`.
        """
        self.load = load
        taken = max(load.running, begun) + QUEUE
        if not self.limit:
            self.limit = min(max(FIRST, taken), LARGEST_BATCH)
            return
        if load.waiting >= QUEUE:
            self._slow_start = False
            self.unanswered = max(QUEUE, LEAST_KEPT * self.unanswered)
        if load.waiting > QUEUE:
            self.limit = max(FIRST, LEAST_KEPT * self.limit, min(self.limit, taken))
        elif not load.waiting:
            if held_up and load.usage < FULL:
                self.limit *= 2 if self._slow_start else GROWTH
            if streams_held_up:
                self.unanswered += self.unanswered if self._slow_start else 1
        self.limit = min(self.limit, LARGEST_BATCH)
        self.unanswered = min(self.unanswered, LARGEST_BATCH)
