"""What waits at a real engine that drains goes to another, what runs is finished, and everything is paid once (R7, R11)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    ReplicaConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_router.app import running
from evenkeel_router.ledger.held_work import HeldWork
from evenkeel_router.settings import Timing

from tests.sglang.engine import Since, tokens
from tests.sglang.shared import SharedEngine
from tests.support.routers import KEY, MODEL, config_for, sha256
from tests.support.routers import until as waited_until

_log = logging.getLogger(__name__)
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
"""Two engines on two busy cores."""
ASKED = 80
INPUT, OUTPUT = (
    24,
    220,
)  # of all that run at once the tokens fit into the pool


async def ask(http: httpx.AsyncClient, prompt: Sequence[int], *, stream: bool) -> dict[str, int]:
    """One completion of a forced length; its usage."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": list(prompt),
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return dict(response.json()["usage"])
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", response.text[-500:]
    return dict(httpx.Response(200, content=lines[-2][len("data: ") :]).json()["usage"])


def tenancy_of(client: str) -> TenancyConfig:
    """One client: what an engine served another test's would count too."""
    key = ApiKeyConfig(name="k", client=client, sha256=sha256(KEY))
    tenant = TenantConfig(
        namespace="ns", name="moved", clients=(ClientConfig(name=client),), api_keys=(key,)
    )
    return TenancyConfig(tenants=(tenant,))


def idle(client: str, *engines: Since) -> bool:
    """Whether engines report that nothing of a client waits or runs."""
    rows = [since.rows()[client] for since in engines]
    return not any(row.waiting or row.running for row in rows)


until = partial(waited_until, patience_s=PATIENCE_S)


@pytest.mark.parametrize("stream", [True, False])
async def test_requests_that_wait_at_a_real_engine_relocate_and_are_paid_once(
    plain: SharedEngine, templated: SharedEngine, stream: bool
) -> None:
    rng, name = random.Random(7), "streams" if stream else "answers"
    client = f"ns/moved/{name}"
    leaving, staying = Since(plain.reports_port), Since(templated.reports_port)
    leaves, stays = (
        ReplicaConfig(name=name, url=engine.url, reports=engine.reports)
        for name, engine in (("leaves", plain), ("stays", templated))
    )
    config = config_for(leaves, tenancy=tenancy_of(name))
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(
            running(config, timing=Timing(settle_s=0.5, report_interval_s=0.2))
        )
        rooms = router.rooms
        await until(lambda: rooms.replicas.fleet.routable.bit_count() == 1, "the first engine")
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=router.url,
                timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {KEY}"},
                limits=httpx.Limits(max_connections=None),
            )
        )
        asked = [
            asyncio.create_task(ask(http, [number + 2, *tokens(rng, INPUT - 1)], stream=stream))
            for number in range(ASKED)  # no two begin alike, so no input is found in a cache
        ]
        # The second engine is told of only once the first has all: what is sent later would go there without relocation.
        incarnation = rooms.service_ledger.accounting.incarnation("leaves")

        def at_first() -> HeldWork:
            return rooms.service_ledger.accounting.held(incarnation, client)

        await until(lambda: at_first().waiting >= ASKED // 2, "a queue")
        await until(lambda: at_first().admitted + at_first().waiting >= ASKED, "all requests")
        router.services.only.discovery.update(replace(config, replicas=(leaves, stays)))
        await until(lambda: rooms.replicas.fleet.routable.bit_count() == 2, "the second engine")
        router.services.only.discovery.update(replace(config, replicas=(stays,)))
        usages = await asyncio.gather(*asked)
        await until(lambda: not rooms.intake.active_requests, "the end of all requests")

        assert {usage["completion_tokens"] for usage in usages} == {OUTPUT}
        (totals,) = rooms.totals.clients()
        assert totals.relocations >= ASKED // 4
        assert totals.retries == 0

        # Nothing was lost: who was not moved was answered where it was, whatever else ran there for nobody.
        await until(lambda: idle(client, leaving, staying), "two engines with nothing to do")
        left, stayed = (since.rows()[client] for since in (leaving, staying))
        _log.info(
            "%d moved; the engine that left: %s, the other: %s", totals.relocations, left, stayed
        )
        assert left.requests - left.aborted >= ASKED - totals.relocations
        assert (stayed.requests, stayed.aborted) == (totals.relocations, 0)
        # What was computed for nobody, and paid all the same, is free where it was computed again.
        cost = rooms.totals.cost
        once = sum(
            cost.input_cost(usage["prompt_tokens"])
            + cost.output_cost(0, 0, usage["completion_tokens"])
            for usage in usages
        )
        assert left.service + stayed.service == once
        await until(lambda: rooms.service_ledger.ledger.served(client) >= once, "the last reports")
        assert rooms.service_ledger.ledger.served(client) == once
