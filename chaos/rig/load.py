"""Backlogged clients: each keeps a fixed number of requests open, over all routers.

Requests go out as streams of chat completions. If a router does not answer, the client acts as a load balancer: it
sends the request to another router after a pause, and counts it. Every request must end; `stop` waits for all.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from evenkeel_cli.replay.sender import Answer, Question, Sender, open_session

from chaos.rig.arena import MODEL, REQUEST_TOKENS, Arena
from chaos.rig.children import PATIENCE_S

PROMPT_CHARS: Final = 400  # about 235 tokens
OUTPUT_TOKENS: Final = 32
REQUEST_COST: Final = REQUEST_TOKENS + 2.0 * OUTPUT_TOKENS  # at most
EXHAUSTED: Final = "502"
"""A request that failed at as many replicas as it may be tried at."""
_PAUSE_S: Final = 0.05  # after a failure, like a load balancer


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client: its name, load and routers."""

    name: str
    """`tenant/client`."""
    open: int = 40
    """Requests open at any time."""
    ingress: Mapping[str, float] = field(default_factory=dict)
    """Router → its part of the requests; equal parts if empty."""
    patience_s: tuple[float, float] | None = None
    """Cancels each request after a time between these; None: never."""
    keys: tuple[str, ...] = ()
    """API keys that it sends in turn, instead of its name."""


@dataclass(slots=True)
class Tally:
    """Results of a client's requests."""

    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    first_failures: dict[str, str] = field(default_factory=dict)
    """What the first failure of each kind looked like."""
    given_up: int = 0
    cost: float = 0.0
    """Service by the usage in the answers: uncached input, plus twice the output."""
    longest_s: float = 0.0

    @property
    def unfinished(self) -> int:
        """Requests without usage in the answer."""
        return self.given_up + self.failed.total()


class Load:
    """Runs clients until stopped. `open_load` makes it."""

    def __init__(self, fleet: Arena, sender: Sender, rng: random.Random) -> None:
        self._fleet = fleet
        self._sender = sender
        self._rng = rng
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._clients: dict[str, Client] = {}
        self._stopping = False
        self.tallies: dict[str, Tally] = {}

    def start(self, *clients: Client) -> None:
        """Let clients send."""
        for client in clients:
            self._clients[client.name] = client
            self.tallies.setdefault(client.name, Tally())
            self._tasks[client.name] = [
                asyncio.create_task(self._send_forever(client.name)) for _ in range(client.open)
            ]

    def change(self, name: str, **changes: object) -> None:
        """Change a client's settings from its next requests on, except the number of open requests."""
        self._clients[name] = replace(self._clients[name], **changes)  # type: ignore[arg-type]

    async def stop(self, *names: str) -> None:
        """Send nothing more for these clients, or all, and wait for every answer. Fails if one does not come."""
        ending = [task for name in names or list(self._tasks) for task in self._tasks.pop(name)]
        for name in names or list(self._clients):
            self._clients.pop(name)
        _, hanging = await asyncio.wait(ending, timeout=PATIENCE_S) if ending else ((), ())
        assert not hanging, f"{len(hanging)} requests hang"

    async def drop(self, name: str) -> None:
        """Cancel all open requests of a client."""
        self._clients.pop(name)
        tasks = self._tasks.pop(name)
        self.tallies[name].given_up += len(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def done(self) -> int:
        """Requests that were answered to their end."""
        return sum(tally.done for tally in self.tallies.values())

    async def until_done(self, more: int) -> None:
        """Wait until that many further requests are answered."""
        want = self.done + more
        async with asyncio.timeout(PATIENCE_S):
            while self.done < want:  # noqa: ASYNC110 - the processes' state, not ours
                await asyncio.sleep(0.05)

    async def _send_forever(self, name: str) -> None:
        tally = self.tallies[name]
        while (client := self._clients.get(name)) is not None:
            answer = await self._send(client)
            if answer is None:
                tally.given_up += 1
                continue
            tally.longest_s = max(tally.longest_s, answer.ended_s - answer.sent_s)
            if answer.error is None:
                tally.done += 1
                tally.cost += answer.input_tokens - answer.cached_tokens + 2 * answer.output_tokens
            else:
                tally.failed[answer.error] += 1
                tally.first_failures.setdefault(answer.error, answer.detail)
                await asyncio.sleep(_PAUSE_S)

    async def _send(self, client: Client) -> Answer | None:
        urls = self._fleet.urls
        routers = list(urls)
        weights = [client.ingress.get(router, 0.0 if client.ingress else 1.0) for router in routers]
        (router,) = self._rng.choices(routers, weights)
        sender = replace(
            self._sender, url=urls[router] + "/v1", headers_of=lambda _: self._headers(client)
        )
        question = Question(client=client.name, prompt=self._prompt(), max_tokens=OUTPUT_TOKENS)
        if client.patience_s is None:
            return await sender.send(question)
        try:
            async with asyncio.timeout(self._rng.uniform(*client.patience_s)):
                return await sender.send(question)
        except TimeoutError:
            return None

    def _headers(self, client: Client) -> dict[str, str]:
        if client.keys:
            return {"Authorization": f"Bearer {self._rng.choice(client.keys)}"}
        return {"x-evenkeel-client": client.name}

    def _prompt(self) -> str:
        # Every prompt is new: cached input has no cost, and shares would depend on chance.
        return f"{self._rng.getrandbits(4 * PROMPT_CHARS):0{PROMPT_CHARS}x}"


@asynccontextmanager
async def open_load(
    fleet: Arena, *, rng: random.Random, now: Callable[[], float]
) -> AsyncIterator[Load]:
    """A load without clients yet. Routers may be added meanwhile."""
    async with open_session() as session:
        sender = Sender(url="", model=MODEL, session=session, now=now, headers_of=lambda _: {})
        load = Load(fleet, sender, rng)
        try:
            yield load
        finally:
            for name in list(load._tasks):
                await load.drop(name)
