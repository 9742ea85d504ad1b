"""LoRA adapters through a router and simulated replicas: names, homes of adapters, and prefixes of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer

from tests.support.routers import KEY, MODEL, PATIENCE_S, fleet, simulated

NAMES = ("north", "south")
AUTH = {"authorization": f"Bearer {KEY}"}
SETTINGS = simulated(adapters=NAMES, engine=EngineConfig(adapters_per_batch=2), speed=5.0)


async def ask(client: httpx.AsyncClient, model: str, text: str, **options: Any) -> Any:
    body = {"model": model, "prompt": text, "max_tokens": 4} | options
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def homes(servers: list[RunningServer]) -> list[list[str | None]]:
    """The adapters that each replica has loaded."""
    return [list(server.replica.engine.adapters.loaded) for server in servers]


async def test_requests_go_to_the_replica_that_has_their_adapter() -> None:
    async with (
        fleet(2, settings=SETTINGS, adapters=NAMES) as (router, servers),
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTH) as client,
    ):
        # At the same time, so that the second one goes to the other replica.
        long = {"max_tokens": 300, "ignore_eos": True}
        await asyncio.gather(*(ask(client, name, f"ahoy {name} " * 20, **long) for name in NAMES))
        assert sorted(homes(servers), key=str) == [["north"], ["south"]]
        for number in range(6):
            for name in NAMES:
                await ask(client, f"{MODEL}:{name}", f"{number} {name} ahoy " * 20)
        assert sorted(homes(servers), key=str) == [["north"], ["south"]]


async def test_no_prefix_is_shared_across_adapters() -> None:
    async with (
        fleet(1, settings=SETTINGS, adapters=NAMES) as (router, _),
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTH) as client,
    ):
        cached = []
        for model in (MODEL, "north", "south", MODEL, f"{MODEL}:north", "south"):
            usage = (await ask(client, model, "the same long prompt " * 50))["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
        assert cached == [False, False, False, True, True, True]


async def test_adapters_are_listed_and_unknown_ones_are_not_found() -> None:
    async with (
        fleet(1, settings=SETTINGS, adapters=NAMES) as (router, (server,)),
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTH) as client,
    ):
        want = [(MODEL, None), *((name, MODEL) for name in NAMES)]
        for base in (router.url, server.url):  # the router, and a replica alone
            cards = (await client.get(f"{base}/v1/models")).json()["data"]
            assert [(card["id"], card.get("parent")) for card in cards] == want
        for name in ("north", f"{MODEL}:north"):
            card = (await client.get(f"/v1/models/{name}")).json()
            assert (card["id"], card["parent"]) == ("north", MODEL)
        message = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        body = message | {"model": f"{MODEL}:east"}
        openai = await client.post("/v1/chat/completions", json=body)
        anthropic = await client.post("/v1/messages", json=body)
        assert (openai.status_code, openai.json()["error"]["code"]) == (404, "model_not_found")
        assert f"The model '{MODEL}:east' does not exist" in openai.json()["error"]["message"]
        assert anthropic.status_code == 404
        assert anthropic.json()["error"]["type"] == "not_found_error"
