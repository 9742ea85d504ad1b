"""What waits at a replica that drains, or while another one is idle, goes elsewhere. What runs is finished; everything is paid once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

import httpx
import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.names import CLIENT_KEY_HEADER
from evenkeel_contract.reports import ClientReport
from evenkeel_router.api.identity import WHOLE
from evenkeel_router.app import Router, running
from evenkeel_router.ledger.held_work import HeldWork
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.nasty import Asked, fine, nasty
from tests.support.reporting import report, reporter
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    replica_of,
    routable,
    simulated,
    until,
)

CHAT = "ns/acme/chat"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
OUTPUT, RUN, ASKED = 20, 4, 24
BURST = 120
TIMING = replace(QUICK, settle_s=0.1, return_s=0.1, compact_interval_s=3600)


@dataclass
class Stage:
    """A router in front of a slow replica whose queue is long; a quick one is there, and not told of yet."""

    router: Router
    slow: RunningServer
    quick: RunningServer
    answers: list[asyncio.Task[httpx.Response]]
    incarnation: str
    """Of the slow one."""

    def held(self) -> HeldWork:
        """What the slow replica has of the client, as the router knows."""
        return self.router.rooms.service_ledger.accounting.held(self.incarnation, CHAT)

    def tell(self, *names: str) -> None:
        """Only these are configured."""
        known = {"slow": self.slow, "quick": self.quick}
        named = tuple(replica_of(known[name], name) for name in names)
        config = replace(self.router.rooms.settings.config, replicas=named)
        self.router.services.only.discovery.update(config)


def admitted(server: RunningServer) -> int:
    """Requests that a replica ever admitted."""
    return sum(client.requests for client in server.replica.engine.accounts.clients.values())


@asynccontextmanager
async def stage(*, stream: bool, speed: float = 0.1) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        engine = EngineConfig(max_running=RUN)
        slow = await stack.enter_async_context(
            running_server(simulated(speed=speed, engine=engine))
        )
        quick = await stack.enter_async_context(running_server(simulated(engine=engine)))
        router = await stack.enter_async_context(
            running(config_for(replica_of(slow, "slow")), timing=TIMING)
        )
        await routable(router, 1)
        client = await stack.enter_async_context(
            httpx.AsyncClient(timeout=PATIENCE_S, headers=AUTHORIZED)
        )
        body = {"model": MODEL, "max_tokens": OUTPUT, "ignore_eos": True, "stream": stream}
        url = f"{router.url}/v1/completions"
        answers = [
            asyncio.create_task(client.post(url, json=body | {"prompt": f"{n:04} " * 40}))
            for n in range(ASKED)
        ]
        on = Stage(
            router, slow, quick, answers, router.rooms.service_ledger.accounting.incarnation("slow")
        )
        await until(lambda: on.held().waiting == ASKED - RUN, "a queue")
        yield on
        for answer in answers:
            assert (await answer).status_code == 200, (await answer).text
        await until(lambda: not router.rooms.intake.active_requests, "the end of all requests")


def services(on: Stage) -> tuple[float, float]:
    """What the client paid, and what was computed for it."""
    cost = on.router.rooms.totals.cost
    computed = sum(
        cost.input_cost(one.extend_tokens) + cost.output_cost(0, 0, one.output_tokens)
        for server in (on.slow, on.quick)
        for one in server.replica.engine.accounts.clients.values()
    )
    return on.router.rooms.service_ledger.ledger.served(CHAT), computed


@pytest.mark.parametrize("stream", [True, False])
async def test_what_waits_goes_elsewhere_and_what_runs_is_finished(stream: bool) -> None:
    async with stage(stream=stream) as on:
        on.tell("slow", "quick")
        await routable(on.router, 2)
        on.tell("quick")
        done = on.answers
        await until(lambda: sum(one.done() for one in done) >= ASKED - RUN, "those that waited")
        assert admitted(on.slow) == RUN
        assert sum(one.done() for one in done) == ASKED - RUN
    assert admitted(on.quick) == ASKED - RUN
    (totals,) = on.router.rooms.totals.clients()
    assert (totals.relocations, totals.retries) == (ASKED - RUN, 0)
    assert on.router.rooms.replicas.totals["slow"].failures == 0
    await until(lambda: len({*services(on)}) == 1, "everything to be paid once")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_waits_for_too_long_goes_to_an_idle_replica(stream: bool) -> None:
    """R2. Nothing drains: the idle replica gets one request after another, once a speed was measured."""
    async with stage(stream=stream, speed=0.05) as on:
        on.tell("slow", "quick")
        await routable(on.router, 2)
        (totals,) = on.router.rooms.totals.clients()
        await until(lambda: totals.relocations >= 3, "requests that are relocated")
        await until(lambda: admitted(on.quick) >= 3, "requests at the idle replica")
        assert admitted(on.slow) < ASKED - 3
        on.tell("quick")  # the others need not wait either
    assert totals.retries == 0
    assert on.router.rooms.replicas.totals["slow"].failures == 0
    await until(lambda: len({*services(on)}) == 1, "everything to be paid once")


async def test_a_burst_before_new_replicas_answer_is_shared_with_them() -> None:
    """R2, R20. Two of three replicas are new and get four requests each; once they answer, the long queue is levelled."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(simulated(speed=1.5))) for _ in range(3)
        ]
        named = tuple(replica_of(server, f"r{i}") for i, server in enumerate(servers))
        timing = replace(TIMING, probe_interval_s=1.0)
        router = await stack.enter_async_context(running(config_for(named[0]), timing=timing))
        await routable(router, 1)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTHORIZED)
        )
        body = {"model": MODEL, "max_tokens": 50, "ignore_eos": True, "stream": True}

        async def ask(n: int) -> int:
            prompt = f"{n:04} " * 600
            return (
                await client.post("/v1/completions", json=body | {"prompt": prompt})
            ).status_code

        assert await ask(0) == 200  # r0 is trusted
        router.services.only.discovery.update(replace(router.rooms.settings.config, replicas=named))
        await routable(router, 3)
        assert await asyncio.gather(*map(ask, range(1, BURST + 1))) == [200] * BURST
        assert max(map(admitted, servers)) <= BURST * 0.45, list(map(admitted, servers))


