"""Every query of every dashboard finds data in a real Prometheus that scrapes a fleet of `evenkeel up`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_operator.manifests.monitoring import pod_monitors

from monitoring.generate import CHART
from tests.integration.test_prometheus import SUBJECT, until_each
from tests.integration.test_up_command import FILE, Up
from tests.support.dashboard_pictures import draw
from tests.support.plain_words import ROOT
from tests.support.prometheus import prometheus, scraped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("source_path")]
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
SECOND = FILE.replace(
    "name: sample", "name: second"
).replace(
    "scheduling:",
    "router: {limits: {firstTokenTimeout: 300ms}, state: {store: File}}\n  scheduling:",  # some requests fail
)
FIRST = FILE.replace("scheduling:", "router: {replicas: 2, qoe: {}}\n  scheduling:")

NEVER_HERE = "sglang:num_retracted_requests_total"
"""A replica exports it from its first retraction on, and this load causes none."""


def queries(path: Path) -> Iterator[str]:
    """Of all panels, with the namespace and service that the scrapes have."""
    labels = {"$namespace": SUBJECT.namespace, "$service": SUBJECT.name}
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query: str = target["expr"]
            for variable, value in labels.items():
                query = query.replace(variable, value)
            yield query


def configs(up: Up) -> list[RouterConfig]:
    """The configuration of each of its routers."""
    found = [
        parse_router_config(path.read_bytes())[0]
        for path in (up.folder / ".evenkeel").glob("*/router*.json")
    ]
    return [config for config in found if config is not None]


def scrapes(up: Up) -> list[dict[str, Any]]:
    """Of its routers and replicas, as their PodMonitors have it on a cluster."""
    engines, routers = pod_monitors(SUBJECT)
    found = [scraped(routers, f"127.0.0.1:{config.listen.probe_port}") for config in configs(up)]
    found += [scraped(engines, urlsplit(one.url).netloc) for one in configs(up)[0].replicas]
    for number, one in enumerate(found):
        one["job_name"] += f"-{up.folder.name}-{number}"
    return found


async def load(up: Up, client: httpx.AsyncClient) -> None:
    """Requests of every kind, until the fleet ends: faulty, aborted, and for the engine itself."""
    body = {
        "model": "m",
        "prompt": "word " * 300,
        "max_tokens": 64,
        "ignore_eos": True,
        "routing_key": "stripped",
    }
    long = body | {"max_tokens": 2000}
    queued = body | {"stream": True}  # the second fleet does not wait as long for a first token
    headers = {"Authorization": "Bearer sk-chat"}
    engine = configs(up)[0].replicas[0].url
    while up.process.poll() is None:
        await asyncio.gather(
            client.post(f"{up.url}/v1/completions", json=long, headers=headers, timeout=0.2),
            client.post(f"{engine}/v1/completions", json=body, headers={"x-smg-routing-key": "?"}),
            *(
                client.post(f"{up.url}/v1/completions", json=body, headers=headers)
                for _ in range(24)
            ),
            *(
                client.post(
                    f"{up.url}/v1/completions",
                    json=queued | {"prompt": f"{number} " + "word " * 4000},
                    headers=headers,
                )
                for number in range(24)
            ),
            client.post(f"{up.url}/v1/completions", json=body),
            return_exceptions=True,
        )


@pytest.mark.timeout(300)
async def test_every_query_of_every_dashboard_finds_data(tmp_path: Path) -> None:
    ups = []
    for name, text in (("first", FIRST), ("second", SECOND)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "fleet.yaml").write_text(text)
        ups.append(Up(folder))
    wanted = {query for path in DASHBOARDS for query in queries(path) if NEVER_HERE not in query}
    assert len(wanted) > 40
    assert not [query for query in wanted if re.search(r"\$\w", query)]
    limits = httpx.Limits(max_connections=None)
    try:
        for up in ups:
            await asyncio.to_thread(up.until_ready)
        found = [one for up in ups for one in scrapes(up)]
        async with (
            httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client,
            prometheus(tmp_path, found, every="2s") as api,
        ):
            loads = [asyncio.create_task(load(up, client)) for up in ups]
            try:
                await until_each(api, wanted, patience_s=120)
            finally:
                for up in ups:
                    up.process.kill()  # its processes end, too, and with them all requests
                await asyncio.gather(*loads)
    finally:
        for up in ups:
            up.process.kill()
            up.process.wait()


PICTURED_S = 150
FLOOD, QUIET_S = "sk-research-notebook", 45
OTHERS = ("sk-ads-chat", "sk-ads-batch", "sk-search-rerank", "sk-support-agent")


@pytest.mark.skipif("EVENKEEL_PICTURES" not in os.environ, reason="set EVENKEEL_PICTURES=1 to draw")
@pytest.mark.timeout(PICTURED_S + 900)
async def test_pictures_of_the_dashboards_are_drawn(tmp_path: Path) -> None:
    """One client floods the quickstart's fleet after a while; the pictures are in docs/images."""
    example = (ROOT / "examples/quickstart.yaml").read_text()
    (tmp_path / "fleet.yaml").write_text(
        example.replace(
            "\n  scheduling:",
            "\n      - --max-running-requests=4\n  router: {replicas: 2}\n  scheduling:",
            1,
        )
    )
    up = Up(tmp_path)
    labels = {"$namespace": SUBJECT.namespace, "$service": SUBJECT.name}
    try:
        await asyncio.to_thread(up.until_ready)
        async with (
            httpx.AsyncClient(timeout=120, trust_env=False) as client,
            prometheus(tmp_path, scrapes(up), every="2s") as api,
        ):
            began_s = time.time()
            async with asyncio.TaskGroup() as group:
                for key in OTHERS:
                    for number in range(6):
                        group.create_task(ask(client, up, key, number, PICTURED_S))
                for number in range(60):
                    wait_s = QUIET_S + number * 0.05
                    group.create_task(ask(client, up, FLOOD, number, PICTURED_S, wait_s=wait_s))
            period_s = (began_s + 6, time.time())
            for path in DASHBOARDS:
                await draw(
                    json.loads(path.read_text()),
                    api,
                    ROOT / f"docs/images/dashboard-{path.stem}.png",
                    labels=labels,
                    period_s=period_s,
                )
    finally:
        up.process.kill()
        up.process.wait()


async def ask(
    client: httpx.AsyncClient, up: Up, key: str, number: int, until_s: float, *, wait_s: float = 0
) -> None:
    """One request after the other, as one user; each fifth has a prompt of its own."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + until_s
    await asyncio.sleep(wait_s)
    turn = 0
    while loop.time() < end_s:
        turn += 1
        own = f"{number} {turn}" if turn % 5 == 0 else ""
        body = {
            "model": "llama-3.1-8b",
            "prompt": f"{key} " * 400 + own,
            "max_tokens": 60,
            "ignore_eos": True,
        }
        headers = {"Authorization": f"Bearer {key}"}
        await client.post(f"{up.url}/v1/completions", json=body, headers=headers)
