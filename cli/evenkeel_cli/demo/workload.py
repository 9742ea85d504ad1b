"""The flood: three ordinary clients, and one that sends ten times as much. Pure; fixed before measuring.

Why these numbers. A replica of profile `a10g-llama2-7b` serves about six such requests a second (a decode
step takes about 80 ms with its pool full, an answer 64 of them, and about 35 requests run at once), a fleet
of three about eighteen. An ordinary client sends 2 a second, less than half of its quarter; all three
together would leave two thirds of the fleet idle. The flood sends 20 a second, more than the whole fleet can
serve. Every client has four prompts of 512 tokens that begin its requests, as system prompts do.

Q^u is 1000 weighted tokens, half a second of such a replica's service: how long a client that has got ahead may
keep others waiting. The default of 8000 is meant for replicas of ten times the speed; here it stands for four
seconds, and shows in the p99.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.experiments.workload import Call, Program

CLIENT_QUANTUM: Final = 1000
FLOOD: Final = "flood"
ORDINARY: Final = ("ada", "ben", "cleo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Everything that decides the load."""

    duration_s: float = 35.0
    """How long requests arrive."""
    ordinary_per_s: float = 2.0
    """Requests per second of each ordinary client; arrivals are Poisson."""
    flood_factor: float = 10.0
    """The flood's rate over an ordinary client's; 0: no flood."""
    prefixes: int = 4
    """Prompts that begin a client's requests, equally likely."""
    prefix_tokens: int = 512
    question_tokens: tuple[int, int] = (32, 160)
    """What differs between requests: uniform, both ends included."""
    answer_tokens: tuple[int, int] = (32, 96)
    seed: int = 7

    def programs(self) -> list[Program]:
        """The load, in the order of arrival; the same for equal fields."""
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


def ordinary(names: Sequence[str]) -> list[str]:
    """The clients of a run that behave."""
    return [name for name in names if name != FLOOD]
