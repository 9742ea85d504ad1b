"""The scaler and a real Prometheus that scrapes a real router; and servers at `prometheus.url` that are none."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from evenkeel_operator.cluster import prometheus as edge
from evenkeel_operator.cluster.prometheus import HttpPrometheus, PrometheusError, Source, prometheus
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core.recommendation import Answers, queries
from evenkeel_operator.manifests.monitoring import pod_monitors

from tests.support.build_contexts import document, sample_context, with_apis
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY as SCALED
from tests.support.operator_lives import Operator, condition
from tests.support.ports import free_ports
from tests.support.prometheus import prometheus as real_prometheus
from tests.support.prometheus import scraped
from tests.support.routers import KEY, MODEL, PATIENCE_S, fleet, until

SECRET = "what only the operator may see"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def cluster_with(**scaling: Any) -> FakeCluster:
    found = FakeCluster()
    plain = document("simulator.yaml")
    plain["metadata"]["generation"] = 1
    del plain["spec"]["engine"]["replicas"]
    plain["spec"]["autoscaling"] = scaling
    found.put(plain)
    return found


async def ask(url: str, count: int, **headers: str) -> None:
    """Short requests of one client."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, headers=headers) as client:
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
        for _ in range(count):
            (await client.post("/v1/completions", json=body)).raise_for_status()


async def until_scaled(operator: Operator, cluster: FakeCluster, want: int) -> None:
    """Look until there are to be that many; never more."""
    desired = -1
    async with asyncio.timeout(PATIENCE_S):
        while desired != want:
            operator.now_s += 15.0
            await operator.autoscaler.look(SCALED)
            await operator.make_pass(SCALED)
            engines = cluster.objects["Deployment", "team-ml", "simulated-engine"]
            desired = engines["spec"]["replicas"]
            assert desired <= want
            await asyncio.sleep(0.1)


async def test_a_real_prometheus_makes_a_service_grow_and_its_end_makes_it_hold(
    tmp_path: Path,
) -> None:
    _, routers = pod_monitors(with_apis(sample_context("simulator.yaml")))
    async with fleet(1) as (router, _), prometheus() as seen:
        scrapes = [scraped(routers, f"127.0.0.1:{router.probe_port}")]
        async with real_prometheus(tmp_path, scrapes) as api:
            cluster = cluster_with(
                maxReplicas=10,
                maxReplicasPerClient=4,
                prometheus={"url": str(api.base_url).removesuffix("/api/v1/")},
                targets={"servicePerReplica": "10m", "queueTime": "100s", "ttftP95": "100s"},
            )
            operator = Operator(cluster, prometheus=seen)
            await operator.make_pass(SCALED)
            await ask(router.url, 8, Authorization=f"Bearer {KEY}")
            await until_scaled(operator, cluster, 4)  # one greedy client
            await ask(router.url, 8)
            await until_scaled(operator, cluster, 8)  # and another one
            assert condition(cluster, "ScalingActive")["status"] == "True"
            assert cluster.objects[SERVICE, "team-ml", "simulated"]["status"]["scaling"] == {
                "desired": 8, "reason": "Demand", "lastScaleTime": "2026-01-31T12:00:00Z"}  # fmt: skip
        await operator.autoscaler.look(SCALED)
        await operator.make_pass(SCALED)
        verdict = condition(cluster, "ScalingActive")
        assert (verdict["status"], verdict["reason"]) == ("False", "PrometheusUnreachable")
        engines = cluster.objects["Deployment", "team-ml", "simulated-engine"]
        assert engines["spec"]["replicas"] == 8


async def test_every_query_has_an_answer_once_requests_were_served(tmp_path: Path) -> None:
    """Capacity but the first: nobody waits here, and its minutes are those of promtool's tests."""
    _, routers = pod_monitors(with_apis(sample_context("simulator.yaml")))
    async with fleet(1) as (router, _), prometheus() as seen:
        scrapes = [scraped(routers, f"127.0.0.1:{router.probe_port}")]
        async with real_prometheus(tmp_path, scrapes) as api:
            cluster = cluster_with(
                maxReplicas=10,
                prometheus={"url": str(api.base_url).removesuffix("/api/v1/")},
                targets={"queueTime": "100s", "ttftP95": "100s"},
            )
            noting = Noting(seen)
            operator = Operator(cluster, prometheus=noting)
            await operator.make_pass(SCALED)
            async with asyncio.timeout(PATIENCE_S):
                while not {"age", "asked", "inFlight", "queue", "ttft"} <= noting.answered:
                    await ask(router.url, 1)
                    await operator.autoscaler.look(SCALED)


