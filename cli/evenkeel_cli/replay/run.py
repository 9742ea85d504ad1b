"""Sends the programs of a trace at their arrival times.

A program starts at its time, whether earlier ones have ended or not. Within a program, a call waits for the calls that
it depends on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Program

from evenkeel_cli.replay.sender import Answer, Question

_TEXT: Final = (
    "all and any are ask bad bag bed big bit box boy bus but buy can car cat cut day did dog dry eat "
    "egg end eye far few fit fly for fox fun get god got guy had has hat her him his hit hot how ice "
    "its job key kid law lay leg let lie lot low man map may men met mix new nor not now off oil old "
    "one our out own pay per put ran red row run sat saw say sea see set she sit six sky son sun "
    "tax tea ten the tie too top try two use war was way who why win yes yet you"
)
WORDS: Final = tuple(f" {word}" for word in _TEXT.split())


def prompt_of(call: Call, unique: str, *, seed: int = 0) -> str:
    """The text of a call. `unique` decides the part that the trace does not share, and `seed` the whole text."""
    parts = [_block((seed, segment.key), segment.tokens) for segment in call.prompt]
    rest = call.input_tokens - sum(segment.tokens for segment in call.prompt)
    if rest > 0:
        parts.append(_words((seed, "rest of", unique), rest))
    return "".join(parts)


@lru_cache(maxsize=8192)  # 512 words are 2 KiB: at most 16 MiB
def _block(key: Hashable, tokens: int) -> str:
    return _words(key, tokens)


def _words(key: Hashable, count: int) -> str:
    return "".join(Random(repr(key)).choices(WORDS, k=count))


Send = Callable[[Question], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one call of a program."""

    program: str
    number: int
    client: str
    due_s: float
    """The time at which the call should be sent, in seconds since the run began, like all times here."""
    answer: Answer

    def record(self) -> Record:
        """A record for the measures of `evenkeel simulate`. Latencies count from the actual sending."""
        answer = self.answer
        finished, error = answer.error is None, answer.error or ""
        failed = "rejected" if error.isdecimal() and error[0] == "4" else "failed"
        return Record(
            id=f"{self.program}.{self.number}",
            program=self.program,
            client=self.client,
            replica=-1,
            status="finished" if finished else failed,
            arrival_s=answer.sent_s,
            admitted_s=None,
            first_token_s=answer.first_token_s if finished else None,
            finished_s=answer.ended_s if finished else None,
            input_tokens=answer.input_tokens,
            cached_tokens=answer.cached_tokens,
            extend_tokens=answer.input_tokens - answer.cached_tokens,
            output_tokens=answer.output_tokens,
            retractions=0,
        )


class Replay:
    """One replay. `seed` decides the texts. `outcomes` grows as calls end, so an interrupted run has results too."""

    def __init__(
        self,
        *,
        send: Send,
        now: Callable[[], float],
        max_concurrency: int = 0,
        seed: int = 0,
        on_outcome: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.in_flight = 0
        self._send = send
        self._now = now
        self._seed = seed
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
        self._on_outcome = on_outcome

    async def run(self, programs: Iterable[Program]) -> None:
        """Send all calls and wait for the last one. A cancellation aborts the calls in flight."""
        async with asyncio.TaskGroup() as group:
            for program in programs:
                delay_s = program.arrival_s - self._now()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                group.create_task(self._program(program))

    async def _program(self, program: Program) -> None:
        ended = [asyncio.Event() for _ in program.calls]
        async with asyncio.TaskGroup() as group:
            for number in range(len(program.calls)):
                group.create_task(self._call(program, number, ended))

    async def _call(self, program: Program, number: int, ended: list[asyncio.Event]) -> None:
        call = program.calls[number]
        for parent in call.after:
            await ended[parent].wait()
        due_s = self._now() if call.after else program.arrival_s
        question = Question(
            client=program.client,
            prompt=prompt_of(call, f"{program.id}.{number}", seed=self._seed),
            max_tokens=call.output_tokens,
        )
        async with self._slots:
            answer = await self._counted(question)
        outcome = Outcome(
            program=program.id, number=number, client=program.client, due_s=due_s, answer=answer
        )
        self.outcomes.append(outcome)
        self._on_outcome(outcome)
        ended[number].set()

    async def _counted(self, question: Question) -> Answer:
        self.in_flight += 1
        try:
            return await self._send(question)
        finally:
            self.in_flight -= 1
