"""Routers that share limits on a network that delays and loses messages, in virtual time.

The exchange and the admission are the product's; only the clock of the event loop and the network are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from evenkeel_contract.limitswire import LimitsAnswer, LimitsAsk, decode_answer, decode_ask, encode
from evenkeel_contract.routerconfig import LimitsConfig, TenantConfig, TenantLimits
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.identity import Client, client_of
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.limit_exchange import LimitExchange
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.request.admission import Admission, PartUsedUp, TopUp, topped_up

PORTS_OPEN_S = 5.0
"""A router takes requests when it has a part, or after this time."""


def tenant(**limits: int) -> Client:
    """A client of a tenant with these limits."""
    return client_of(TenantConfig(namespace="ns", name="t", limits=TenantLimits(**limits)), "c")


async def admit(
    admission: Admission, top_up: TopUp, client: Client, tokens: int, now: Callable[[], float]
) -> None:
    """Enter as in the pipeline: with what other routers have, if a part is used up here."""
    try:
        admission.enter(client, tokens, now())
    except PartUsedUp as refusal:
        await topped_up(admission, top_up, client, tokens, now, refusal=refusal)


@dataclass
class Node:
    """One router process."""

    name: str
    parts: LimitParts
    exchange: LimitExchange
    admission: Admission
    task: asyncio.Task[None]


@dataclass
class World:
    """Routers r0, r1, … by name; a name that is down refuses connections."""

    names: tuple[str, ...]
    rng: Random
    loss: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    cuts: set[frozenset[str]] = field(default_factory=set)
    """Pairs whose messages are lost."""
    unlisted: set[tuple[str, str]] = field(default_factory=set)
    """(router, peer): the router does not know of the peer."""
    admitted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    started: int = 0

    def start(self, name: str) -> Node:
        """Start a router process under this name."""
        self.started += 1
        now = asyncio.get_running_loop().time
        parts = LimitParts(f"{self.started:04d}-{name}")

        def peers() -> tuple[Peer, ...]:
            others = (other for other in self.names if other != name)
            return tuple(
                Peer(other, other) for other in others if (name, other) not in self.unlisted
            )

        async def send(peer: Peer, ask: LimitsAsk) -> LimitsAnswer:
            return await self._send(name, peer.name, ask)

        exchange = LimitExchange(parts, send, peers=peers, interval_s=lambda: 1.0, now=now)
        task = asyncio.create_task(exchange.run())
        node = Node(name, parts, exchange, Admission(LimitsConfig(), parts), task)
        self.nodes[name] = node
        return node

    async def _send(self, source: str, target: str, ask: LimitsAsk) -> LimitsAnswer:
        await self._travel(source, target)
        node = self.nodes.get(target)
        if node is None:
            raise ConnectionRefusedError(target)
        now_s = asyncio.get_running_loop().time()
        answer = node.parts.answer(decode_ask(encode(ask)), now_s)
        await self._travel(source, target)
        return decode_answer(encode(answer))

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.rng.uniform(0.0005, 0.02))
        if frozenset((source, target)) in self.cuts or self.rng.random() < self.loss:
            await asyncio.sleep(3600.0)

    def kill(self, name: str) -> None:
        """End a process at once."""
        self.nodes.pop(name).task.cancel()

    def cut_off(self, name: str) -> None:
        """Lose all messages from and to this router."""
        self.cuts |= {frozenset((name, other)) for other in self.names if other != name}

    async def request(self, name: str, client: Client, tokens: int = 1) -> bool:
        """One request; what it holds is given back at once. True: it was admitted."""
        node = self.nodes.get(name)
        if node is None or not await _open(node):
            return False
        now = asyncio.get_running_loop().time
        try:
            await admit(node.admission, node.exchange.top_up, client, tokens, now)
        except Refusal:
            self.refused_s.append(now())
            return False
        if self.nodes.get(name) is node:
            self.admitted_s.append(now())
        node.admission.leave(client, 0, now())
        return True

    def part_of(self, name: str, kind: str = "requests") -> float:
        """The part of the limit that a router has."""
        return dict(self.nodes[name].parts.parts()).get(f"{kind} ns/t", 0.0)

    async def stop(self) -> None:
        """End all processes."""
        tasks = [node.task for node in self.nodes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _open(node: Node) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(PORTS_OPEN_S):
            await node.exchange.ready.wait()
    return True


async def arrivals(
    world: World,
    client: Client,
    *,
    rates: Mapping[str, Callable[[float], float]],
    duration_s: float,
) -> None:
    """Poisson arrivals: by router, requests a second at a time after the start."""
    tasks: set[asyncio.Task[bool]] = set()

    async def at(name: str) -> None:
        now = asyncio.get_running_loop().time
        began_s = now()
        most = max(rates[name](at_s) for at_s in range(int(duration_s) + 1))
        while most and now() - began_s < duration_s:
            await asyncio.sleep(world.rng.expovariate(most))
            if world.rng.random() * most <= rates[name](now() - began_s):
                tasks.add(asyncio.create_task(world.request(name, client)))

    await asyncio.gather(*(at(name) for name in rates))
    await asyncio.gather(*tasks, return_exceptions=True)


def most_in_a_minute(times_s: list[float]) -> int:
    """The most events in any window of a minute."""
    times_s = sorted(times_s)
    most = first = 0
    for last, at_s in enumerate(times_s):
        while times_s[first] <= at_s - 60.0:
            first += 1
        most = max(most, last - first + 1)
    return most
