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
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.app import running
from evenkeel_router.settings import Timing

from tests.sglang.engine import Engine, clients_of, tokens, unused_port
from tests.support.routers import KEY, MODEL, config_for
from tests.support.routers import until as waited_until

_log = logging.getLogger(__name__)
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

CHAT = "ns/acme/chat"
PATIENCE_S = 300.0
"""Two engines on two busy cores."""
ASKED, RUN = 80, 4
INPUT, OUTPUT = 24, 300
NO_REPORT = ClientReport(CHAT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


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


def idle(ports: Sequence[int]) -> bool:
    """Whether engines report that nothing waits and nothing runs."""
    rows = [clients_of(port).get(CHAT, NO_REPORT) for port in ports]
    return not any(row.waiting or row.running for row in rows)


until = partial(waited_until, patience_s=PATIENCE_S)


@pytest.mark.parametrize("stream", [True, False])
async def test_requests_that_wait_at_a_real_engine_relocate_and_are_paid_once(
    start: type[Engine], stream: bool
) -> None:
    rng = random.Random(7)
    ports = unused_port(), unused_port()
    engines = [
        start(
            *("--schedule-policy", "dlpm", "--max-total-tokens", "4096"),
            *("--max-running-requests", str(RUN), "--served-model-name", MODEL),
            *("--stream-interval", "1"),
            environment={"EVENKEEL_REPORTS_PORT": str(port)},
            wait=False,
        )
        for port in ports
    ]
    for engine in engines:
        await asyncio.to_thread(engine._await_ready)
    leaves, stays = (
        ReplicaConfig(name=name, url=engine.url, reports=f"tcp://127.0.0.1:{port}")
        for name, engine, port in zip(("leaves", "stays"), engines, ports, strict=True)
    )
    config = config_for(leaves)
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
        # The second engine is told of only now: until then everything waits at the first.
        incarnation = rooms.service_ledger.accounting.incarnation("leaves")
        await until(
            lambda: rooms.service_ledger.accounting.held(incarnation, CHAT).waiting >= ASKED // 2,
            "a queue",
        )
        router.discovery.update(replace(config, replicas=(leaves, stays)))
        await until(lambda: rooms.replicas.fleet.routable.bit_count() == 2, "the second engine")
        router.discovery.update(replace(config, replicas=(stays,)))
        usages = await asyncio.gather(*asked)
        await until(lambda: not rooms.intake.active_requests, "the end of all requests")

        assert {usage["completion_tokens"] for usage in usages} == {OUTPUT}
        (totals,) = rooms.totals.clients()
        assert totals.relocations >= ASKED // 4
        assert totals.retries == 0

        # Nothing was lost: who was not moved was answered where it was, whatever else ran there for nobody.
        await until(lambda: idle(ports), "two engines with nothing to do")
        left, stayed = (clients_of(port).get(CHAT, NO_REPORT) for port in ports)
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
        await until(lambda: rooms.service_ledger.ledger.served(CHAT) >= once, "the last reports")
        assert rooms.service_ledger.ledger.served(CHAT) == once
