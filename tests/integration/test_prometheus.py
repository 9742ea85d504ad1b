"""A real Prometheus reads a router and a replica as their PodMonitors say, and evaluates the PrometheusRule."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from evenkeel_contract.federationconfig import LEAST_TOKEN, CellConfig, FederationConfig
from evenkeel_operator.manifests.monitoring import alert_groups, pod_monitors

from tests.support.build_contexts import sample_context, with_apis
from tests.support.prometheus import plainly_scraped, prometheus, scraped
from tests.support.routers import KEY, MODEL, PATIENCE_S, fleet, simulated

SUBJECT = with_apis(
    sample_context("simulator.yaml", slo={"ttft": {"threshold": "1500ms", "window": "168h"}})
)
_SELECTOR = re.compile(r"\bevenkeel_(?:router|engine)_\w+\{[^}]*\}")


async def asked(client: httpx.AsyncClient, path: str, **query: str) -> Mapping[str, Any]:
    """An answer's data; nothing while it is not up yet."""
    try:
        answer = (await client.get(path, params=query)).json()
    except (httpx.TransportError, ValueError):
        return {}
    return answer["data"] if answer["status"] == "success" else {}


async def until_each(
    client: httpx.AsyncClient, queries: set[str], *, patience_s: float = PATIENCE_S
) -> None:
    """Wait until every query finds a series. Raises `AssertionError` with those that do not."""
    left = set(queries)
    try:
        async with asyncio.timeout(patience_s):
            while left:
                for query in sorted(left):
                    found = await asked(client, "/query", query=query)
                    if found.get("result"):
                        left.discard(query)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"no series for {sorted(left)}") from None


async def until_at_rest(client: httpx.AsyncClient, alerts: set[str]) -> None:
    """Wait until every alert was evaluated, without a fault, and none fires or is about to."""
    wanted = {(name, "ok", "inactive") for name in alerts}
    found: set[tuple[str, str, str]] = set()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while found != wanted:
                groups = (await asked(client, "/rules")).get("groups", ())
                rules = [rule for group in groups for rule in group["rules"]]
                found = {(rule["name"], rule["health"], rule["state"]) for rule in rules}
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not as wanted: {sorted(found - wanted)}") from None


async def test_an_unfair_replica_is_an_alert_in_the_making(tmp_path: Path) -> None:
    _, routers = pod_monitors(SUBJECT)
    async with AsyncExitStack() as stack:
        unfair = simulated(replica_policy="FCFS")
        router, _ = await stack.enter_async_context(fleet(1, settings=unfair))
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, limits=limits)
        )
        await stack.enter_async_context(asking(client, 300))  # one client of its own tenant
        await stack.enter_async_context(asking(client, 30, Authorization=f"Bearer {KEY}"))
        scrapes = [scraped(routers, f"127.0.0.1:{router.probe_port}")]
        api = await stack.enter_async_context(prometheus(tmp_path, scrapes, alert_groups(SUBJECT)))
        async with asyncio.timeout(3 * PATIENCE_S):
            while "EvenkeelShareSkewed" not in await about_to_fire(api):  # noqa: ASYNC110 - its state, not ours
                await asyncio.sleep(0.2)


@asynccontextmanager
async def asking(client: httpx.AsyncClient, count: int, **headers: str) -> AsyncIterator[None]:
    """A client keeps that many requests waiting, until the end of the context."""

    async def ask(number: int) -> None:
        prompt = f"{headers} {number} " + "word " * 2000
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 256}
        while True:
            with suppress(httpx.HTTPError):  # that of a request which waited too long here
                await client.post("/v1/completions", json=body, headers=headers)

    tasks = [asyncio.create_task(ask(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def about_to_fire(client: httpx.AsyncClient) -> set[str]:
    """Alerts whose condition holds, for however long."""
    alerts = (await asked(client, "/alerts")).get("alerts", ())
    return {alert["labels"]["alertname"] for alert in alerts}


def joined(cell: str, other: str, url: str) -> FederationConfig:
    cells = (CellConfig(name=other, url=url),)
    return FederationConfig(cell=cell, token="t" * LEAST_TOKEN, cells=cells)


async def test_a_real_prometheus_finds_every_series_that_alerts_ask_for(tmp_path: Path) -> None:
    engines, routers = pod_monitors(SUBJECT)
    rules = [rule for group in alert_groups(SUBJECT) for rule in group["rules"]]
    # Without a failure there is no series of it: any other outcome has the same labels.
    selectors = {
        re.sub(r'error_code=~"[^"]*"', 'error_code!=""', text)
        for rule in rules
        for text in _SELECTOR.findall(rule["expr"])
    }
    assert len(selectors) > 10
    async with (
        fleet(1, federation=joined("west", "east", "http://127.0.0.1:9")) as (west, _),
        fleet(1, ttft_threshold_s=1.5, federation=joined("east", "west", west.url)) as (
            router,
            (server,),
        ),
    ):
        async with httpx.AsyncClient(base_url=router.url) as client:
            body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
            headers = {"Authorization": f"Bearer {KEY}"}
            assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
            headers = {"Authorization": "Bearer nobody's"}
            assert (
                await client.post("/v1/completions", json=body, headers=headers)
            ).is_client_error
            # Past the router: without a client key.
            assert (await client.post(f"{server.url}/v1/completions", json=body)).is_success
        addresses = {
            "engine": urlsplit(server.url).netloc,
            "router": f"127.0.0.1:{router.probe_port}",
        }
        for folder, scrapes in {
            "monitors": [
                scraped(engines, addresses["engine"]),
                scraped(routers, addresses["router"]),
            ],
            "plain": plainly_scraped(SUBJECT, addresses),
        }.items():
            (tmp_path / folder).mkdir()
            async with prometheus(tmp_path / folder, scrapes, alert_groups(SUBJECT)) as client:
                await until_each(client, selectors)
                await until_at_rest(client, {rule["alert"] for rule in rules})
