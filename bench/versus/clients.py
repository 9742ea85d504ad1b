"""The clients of both teams: they send a workload through one contender, and note what they saw.

A refused request is sent again (`policies.backoff_s`) until it is served or the run ends, and counts from its first sending. An agent
whose request failed goes on with its next call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from evenkeel_cli.replay.run import prompt_of
from evenkeel_cli.replay.sender import Answer, Question
from evenkeel_simulator.traffic.workload import Program

from bench.versus.contenders import REFUSED, Clock, Send
from bench.versus.policies import backoff_s
from bench.versus.workloads import Case, Crowd

AGAIN: Final = (REFUSED, "connection")
"""Errors after which a client tries again, as OpenAI's does: also where a server closed an idle connection at that moment."""


class Seen(NamedTuple):
    """One request, as its client saw it. Seconds since the run began; a row of the raw data."""

    id: str
    team: str
    sent_s: float
    """Time of the first attempt, seconds."""
    first_token_s: float | None
    ended_s: float | None
    """None: it had not ended when the run did."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    refusals: int
    error: str
    """Empty for a complete answer, and for one that had not ended."""


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    sent_s: float
    refusals: int = 0


@dataclass(slots=True)
class Run:
    """One contender under one workload. `seen` grows as requests end; those that did not come last."""

    case: Case
    send: Send
    now: Clock
    seconds: float
    seed: int
    seen: list[Seen] = field(default_factory=list)
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)

    async def run(self) -> None:
        """Send until the time is over; then requests that run are cut."""
        tasks = [asyncio.create_task(self._crowd(crowd)) for crowd in self.case.crowds]
        try:
            left_s = self.seconds - self.now()
            await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Exception):
                raise found
        for (name, team), one in self._open.items():
            self.seen.append(Seen(name, team, one.sent_s, None, None, 0, 0, 0, one.refusals, ""))

    async def _crowd(self, crowd: Crowd) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in range(crowd.workers):
                group.create_task(self._worker(crowd, worker))
            for program in crowd.arrivals(self.seconds, self.seed):
                await asyncio.sleep(max(0.0, program.arrival_s - self.now()))
                group.create_task(self._program(program))

    async def _worker(self, crowd: Crowd, worker: int) -> None:
        rng = Random(f"{self.seed} {crowd.team} {worker} pauses")
        for program in crowd.of_worker(worker, self.seed):
            for number in range(len(program.calls)):
                if crowd.pause_s:
                    await asyncio.sleep(rng.expovariate(1 / crowd.pause_s))
                await self._call(program, number)

    async def _program(self, program: Program) -> None:
        for number in range(len(program.calls)):
            await self._call(program, number)

    async def _call(self, program: Program, number: int) -> None:
        call, name = program.calls[number], f"{program.id}.{number}"
        prompt = prompt_of(call, name, seed=self.seed)
        question = Question(client=program.client, prompt=prompt, max_tokens=call.output_tokens)
        key = name, program.client
        one = self._open[key] = _Open(self.now())
        rng = Random(f"{self.seed} {name} backoff")
        tries = 0
        while (answer := await self.send(question)).error in AGAIN:
            tries += 1
            one.refusals += answer.error == REFUSED
            await asyncio.sleep(backoff_s(tries, rng.random()))
        del self._open[key]
        self.seen.append(_row(key, one, answer))
        if answer.error is not None:
            await asyncio.sleep(backoff_s(1, rng.random()))


def _row(key: tuple[str, str], one: _Open, answer: Answer) -> Seen:
    return Seen(
        *key,
        sent_s=round(one.sent_s, 4),
        first_token_s=None if answer.first_token_s is None else round(answer.first_token_s, 4),
        ended_s=round(answer.ended_s, 4),
        input_tokens=answer.input_tokens,
        cached_tokens=answer.cached_tokens,
        output_tokens=answer.output_tokens,
        refusals=one.refusals,
        error=answer.error or "",
    )
