"""Replicas that are lost one after another: who only waited there is sent on, whoever ran has three attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
from evenkeel_contract.key import decode
from evenkeel_contract.names import CLIENT_KEY_HEADER
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_router.app import Router, running
from evenkeel_router.request.forward import EXCUSED_PER_ATTEMPT

from tests.support.nasty import Asked, Behaviour, Nasty, fine, nasty
from tests.support.reporting import Reporter, report, reporter
from tests.support.routers import KEY, MODEL, PATIENCE_S, QUICK, config_for, routable, until

CHAT = "ns/acme/chat"
ATTEMPTS = LimitsConfig().max_attempts


async def is_lost(asked: Asked) -> None:
    asked.reset()


def saying(incarnation: str, *, running: int = 0, waiting: int = 0) -> bytes:
    row = ClientReport(CHAT, 0, 0, 0, 0, 0, 0, running, 0, 0, waiting, running)
    return report(incarnation, 1, 0, row)


@asynccontextmanager
async def fleet(
    *behaviours: Behaviour, running_there: int = 0, waiting: int = 1
) -> AsyncIterator[tuple[httpx.AsyncClient, Router, list[Nasty], list[Reporter]]]:
    """Replicas of which each reports so many requests of the client, whatever it does with them."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(behave)) for behave in behaviours]
        told = [await stack.enter_async_context(reporter()) for _ in behaviours]
        for n, one in enumerate(told):
            one.answer = saying(f"of r{n}", running=running_there, waiting=waiting)
        config = config_for(
            *(
                replace(one.config(f"r{n}"), reports=told[n].address)
                for n, one in enumerate(replicas)
            )
        )
        router = await stack.enter_async_context(running(config, timing=QUICK))
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=router.url,
                timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {KEY}"},
            )
        )
        await routable(router, len(replicas))
        yield client, router, replicas, told


BODY = {"model": MODEL, "prompt": "x"}


async def test_who_only_waited_outlives_more_crashes_than_it_has_attempts() -> None:
    async with fleet(*[is_lost] * (ATTEMPTS + 2), fine) as (client, router, replicas, _):
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        keys = [decode(asked.headers[CLIENT_KEY_HEADER]) for one in replicas for asked in one.asked]
        assert not any(key.retried_by_fleet for key in keys)
        await until(lambda: not any(router.rooms.replicas.fleet.outstanding), "every ticket back")


async def test_who_ran_where_it_was_lost_has_its_attempts_and_no_more() -> None:
    behaviours = [is_lost] * (ATTEMPTS + 2)
    async with fleet(*behaviours, running_there=1, waiting=0) as (client, _, replicas, _):
        response = await client.post("/v1/completions", json=BODY)
        assert response.json()["error"]["code"] == "replica_failed"
        assert sum(bool(one.asked) for one in replicas) == ATTEMPTS


async def test_a_request_that_crashes_replicas_ends_while_reports_show_it_waiting() -> None:
    async with fleet(is_lost, is_lost) as (client, router, _, _):
        response = await client.post("/v1/completions", json=BODY)
        assert response.status_code == 502
        (totals,) = router.rooms.totals.clients()
        assert totals.retries == EXCUSED_PER_ATTEMPT * ATTEMPTS - 1


async def test_where_another_process_answers_a_request_is_tried_again() -> None:
    again = asyncio.Event()

    async def is_lost_once(asked: Asked) -> None:
        if again.is_set():
            await fine(asked)
        else:
            again.set()
            told.answer = saying("of another process")
            replica.ready = False
            asked.reset()

    async with fleet(is_lost_once, running_there=1, waiting=0) as (
        client,
        router,
        (replica,),
        (told,),
    ):
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(
            lambda: (
                router.rooms.service_ledger.accounting.incarnation("r0") == "of another process"
            ),
            "it",
        )
        assert not asking.done()
        replica.ready = True
        assert (await asking).status_code == 200
        assert decode(replica.asked[-1].headers[CLIENT_KEY_HEADER]).retried_by_fleet
