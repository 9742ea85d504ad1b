"""A real engine drains: what waits in its queue goes elsewhere, and every input is paid once (docs/design/0003)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.app import running
from evenkeel_simulator.server.app import running_server

from tests.sglang.engine import Engine, clients_of, tokens
from tests.support.routers import (
    KEY,
    MODEL,
    QUICK,
    config_for,
    replica_of,
    routable,
    simulated,
    until,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

CHAT = "ns/acme/chat"
INPUT, OUTPUT, ASKED, RUN = 60, 150, 16, 2
PATIENCE_S = 120.0


@pytest.mark.parametrize("stream", [True, False])
async def test_what_waits_in_the_engine_goes_elsewhere_and_is_paid_once(
    start: Callable[..., Engine], free_port: int, stream: bool
) -> None:
    rng = random.Random(1)
    engine = start(
        *("--schedule-policy", "dlpm", "--max-total-tokens", "4096"),
        *("--max-running-requests", str(RUN)),
        environment={"EVENKEEL_REPORTS_PORT": str(free_port)},
    )
    real = ReplicaConfig(name="real", url=engine.url, reports=f"tcp://127.0.0.1:{free_port}")
    async with (
        running_server(simulated()) as server,
        running(config_for(real), timing=replace(QUICK, return_s=3600)) as router,
        httpx.AsyncClient(
            base_url=router.url, timeout=PATIENCE_S, headers={"Authorization": f"Bearer {KEY}"}
        ) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        books = router.state.books
        await routable(router, 1)
        answers = [
            asyncio.create_task(client.post("/generate", json=body(rng, stream)))
            for _ in range(ASKED)
        ]
        incarnation = books.incarnation("real")
        await until(lambda: books.held(incarnation, CHAT).waiting >= ASKED - RUN, "a queue")
        simulation = replica_of(server, "simulated")
        router.discovery.update(replace(config_for(real), replicas=(real, simulation)))
        await routable(router, 2)
        router.discovery.update(replace(config_for(real), replicas=(simulation,)))
        assert [(await answer).status_code for answer in answers] == [200] * ASKED
        await until(lambda: not any(books.held(incarnation, CHAT)[1:]), "the engine to be idle")
        (totals,) = router.state.accounts.clients()
    rows = [clients_of(free_port)[CHAT], server.replica.engine.accounts.clients[CHAT]]
    assert totals.moves >= ASKED // 2
    assert totals.retries == 0
    assert sum(row.service - 2 * row.output_tokens for row in rows) == ASKED * INPUT


def body(rng: random.Random, stream: bool) -> dict[str, object]:
    sampling = {"max_new_tokens": OUTPUT, "ignore_eos": True, "temperature": 0}
    return {
        "model": MODEL,
        "input_ids": tokens(rng, INPUT),
        "sampling_params": sampling,
        "stream": stream,
    }
