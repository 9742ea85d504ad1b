"""Many requests at once while clients leave and replicas come, break and go: nothing is lost or left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

import httpx
from evenkeel_router.app import Router

from tests.support.nasty import DONE, EVENT, USAGE, Asked, Behaviour, Nasty, fine, nasty
from tests.support.routers import MODEL, PATIENCE_S, config_for, router_of, until

REQUESTS = 240
STREAMED = EVENT + EVENT + DONE


def moody(chance: Random) -> Behaviour:
    """Resets, refuses, breaks off, or does what it should."""

    async def behave(asked: Asked) -> None:
        await asyncio.sleep(chance.random() * 0.02)
        luck = chance.random()
        if luck < 0.1:
            asked.reset()
        elif luck < 0.2:
            await asked.answer(b"{}", status="503 Busy")
        elif b'"stream":true' not in asked.body:
            await fine(asked)
        else:
            await asked.begin_stream(EVENT)
            await asyncio.sleep(chance.random() * 0.02)
            if luck < 0.3:
                asked.close()
                return
            for piece in (EVENT[:9], EVENT[9:], USAGE, DONE):
                await asked.chunk(piece)
            await asked.send(b"0\r\n\r\n")

    return behave


async def request(client: httpx.AsyncClient, number: int) -> str:
    """What became of a request; every fifth client leaves after a moment."""
    stream = number % 2 == 0
    body = {"model": MODEL, "prompt": f"{number % 7} " * 300, "stream": stream}
    try:
        async with asyncio.timeout(0.01 if number % 5 == 0 else PATIENCE_S):
            response = await client.post("/v1/completions", json=body)
    except TimeoutError:
        return "left"
    if response.status_code == 200 and stream and response.content != STREAMED:
        assert response.content.count(b'data: {"error"') == 1
        return "broke off"
    return str(response.status_code)


async def churn(router: Router, replicas: Sequence[Nasty], chance: Random) -> None:
    """Replicas become ready, unready, and lost; one is always ready, and found so before the next change.

    Or else, on a machine that is busy enough, nobody would ever be asked.
    """
    while True:
        await asyncio.sleep(0.05)
        await until(lambda: router.rooms.replicas.fleet.routable, "one to be routable")
        flaky = chance.choice(replicas)
        flaky.ready = not flaky.ready
        if not any(replica.ready for replica in replicas):
            chance.choice(replicas).ready = True
        if chance.random() < 0.3:
            router.rooms.replicas.fleet.lost(chance.choice(list(router.rooms.replicas.fleet)))


async def test_clients_that_leave_and_replicas_that_break_leave_nothing_behind() -> None:
    chance = Random(7)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        replicas = [await enter(nasty(moody(chance))) for _ in range(3)]
        named = [replica.config(f"r{n}") for n, replica in enumerate(replicas)]
        router = await enter(router_of(config_for(*named)))
        limits = httpx.Limits(max_connections=50)
        client = await enter(
            httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, limits=limits)
        )
        churning = asyncio.create_task(churn(router, replicas, chance))
        ends = await asyncio.gather(*(request(client, number) for number in range(REQUESTS)))
        churning.cancel()
        await asyncio.gather(churning, return_exceptions=True)
        for replica in replicas:
            replica.ready = True
        results = Counter(ends)
        assert results.keys() <= {"200", "502", "503", "broke off", "left"}
        assert results["200"] > REQUESTS / 2
        assert results["broke off"]

        rooms = router.rooms
        await until(lambda: not rooms.intake.admission.running, "the end of all requests")
        await until(
            lambda: not any(map(rooms.replicas.fleet.load, rooms.replicas.fleet)),
            "every ticket back",
        )
        assert (
            len(rooms.intake.active_requests),
            len(rooms.replicas.wait_queue),
            rooms.intake.body_memory.used_bytes,
        ) == (
            0,
            0,
            0,
        )
        (totals,) = rooms.totals.clients()
        assert totals.in_flight == 0
        assert sum(totals.errors.values()) >= results["502"] + results["broke off"]
