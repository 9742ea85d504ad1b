"""Who pays for what: service, the tenant's token limit and its totals agree, however a request ends (R11).

Over real sockets in front of fake engines without reports, which may fail.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from evenkeel_contract.routerconfig import TenantLimits
from evenkeel_router.app import Router

from tests.integration.test_router_claims import (
    EVENT,
    in_front_of,
    named,
    served,
    streaming,
    tokens,
    usage,
)
from tests.support.apis import DONE, chunk
from tests.support.nasty import Asked, Behaviour
from tests.support.routers import MODEL, until

BURST = 100_000.0
PROMPT = "word " * 80  # 400 bytes, 100 tokens by the estimate
ERROR = chunk(error={"message": "no", "code": 500})
REFUSED = chunk(error={"message": "no", "code": 400})


def spent(router: Router) -> float:
    """What is missing of the tenant's token limit."""
    part = router.rooms.intake.limit_parts._limits["tokens ns/a"]
    return BURST - part.free(0.0)


async def ok(asked: Asked) -> None:
    counts = usage(100, 4, 60)
    await asked.answer(json.dumps({"choices": [{"text": "abcd"}], "usage": counts}).encode())


def answering(status: str, body: bytes = b'{"error":{"message":"no"}}') -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.answer(body, status=status)

    return behave


async def closing(asked: Asked) -> None:
    asked.close()


async def breaking(asked: Asked) -> None:
    await asked.begin_stream(EVENT, EVENT)
    asked.close()


@pytest.mark.parametrize(
    ("behave", "stream", "status", "want"),
    [
        (ok, False, 200, (100, 60, 4)),
        (streaming(EVENT, EVENT, DONE), True, 200, (100, 0, 2)),
        (answering("400 Bad Request"), False, 400, (0, 0, 0)),
        (answering("500 Oops"), False, 502, (0, 0, 0)),
        (answering("503 Busy"), True, 503, (0, 0, 0)),
        (answering("200 OK", b"garbage"), False, 502, (0, 0, 0)),
        (closing, False, 502, (0, 0, 0)),
        (streaming(ERROR, DONE), True, 502, (0, 0, 0)),
        (streaming(REFUSED, DONE), True, 400, (0, 0, 0)),
        (streaming(EVENT, EVENT, ERROR, DONE), True, 200, (100, 0, 2)),
        (breaking, True, 200, (100, 0, 2)),
    ],
)
async def test_service_limit_and_totals_agree_however_a_request_ends(
    behave: Behaviour, stream: bool, status: int, want: tuple[int, int, int]
) -> None:
    limits = TenantLimits(tokens_per_minute=1, burst_tokens=int(BURST))
    async with in_front_of(behave, a=limits) as (router, _, client):
        body = {"model": MODEL, "prompt": PROMPT, "stream": stream, "max_tokens": 9}
        answer = await client.post("/v1/completions", json=body, headers=named("a"))
        assert answer.status_code == status
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        await asyncio.sleep(0)
        _check(router, want)


def _check(router: Router, want: tuple[int, int, int]) -> None:
    assert tokens(router, "a") == want
    assert served(router, "a") == want[0] - want[1] + 2 * want[2]
    assert spent(router) == pytest.approx(want[0] + want[2], abs=1)


@pytest.mark.parametrize(
    ("events", "want"),
    [
        ([], (100, 0, 0)),  # no report says that it had not begun
        ([EVENT, EVENT, EVENT], (100, 0, 3)),
    ],
)
async def test_a_client_that_leaves_pays_the_same_in_all_books(
    events: list[bytes], want: tuple[int, int, int]
) -> None:
    limits = TenantLimits(tokens_per_minute=1, burst_tokens=int(BURST))
    seen = asyncio.Event()

    async def behave(asked: Asked) -> None:
        await asked.begin_stream(*events)
        seen.set()
        await asked.hang()

    async with in_front_of(behave, a=limits) as (router, _, client):
        body = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 9}

        async def ask() -> None:
            async with client.stream(
                "POST", "/v1/completions", json=body, headers=named("a")
            ) as answer:
                async for _ in answer.aiter_raw():
                    pass

        task = asyncio.create_task(ask())
        await seen.wait()
        replica = router.rooms.replicas.totals["r0"]
        await until(lambda: replica.requests == 1, "the request")
        (state,) = router.rooms.intake.active_requests
        await until(lambda: not events or state.first_byte_s is not None, "the first event")
        await asyncio.sleep(0.05)
        task.cancel()
        await until(lambda: not router.rooms.intake.active_requests, "the client to be gone")
        await until(lambda: router.rooms.intake.admission.running == 0, "the end")
        _check(router, want)


async def test_a_retry_costs_its_client_nothing_more() -> None:
    failed: list[bool] = []

    async def behave(asked: Asked) -> None:
        if not failed:
            failed.append(True)
            await answering("500 Oops")(asked)
        else:
            await ok(asked)

    limits = TenantLimits(tokens_per_minute=1, burst_tokens=int(BURST))
    async with in_front_of(behave, a=limits) as (router, _, client):
        body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 9}
        answer = await client.post("/v1/completions", json=body, headers=named("a"))
        assert answer.status_code in (200, 502)  # one replica: it may be asked again, or not
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        _check(router, (100, 60, 4) if answer.status_code == 200 else (0, 0, 0))
