"""`examples/trace.csv`: the trace of the documentation's commands, drawn from a seed for the clients of `examples/quickstart.yaml`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from evenkeel_simulator.traffic.traces import BLOCK_TOKENS, COLUMNS

SEED: Final = 1
DURATION_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Habit:
    """How a client sends. Its conversations begin at Poisson times between `start_s` and `stop_s`."""

    client: str
    per_minute: float
    """Conversations."""
    system_tokens: int
    """At the begin of every prompt of the client."""
    turn_tokens: int
    """Mean, as is `output_tokens`; both are exponential."""
    output_tokens: int
    turns: int = 1
    pause_s: float = 20.0
    """Mean time between two turns."""
    start_s: float = 0.0
    stop_s: float = DURATION_S


HABITS: Final = (
    Habit("default/ads/chat", 8, 1024, 150, 200, turns=3),
    Habit("default/ads/batch", 10, 512, 1200, 120),
    Habit("default/search/rerank", 18, 2048, 300, 24),
    Habit("default/support/agent", 3, 3072, 400, 250, turns=5, pause_s=12),
    Habit("default/research/notebook", 400, 0, 2500, 400, start_s=120, stop_s=150),  # a flood
)


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the trace."""
    rng, ids = Random(SEED), count()
    rows = sorted(row for habit in HABITS for row in _rows(habit, rng, ids))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*COLUMNS, "hash_ids"))
    for arrival_s, client, tokens, output, blocks in rows:
        writer.writerow((client, f"{arrival_s:.2f}", tokens, output, " ".join(map(str, blocks))))
    yield "../examples/trace.csv", file.getvalue()


def _rows(
    habit: Habit, rng: Random, ids: Iterator[int]
) -> Iterator[tuple[float, str, int, int, Sequence[int]]]:
    """Arrival, client, input tokens, output tokens, ids of blocks."""
    system = [next(ids) for _ in range(habit.system_tokens // BLOCK_TOKENS)]
    begin_s = habit.start_s
    while (begin_s := begin_s + rng.expovariate(habit.per_minute / 60)) < habit.stop_s:
        arrival_s, tokens, blocks = begin_s, habit.system_tokens, list(system)
        for _ in range(habit.turns):
            tokens += 1 + round(rng.expovariate(1 / habit.turn_tokens))
            output = 1 + round(rng.expovariate(1 / habit.output_tokens))
            whole, rest = divmod(tokens, BLOCK_TOKENS)
            blocks += [next(ids) for _ in range(whole - len(blocks))]
            last = [next(ids)] if rest else []  # a partial block is no prefix of the next turn's
            yield arrival_s, habit.client, tokens, output, (*blocks, *last)
            tokens += output  # the next turn's prompt has the answer
            arrival_s += rng.expovariate(1 / habit.pause_s)
