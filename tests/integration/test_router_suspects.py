"""One of three replicas fails fast, or falls silent, while its `/health` says 200 (R20).

Such a replica always looks least loaded. It must cost hardly any client its answer, get hardly any request, come back soon after its
cure, and its failures must never remove good replicas.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_router.app import Router

from tests.support.nasty import DONE, EVENT, OK, Asked, Behaviour, Nasty, fine, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, QUICK, config_for, router_of, until

REQUESTS = 240
AT_ONCE = 6
TIMING = replace(QUICK, first_rest_s=0.2, overdue_s=0.15, avoid_s=0.2)
LIMITS = LimitsConfig(first_token_timeout_s=2.0, answer_timeout_s=2.0)
WHOLE = {True: EVENT + EVENT + DONE, False: OK}


def refuses(status: str) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.answer(b'{"object":"error","message":"no","code":0}', status=status)

    return behave


async def streams_nothing(asked: Asked) -> None:
    await asked.begin_stream(DONE)
    await asked.send(b"0\r\n\r\n")


async def streams_an_empty_delta(asked: Asked) -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}\n\n'
    await asked.begin_stream(b": comment\n\n", role, DONE)
    await asked.send(b"0\r\n\r\n")


async def streams_an_error(asked: Asked) -> None:
    await asked.begin_stream(b'data: {"error":{"message":"CUDA error","code":500}}\n\n', DONE)
    await asked.send(b"0\r\n\r\n")


async def streams_one_token(asked: Asked) -> None:
    await asked.begin_stream(EVENT)
    await asked.send(b"0\r\n\r\n")


async def sends_comments_only(asked: Asked) -> None:
    await asked.begin_stream()
    while True:
        await asked.chunk(b": still here\n\n")
        await asyncio.sleep(0.02)


async def answers_an_error(asked: Asked) -> None:
    await asked.answer(b'{"error":"CUDA error","error_type":"generation"}')


FAILURES: list[tuple[Behaviour, bool]] = [
    (refuses("429 Too Many Requests"), True),
    (refuses("429 Too Many Requests"), False),
    (refuses("400 Bad Request"), True),
    (refuses("400 Bad Request"), False),
    (refuses("404 Not Found"), True),
    (refuses("404 Not Found"), False),
    (refuses("503 Service Unavailable"), False),
    (streams_nothing, True),
    (streams_an_empty_delta, True),
    (streams_an_error, True),
    (answers_an_error, False),
    (streams_one_token, True),
    (Asked.hang, True),
    (sends_comments_only, True),
]
IDS = ["429", "429 whole", "400", "400 whole", "404", "404 whole", "503 whole", "empty stream", "empty delta", "error at once",
       "error in a 200", "one token", "silence", "comments only"]  # fmt: skip
one_of_three = pytest.mark.parametrize(("behaviour", "stream"), FAILURES, ids=IDS)


class Sick:
    """A replica that misbehaves until it is cured."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    async def __call__(self, asked: Asked) -> None:
        await self.behaviour(asked)


@asynccontextmanager
async def fleet(
    *behaviours: Behaviour, **changes: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Router, list[Nasty]]]:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(one)) for one in behaviours]
        named = [replica.config(f"r{i}") for i, replica in enumerate(replicas)]
        config = config_for(*named, **({"limits": LIMITS} | changes))
        router = await stack.enter_async_context(router_of(config, timing=TIMING))
        headers = {"Authorization": f"Bearer {KEY}"}
        client = httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=headers)
        yield await stack.enter_async_context(client), router, replicas


async def answers(
    client: httpx.AsyncClient, *, requests: int = REQUESTS, at_once: int = AT_ONCE, stream: bool
) -> list[tuple[int, bytes]]:
    """Status and body of each of so many requests. All have one long prefix, which attracts them to one replica."""
    left = iter(range(requests))
    got = []

    async def one_after_another() -> None:
        for n in left:
            body = {"model": MODEL, "prompt": "a common beginning " * 60 + str(n), "stream": stream}
            response = await client.post("/v1/completions", json=body)
            got.append((response.status_code, response.content))

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return got


def right(got: list[tuple[int, bytes]], *, stream: bool) -> int:
    return sum(one == (200, WHOLE[stream]) for one in got)


@pytest.mark.parametrize("at_once", [1, AT_ONCE])
@one_of_three
async def test_a_bad_replica_costs_hardly_any_request(
    behaviour: Behaviour, stream: bool, at_once: int
) -> None:
    async with fleet(behaviour, fine, fine) as (client, router, (bad, *_)):
        got = await answers(client, at_once=at_once, stream=stream)
        assert right(got, stream=stream) >= 238
        assert len(bad.asked) <= 12
        assert router.rooms.replicas.fleet.routable.bit_count() >= 2


@one_of_three
async def test_a_cured_replica_serves_again(behaviour: Behaviour, stream: bool) -> None:
    sick = Sick(behaviour)
    async with fleet(sick, fine, fine) as (client, router, (bad, *_)):
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        await answers(client, stream=stream)
        sick.behaviour = fine

        before = len(bad.asked)

        async def asks_until_it_is_routable() -> None:
            while not member.routable or len(bad.asked) < before + 2:
                got = await answers(client, requests=12, stream=stream)
                assert right(got, stream=stream) == 12

        await asyncio.wait_for(asks_until_it_is_routable(), PATIENCE_S)


@pytest.mark.parametrize(("behaviour", "stream"), FAILURES, ids=IDS)
async def test_where_all_replicas_are_bad_no_request_exceeds_its_budget(
    behaviour: Behaviour, stream: bool
) -> None:
    """There are more replicas than attempts. A probe of a suspect is none of them."""
    limits = replace(LIMITS, first_token_timeout_s=0.4, answer_timeout_s=0.4)
    async with fleet(*[behaviour] * 5, limits=limits) as (client, router, replicas):
        got = await answers(client, requests=12, stream=stream)
        assert len(got) == 12
        assert not any(one == (200, WHOLE[stream]) for one in got)
        asked = (one for replica in replicas for one in replica.asked)
        times = Counter(json.loads(one.body)["prompt"] for one in asked)
        assert len(times) == 12
        assert max(times.values()) <= limits.max_attempts + 1
        assert sum(times.values()) <= 12 * limits.max_attempts + sum(
            totals.backoffs > 0 for totals in router.rooms.replicas.totals.values()
        )
        await until(lambda: not router.rooms.intake.admission.running, "the end of all requests")
        assert router.rooms.replicas.fleet.routable  # never all of them


async def test_errors_of_the_requests_themselves_remove_no_replica() -> None:
    async def is_strict(asked: Asked) -> None:
        if b"bad" in asked.body:
            await asked.answer(b'{"error":{"message":"bad schema"}}', status="400 Bad Request")
        else:
            await fine(asked)

    async with fleet(is_strict, is_strict, is_strict) as (client, router, replicas):
        for n in range(30):
            response = await client.post(
                "/v1/completions", json={"model": MODEL, "prompt": f"bad {n}"}
            )
            assert response.status_code == 400
            assert json.loads(response.content)["error"]["message"] == "bad schema"
        assert router.rooms.replicas.fleet.routable.bit_count() == 3
        assert not any(totals.failures for totals in router.rooms.replicas.totals.values())
        assert sum(len(replica.asked) for replica in replicas) == 60
