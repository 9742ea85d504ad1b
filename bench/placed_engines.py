"""Engines with a few places, at the router's seam to the network (R12): a batch, a queue by arrival, and `/metrics` as vLLM's.

An engine computes nothing and waits on the event loop's clock, so it runs in virtual time, too. With `step_s` requests begin and end
between the steps of an engine, as in a real one: it fills the free places from its queue, and a request that comes later waits for the
next step. What it reports is as of the end of a step.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from evenkeel_contract import routerconfig as rc
from evenkeel_router.fleet.probe import EngineSize, ProbeVerdict
from evenkeel_router.transport.upstream import (
    Exchange,
    Feed,
    IsOverdue,
    Outgoing,
    Passes,
    Reply,
    Sink,
    never_overdue,
)

HOST: Final = "127.0.0.1"
OUTPUT_TOKENS: Final = 8
FIRST_EVENTS: Final = b"".join(
    b'data: {"id":"1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":"a "}]}\n\n'
    for _ in range(OUTPUT_TOKENS)
)
"""What a request gets when it has a place: as many tokens as prove a replica that is new to a router."""
PROMPT_WORDS: Final = 512
USAGE: Final = {
    "prompt_tokens": PROMPT_WORDS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": PROMPT_WORDS + OUTPUT_TOKENS,
}
LAST_EVENTS: Final = (
    f'data: {{"id":"1","object":"text_completion","model":"tiny","choices":[],"usage":{json.dumps(USAGE)}}}\n\n'
    "data: [DONE]\n\n"
).encode()


@dataclass(slots=True)
class Engine:
    """An engine that computes a request for a random time, about `service_s`, once it has a place for it."""

    places: int
    service_s: float
    rng: Random
    step_s: float = 0.0
    """0: places are filled at any time."""
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    finished_s: float = 0.0
    """Time of places that was used, of requests that ended."""
    reported: tuple[int, int] = (0, 0)
    """Requests that run and wait, as of the end of the last step."""
    _steps: bool = False

    async def place(self) -> None:
        """Wait for a place in the order of arrival."""
        if self.running < self.places and not self.step_s:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        if self.step_s and not self._steps:
            self._steps = True
            self._await_step()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """A place is free: the next one gets it."""
        self.running -= 1
        if self.step_s:
            asyncio.get_running_loop().call_soon(
                self._fill
            )  # after the others that end with this step
        else:
            self._fill()

    def _fill(self) -> None:
        self.reported = self.running, self.queue
        while self.waiting and self.running < self.places:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.running += 1

    def _await_step(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at((round(loop.time() / self.step_s) + 1) * self.step_s, self._step)

    def _step(self) -> None:
        self._fill()
        self._steps = bool(self.running or self.waiting)
        if self._steps:
            self._await_step()

    @property
    def queue(self) -> int:
        """Requests that wait inside the engine."""
        return sum(not turn.done() for turn in self.waiting)

    def time_s(self) -> float:
        """How long the next request takes."""
        seconds = self.service_s * self.rng.uniform(0.5, 1.5)
        return max(1, round(seconds / self.step_s)) * self.step_s if self.step_s else seconds

    def page(self) -> bytes:
        """`/metrics`."""
        running, waiting = self.reported if self.step_s else (self.running, self.queue)
        return (
            f"vllm:num_requests_running {running}\n"
            f"vllm:num_requests_waiting {waiting}\n"
            "vllm:kv_cache_usage_perc 0.5\n"
        ).encode()


@dataclass(slots=True)
class _Stream:
    """The answer to one request: it begins at once, and ends when its time is over."""

    engine: Engine
    takes_s: float
    status: int = 200
    content_type: str = "text/event-stream"
    retry_after: str = ""
    metadata: str = ""
    body: None = None
    _began: bool = False

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        if not self._began:
            self._began = True
            feed(FIRST_EVENTS, False)
        await asyncio.sleep(self.takes_s)
        self.engine.finished_s += self.takes_s
        feed(LAST_EVENTS, True)
        return True

    def splice(self, passes: Passes, client: Sink) -> None:
        return None

    def begun(self) -> None:
        return None

    def hold(self) -> None:
        return None


@dataclass(slots=True)
class _Exchange:
    engine: Engine
    _has_place: bool = False

    async def ask(
        self, request: Outgoing, *, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> Reply:
        await self.engine.place()
        self._has_place = True
        return _Stream(self.engine, self.engine.time_s())

    def break_off(self) -> bool:
        return False

    def close(self) -> None:
        if self._has_place:
            self._has_place = False
            self.engine.leave()


@dataclass(slots=True)
class Engines:
    """All engines, at the seam to the network: what sends requests to them, and what asks whether they are ready."""

    by_name: dict[str, Engine]

    def pooled(self, replica: rc.ReplicaConfig) -> Exchange | None:
        return None

    async def connect(self, replica: rc.ReplicaConfig) -> Exchange:
        return _Exchange(self.by_name[replica.name])

    async def probe(self, replica: rc.ReplicaConfig) -> ProbeVerdict:
        return ProbeVerdict.READY

    def refusal(self, replica: rc.ReplicaConfig) -> str:
        return ""

    async def size(self, replica: rc.ReplicaConfig) -> EngineSize | None:
        return None

    async def started_s(self, replica: rc.ReplicaConfig) -> float | None:
        return 1.0

    @property
    def queue(self) -> int:
        """Requests that wait inside engines."""
        return sum(engine.queue for engine in self.by_name.values())

    @property
    def used_s(self) -> float:
        """Time of places that was used."""
        return sum(engine.finished_s for engine in self.by_name.values())

    @asynccontextmanager
    async def pages(self) -> AsyncIterator[str]:
        """Serve the engines' `/metrics`, each under its name; gives the address before the names."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    page = self.by_name[head.split(b"/", 2)[1].decode()].page()
                    size = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n"
                    writer.write(size.encode() + page)
            writer.close()

        server = await asyncio.start_server(answer, HOST, 0)
        try:
            yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
