"""The three workloads of the head to head, and the capacity of the engines for each. Pure, and in virtual time.

Two teams share two engines. `small` is the same in the first two workloads: people who send a short request now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Final

from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.generators import Chat, ProgramSpec, Single
from evenkeel_laboratory.experiments.setup import Setup
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Client, Program, Workload

from bench.versus.policies import WeightedScores

SMALL: Final = "small"
BIG: Final = "big"
TEAMS: Final = (SMALL, BIG)
ENGINES: Final = 2
PROFILE: Final = "a10g-llama2-7b"
"""The only profile whose every figure is measured; its pool of 10,000 tokens holds about ten requests."""
HALF_LOAD: Final = "half-load"
MINUTE_S: Final = 60.0
_WORKERS: Final = 64
"""Workers that keep the engines busy while the capacity for a crowd that comes at a rate is measured."""
_CALLS: Final = 24
"""Least calls of each worker then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Clients of one team. They come at a rate, or are so many that each sends its next program when its last one ended."""

    team: str
    program: ProgramSpec
    rate_per_s: float = 0.0
    """Programs per second, Poisson."""
    workers: int = 0
    pause_s: float = 0.0
    """Mean of a worker's pause before each call: the time that an agent's tools take. Exponential."""

    def arrivals(self, until_s: float, seed: int) -> Iterator[Program]:
        """Programs that come at the rate, in order."""
        rng = Random(f"{seed} {self.team} arrivals")
        at_s, number = 0.0, 0
        while self.rate_per_s and (at_s := at_s + rng.expovariate(self.rate_per_s)) < until_s:
            yield self._program(f"{self.team}-{number}", at_s, seed)
            number += 1

    def of_worker(self, worker: int, seed: int) -> Iterator[Program]:
        """The programs of one worker, one after the other, without end."""
        number = 0
        while True:
            yield self._program(f"{self.team}-{worker}.{number}", 0.0, seed)
            number += 1

    def _program(self, name: str, at_s: float, seed: int) -> Program:
        calls = self.program.calls(name, self.team, Random(f"{seed} {name}"))
        return Program(name, self.team, at_s, calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload. The first crowd is the one that loads the engines."""

    title: str
    about: str
    crowds: tuple[Crowd, ...]
    weights: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TEAMS, 1))

    def share(self, team: str) -> float:
        """The part of the service that a team is owed while both teams wait."""
        return self.weights[team] / sum(self.weights.values())

    def clients(self) -> dict[str, Client]:
        """The teams with their weights, for the verdict."""
        return {
            team: Client(team, f"versus/{team}", tenant_weight=weight)
            for team, weight in self.weights.items()
        }


_PEOPLE: Final = Crowd(
    team=SMALL,
    program=Single(input_tokens=600, prefix_tokens=400, output_tokens=40, spread=0.5),
    rate_per_s=0.8,
)
_BATCH: Final = Single(input_tokens=1000, prefix_tokens=400, output_tokens=96, spread=0.3)
CASES: Final[Mapping[str, Case]] = {
    "flood": Case(
        title="a flood",
        about="Team big keeps 64 requests of about 1,000 input and 96 output tokens open. Team small sends 0.8 requests/s "
        "of about 600 and 40 tokens. Weights 1:1.",
        crowds=(Crowd(team=BIG, program=_BATCH, workers=64), _PEOPLE),
    ),
    "swarm": Case(
        title="a swarm of agents",
        about="Team big runs 32 agents. An agent's conversation has 12 calls: 800 tokens that all agents share, 120 more "
        "tokens with each call, and answers of 60 tokens. Its tools take half a second before each call. Team small sends as in the "
        "flood. Weights 1:1.",
        crowds=(
            Crowd(
                team=BIG,
                program=Chat(system_tokens=800, turns=12, turn_tokens=120, output_tokens=60),
                workers=32,
                pause_s=0.5,
            ),
            _PEOPLE,
        ),
    ),
    HALF_LOAD: Case(
        title="two unequal teams at half load",
        about="Team big has weight 4 and asks for a tenth of the capacity. Team small has weight 1 and asks for four tenths, twice "
        "its share. All send requests of about 1,000 input and 96 output tokens.",
        crowds=(
            Crowd(team=SMALL, program=_BATCH, rate_per_s=1.6),
            Crowd(team=BIG, program=_BATCH, rate_per_s=0.4),
        ),
        weights={SMALL: 1, BIG: 4},
    ),
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What both engines serve when nothing waits for the clients."""

    tokens_per_min: float
    """Input and output tokens, cached or not: what limits of tokens count."""
    requests_per_s: float


@cache
def capacity(name: str) -> Capacity:
    """The capacity for the first crowd's requests alone, first come, first served, in virtual time: the middle half of a run."""
    crowd = CASES[name].crowds[0]
    profile = PROFILES[PROFILE]
    setup = Setup(profile=profile, replicas=ENGINES, replica_policy="FCFS", engine=EngineConfig())
    config = replace(setup.fleet(), fleet_policy=WeightedScores(profile.kv_tokens))
    work = [_chained(crowd, worker) for worker in range(crowd.workers or _WORKERS)]
    records: list[Record] = []
    end_s = Fleet(config, records.append).run(Workload(name, work))
    begin_s, until_s = end_s / 4, end_s * 3 / 4
    ended = [one for one in records if one.finished_s and begin_s < one.finished_s < until_s]
    tokens = sum(one.input_tokens + one.output_tokens for one in ended)
    return Capacity(tokens / (until_s - begin_s) * MINUTE_S, len(ended) / (until_s - begin_s))


def _chained(crowd: Crowd, worker: int) -> Program:
    """What one worker sends, as one program: a call begins when the one before it ended, without pauses."""
    calls: list[Call] = []
    programs = crowd.of_worker(worker, 0)
    while len(calls) < _CALLS:
        for call in next(programs).calls:
            calls.append(replace(call, after=(len(calls) - 1,) if calls else ()))
    return Program(f"{crowd.team}-{worker}", crowd.team, 0.0, tuple(calls))