async def test_where_there_is_no_other_replica_everything_is_served_where_it_is() -> None:
    async with stage(stream=True, speed=1.0) as on:
        on.tell()
    assert admitted(on.slow) == ASKED
    (totals,) = on.router.rooms.totals.clients()
    assert totals.relocations == 0
    await until(lambda: len({*services(on)}) == 1, "everything to be paid once")


async def test_a_replica_that_says_itself_that_it_drains_gives_its_queue_away() -> None:
    async with stage(stream=False) as on:
        on.tell("slow", "quick")
        await routable(on.router, 2)
        on.slow.replica.draining.set()
        await until(lambda: sum(one.done() for one in on.answers) >= ASKED - RUN, "the others")
        assert admitted(on.slow) == RUN


def holding(*, admitted: int, waiting: int, aborted: int = 0, tokens: int = 0) -> ClientReport:
    """Nothing runs; of those that were admitted some were broken off, which had made output."""
    return ClientReport(
        CHAT, 0, 0, 0, 0, 0, 0, admitted, 0, 0, waiting, 0, aborted=aborted, aborted_tokens=tokens
    )


async def test_what_began_before_the_replica_noticed_is_not_charged_again() -> None:
    """R11: of three that wait by the last report, the next one says that two were admitted meanwhile, and one finished."""
    left: list[Asked] = []

    async def never_answers(asked: Asked) -> None:
        with suppress(ConnectionError):
            await asked.hang()
        left.append(asked)
        asked.close()

    async with reporter() as told, nasty(never_answers) as slow, nasty(fine) as quick:
        told.answer = report("first", 1, 0, holding(admitted=1, waiting=3))
        drains, stays = replace(slow.config("slow"), reports=told.address), quick.config("quick")
        config = config_for(drains)
        async with (
            running(config, timing=TIMING) as router,
            httpx.AsyncClient(timeout=PATIENCE_S, headers=AUTHORIZED) as client,
        ):
            await routable(router, 1)
            url, body = f"{router.url}/v1/completions", {"model": MODEL, "prompt": "x"}
            answers = [asyncio.create_task(client.post(url, json=body)) for _ in range(3)]
            await until(lambda: len(slow.asked) == 3, "three requests at the slow one")
            router.services.only.discovery.update(replace(config, replicas=(drains, stays)))
            await routable(router, 2)
            router.services.only.discovery.update(replace(config, replicas=(stays,)))
            await until(lambda: len(left) == 3, "them to be taken back")
            assert not quick.asked  # not before another report says what began
            now = holding(admitted=3, waiting=0, aborted=1, tokens=5)
            told.answer = report("first", 2, 0, now)
            assert [(await answer).status_code for answer in answers] == [200] * 3
            keys = [decode(asked.headers[CLIENT_KEY_HEADER]) for asked in quick.asked]
            assert sorted(key.retried_by_fleet for key in keys) == [False, True, True]
            # One had made five tokens, one had made all of them, which nobody received.
            assert sorted(key.paid_output_tokens for key in keys) == [0, 5, WHOLE]
            assert not router.rooms.intake.active_requests