class Noting:
    """Notes which queries had an answer."""

    def __init__(self, inner: HttpPrometheus) -> None:
        self._inner = inner
        self.answered: set[str] = set()

    async def ask(self, source: Source, queries: Mapping[str, str]) -> Answers:
        try:
            answers = await self._inner.ask(source, queries)
        except PrometheusError:  # it is not up yet
            return {}
        self.answered |= {name for name, samples in answers.items() if samples}
        return answers


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """A server at which every path is answered so."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def refused(url: str) -> PrometheusError:
    async with prometheus() as client:
        with pytest.raises(PrometheusError) as caught:
            await client.ask(Source(url, "token"), {"one": "up", "two": "up"})
    assert SECRET not in caught.value.note.message
    return caught.value


def answering(status: int = 200, text: str = SECRET, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return handle


SOME = '{"status":"success","data":{"resultType":"vector","result":[]}'
ODD = {
    "an error": (answering(401), "PrometheusError", "answers with status 401"),
    "a redirect": (
        answering(302, Location="/elsewhere"),
        "PrometheusError",
        "answers with status 302",
    ),
    "no JSON": (answering(), "PrometheusError", "not that of a Prometheus"),
    "other JSON": (answering(text='{"secret": 1}'), "PrometheusError", "not that of a Prometheus"),
    "no number": (
        answering(text=SOME.replace("[]", '[{"metric":{},"value":[1,"x"]}]') + "}"),
        "PrometheusError",
        "not that of a Prometheus",
    ),
    "a part": (
        answering(text=SOME + ',"warnings":["a store is away"]}'),
        "DataPartial",
        "incomplete",
    ),
    "too much": (answering(text="x" * (5 * 2**20)), "PrometheusError", "exceeds"),
}


@pytest.mark.parametrize("case", ODD)
async def test_an_unusable_answer_is_reported_by_its_kind_alone(case: str) -> None:
    handler, reason, words = ODD[case]
    async with served(handler) as url:
        note = (await refused(url)).note
    assert note.reason == reason
    assert words in note.message


async def test_a_server_that_hangs_or_is_not_there_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge, "TIMEOUT_S", 0.2)
    ended = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await ended.wait()
        return web.Response()

    async with served(hang) as url:
        assert (await refused(url)).note.reason == "PrometheusUnreachable"
        ended.set()
    (port,) = free_ports(1)
    assert (await refused(f"http://127.0.0.1:{port}")).note.reason == "PrometheusUnreachable"


async def test_a_connection_that_is_cut_off_is_an_error_and_the_next_look_sees() -> None:
    cut = [True]

    async def handle(request: web.Request) -> web.Response:
        if cut[0] and request.query["query"] == "two" and request.transport is not None:
            request.transport.abort()
        return web.Response(text=SOME + "}")

    async with served(handle) as url, prometheus() as client:
        for _ in range(3):
            with pytest.raises(PrometheusError) as caught:
                await client.ask(Source(url), {"one": "one", "two": "two"})
            assert caught.value.note.reason == "PrometheusUnreachable"
        cut[0] = False
        assert await client.ask(Source(url), {"one": "one", "two": "two"}) == {"one": (), "two": ()}


async def test_the_token_is_sent_below_the_path_and_the_query_is_left_out() -> None:
    asked: list[tuple[str, str, str]] = []

    async def handle(request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        asked.append((request.path, token, request.query.get("query", "")))
        return web.Response(text=SOME + "}")

    async with served(handle) as url, prometheus() as client:
        found = await client.ask(Source(f"{url}/prom?x=/", "hunter2"), {"one": "up > 0"})
    assert found == {"one": ()}
    assert asked == [("/prom/api/v1/query", "Bearer hunter2", "up > 0")]


async def test_routers_export_every_series_that_is_asked_for() -> None:
    """Those of capacity too, whose answer takes waiting requests. A family without a series has its type."""
    scaling = sample_context("gpu.yaml").spec.autoscaling
    assert scaling is not None
    asked = " ".join(queries("team-ml", "llama", scaling).values())
    names = set(re.findall(r"\bevenkeel_router_\w+", asked))
    assert len(names) >= 7
    async with fleet(1) as (router, _):
        await ask(router.url, 1)
        await until(lambda: bool(router.rooms.service_ledger.fairness.now.tenants), "figures")
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
    exported = r"^(# TYPE {0} |{0}\{{)"
    assert {
        name for name in names if not re.search(exported.format(name), text, re.MULTILINE)
    } == set()
