"""A router that dies behind a real proxy costs requests that it had, and no new one, where the proxy sends again what it could
not send: nginx with the operator's annotation, Traefik with its middleware `retry`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_contract.names import TRAFFIC_PORT

from e2e.faults import machine
from e2e.installed import Namespace, ingress, request
from e2e.operators import wait_until
from e2e.rig.layout import AUDIT_LOG, in_url
from e2e.scraping import routes
from tests.support.nginx import nginx

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not AUDIT_LOG.exists(), reason="kills processes of the cluster of `make cluster`"
    ),
]
_log = logging.getLogger(__name__)
CLIENTS = 20
RETRIES = {"traefik.ingress.kubernetes.io/router.middlewares": "retry@file"}


@pytest.fixture(scope="module")
def served(team: Namespace) -> Iterator[Namespace]:
    """Two services with two routers each: `one`, and `retried`, whose Ingress names the middleware."""
    for name, marks in (("one", {}), ("retried", RETRIES)):
        where = {"ingress": {"host": team.host(name), "annotations": marks}}
        team.serve(name, router={"replicas": 2}, exposure=where)
        wait_until(partial(_is_served, team.host(name)), f"{name} behind the ingress")
    with routes():
        yield team


def _is_served(host: str) -> bool:
    url, headers = f"http://{ingress()}/v1/completions", {"Host": host}
    return httpx.post(url, json=request(), headers=headers, timeout=60).is_success


async def test_nginx_loses_no_new_request(served: Namespace, tmp_path: Path) -> None:
    routers = served.pods("one", "router").values()
    addresses = [f"{in_url(pod['status']['podIP'])}:{TRAFFIC_PORT}" for pod in routers]
    async with nginx(tmp_path, addresses) as client:
        lost = await killed(served, "one", client)
    assert max(lost) <= 1, "a client lost a request that it sent after the kill"


async def test_traefik_with_retries_loses_no_new_request(served: Namespace) -> None:
    async with through_traefik(served, "retried") as client:
        lost = await killed(served, "retried", client)
    assert max(lost) <= 1, "a client lost a request that it sent after the kill"


async def test_traefik_without_retries_loses_new_ones(served: Namespace) -> None:
    async with through_traefik(served, "one") as client:
        lost = await killed(served, "one", client)
    assert max(lost) > 1, "then the advice about retries is out of date"


@asynccontextmanager
async def through_traefik(team: Namespace, name: str) -> AsyncIterator[httpx.AsyncClient]:
    base, headers = f"http://{ingress()}", {"Host": team.host(name)}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
        yield client


async def killed(team: Namespace, name: str, client: httpx.AsyncClient) -> list[int]:
    """Lost requests of each client, of which each has one request at a time, from before the kill until the router is back."""
    answers: list[list[str]] = [[] for _ in range(CLIENTS)]
    over = asyncio.Event()
    asking = [asyncio.create_task(_ask(client, one, over)) for one in answers]
    try:
        await _later(lambda: all(len(one) > 2 for one in answers))
        (victim, *_) = (await asyncio.to_thread(team.pods, name, "router")).values()
        before = _restarts(victim)
        await asyncio.to_thread(machine.kill, victim)
        pod = victim["metadata"]["name"]

        def is_back() -> bool:
            found = team.pods(name, "router")[pod]
            ready = {one["type"]: one["status"] for one in found["status"]["conditions"]}["Ready"]
            return _restarts(found) > before and ready == "True"

        await _later(is_back)
        marks = [len(one) for one in answers]
        await _later(lambda: all(len(o) > mark + 2 for o, mark in zip(answers, marks, strict=True)))
    finally:
        over.set()
        await asyncio.gather(*asking)
    outcomes = Counter(text for one in answers for text in one)
    _log.info("%s: %s", name, dict(outcomes))
    return [sum(text != "200" for text in one) for one in answers]


def _restarts(pod: Any) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


async def _ask(client: httpx.AsyncClient, answers: list[str], over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            sent = await client.post("/v1/completions", json=request(tokens=4))
            answers.append(str(sent.status_code))
        except httpx.HTTPError as error:
            answers.append(type(error).__name__)


async def _later(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, holds, "what comes next")
