"""The load of the demo: three ordinary clients, and a flood that sends ten times as much. Pure.

The figures were chosen before the first measurement. A replica of profile `a10g-llama2-7b` serves about six of these
requests per second: a decode step takes about 80 ms with a full pool, an answer takes 64 steps, and about 35 requests
run at once. Three replicas serve about eighteen. An ordinary client sends 2 per second, less than half of a quarter of
that. The flood sends 20 per second, more than the whole fleet can serve. The requests of a client begin with one of
four prompts of 512 tokens, like system prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.experiments.workload import Call, Program

FLOOD: Final = "flood"
ORDINARY: Final = ("ada", "ben", "cleo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """The parameters of the load."""

    duration_s: float = 35.0
    """How long requests arrive."""
    ordinary_per_s: float = 2.0
    """Requests per second of each ordinary client; arrivals are Poisson."""
    flood_factor: float = 10.0
    """The rate of the flood over that of an ordinary client; 0: no flood."""
    prefixes: int = 4
    """Number of prompts that begin a client's requests, equally likely."""
    prefix_tokens: int = 512
    question_tokens: tuple[int, int] = (32, 160)
    """The part that differs between requests: uniform, both ends included."""
    answer_tokens: tuple[int, int] = (32, 96)
    seed: int = 7

    def programs(self) -> list[Program]:
        """The requests in the order of arrival; equal parameters give equal requests."""
        rates = {name: self.ordinary_per_s for name in ORDINARY}
        rates[FLOOD] = self.ordinary_per_s * self.flood_factor
        found = [program for name in rates for program in self._client(name, rates[name])]
        return sorted(found, key=lambda program: program.arrival_s)

    def _client(self, name: str, per_s: float) -> Iterator[Program]:
        rng = Random(f"{self.seed} {name}")
        arrival_s = 0.0
        for number in count():
            if per_s <= 0:
                return
            arrival_s += rng.expovariate(per_s)
            if arrival_s >= self.duration_s:
                return
            yield Program(f"{name}-{number}", name, arrival_s, (self._call(name, rng),))

    def _call(self, name: str, rng: Random) -> Call:
        prefix = Segment((name, rng.randrange(self.prefixes)), self.prefix_tokens)
        answer = rng.randint(*self.answer_tokens)
        return Call(
            input_tokens=self.prefix_tokens + rng.randint(*self.question_tokens),
            output_tokens=answer,
            max_output_tokens=answer,
            prompt=(prefix,),
        )
