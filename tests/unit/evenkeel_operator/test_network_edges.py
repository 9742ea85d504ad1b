"""What the operator asks of the network: Prometheus, routers, the watches of the cluster, and its own time table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from evenkeel_kube.client import Unreachable
from evenkeel_operator import app
from evenkeel_operator.app import APIS_INTERVAL_S, Connections, Leader, kopf_settings, registry
from evenkeel_operator.cluster.apply import Applier, Refusals
from evenkeel_operator.cluster.lease import LeaseTiming
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.prometheus import (
    MAX_ANSWER_BYTES,
    PrometheusError,
    Source,
    prometheus,
)
from evenkeel_operator.cluster.routers import reached
from evenkeel_operator.cluster.store import SERVICE, TENANT, Key, ObjectTable, Store
from evenkeel_operator.core.reasons import DATA_PARTIAL, NO_ANSWER, UNREACHABLE
from evenkeel_operator.reconcile import RESYNC_S
from evenkeel_operator.settings import Settings

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_downloads import FakeDownloads
from tests.support.fake_prometheus import FakePrometheus
from tests.support.fake_routers import FakeRouters
from tests.support.operator_lives import DEFAULTS, KEY
from tests.support.ports import free_ports
from tests.support.virtual_time import Longest, run_virtually
from tests.unit.evenkeel_operator.test_lease import LeaseServer, candidate

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(answer: Answer, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server whose every path is answered like this; its port."""
    made = web.Application()
    made.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(made)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


ONE = {"data": {"result": [{"metric": {"tenant": "a"}, "value": [1.0, "2.5"]}]}}


async def test_prometheus_is_asked_with_the_query_and_the_token_below_its_path() -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response(ONE)

    async with server(answer) as port, prometheus() as client:
        url = f"http://127.0.0.1:{port}/prefix?ignored=1"
        found = await client.ask(Source(url, "secret"), {"x": "up", "y": "sum(up)"})
        assert {name: (*one,) for name, one in found.items()}.keys() == {"x", "y"}
        (sample,) = found["x"]
        assert (sample.labels, sample.value) == ({"tenant": "a"}, 2.5)
        assert [(one.path, dict(one.query)) for one in seen] == [
            ("/prefix/api/v1/query", {"query": "up"}),
            ("/prefix/api/v1/query", {"query": "sum(up)"}),
        ]
        assert {one.headers["Authorization"] for one in seen} == {"Bearer secret"}
        await client.ask(Source(url), {"x": "up"})
        assert "Authorization" not in seen[-1].headers


async def test_neither_prometheus_nor_a_router_leads_the_operator_elsewhere() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with server(answer) as port, prometheus() as client, reached(port=port) as routers:
        with pytest.raises(PrometheusError) as error:
            await client.ask(Source(f"http://127.0.0.1:{port}"), {"x": "up"})
        assert error.value.note.reason == NO_ANSWER
        assert "status 302" in error.value.note.message
        assert await routers.activation("127.0.0.1", token="t", known=True) is None
        assert asked == ["/api/v1/query", "/v1/activation"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", NO_ANSWER),
        (b'{"data": {"result": [{"metric": {}, "value": [1, "x"]}]}}', NO_ANSWER),
        (b" " * (MAX_ANSWER_BYTES + 1), NO_ANSWER),
        (b'{"data": {"result": []}, "warnings": ["a store is missing"]}', DATA_PARTIAL),
    ],
)
async def test_an_answer_of_no_use_is_an_error_with_its_reason(body: bytes, reason: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async with server(answer) as port, prometheus() as client:
        with pytest.raises(PrometheusError) as error:
            await client.ask(Source(f"http://127.0.0.1:{port}"), {"x": "up"})
        assert error.value.note.reason == reason


async def test_an_answer_of_the_longest_size_is_read() -> None:
    async def answer(_: web.Request) -> web.Response:
        body = b'{"data": {"result": []}}'
        return web.Response(body=body + b" " * (MAX_ANSWER_BYTES - len(body)))

    async with server(answer) as port, prometheus() as client:
        assert await client.ask(Source(f"http://127.0.0.1:{port}"), {"x": "up"}) == {"x": ()}


async def test_a_prometheus_without_a_server_is_unreachable() -> None:
    (port,) = free_ports(1)
    async with prometheus() as client:
        with pytest.raises(PrometheusError) as error:
            await client.ask(Source(f"http://127.0.0.1:{port}"), {"x": "up"})
        assert error.value.note.reason == UNREACHABLE


async def test_a_router_is_polled_for_longer_than_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenkeel_operator.cluster.routers.TIMEOUT_S", 0.2)

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.6)
        return web.json_response({"version": 1, "wanted": request.query["wanted"] == "false"})

    pod = {
        "metadata": {"name": "p"},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    async with server(answer) as port, reached(port=port) as routers:
        assert await routers.activation("127.0.0.1", token="t", known=False) is True
        assert await routers.ask([pod], token="t") == [None]


async def test_an_address_of_version_6_has_brackets() -> None:
    async with reached(port=81) as routers:
        assert routers._base("fd00::1") == "http://[fd00::1]:81"
        assert routers._base("10.0.0.1") == "http://10.0.0.1:81"


# The watches.

WATCHED = {
    ("", "v1", "configmaps"),
    ("", "v1", "namespaces"),
    ("", "v1", "nodes"),
    ("", "v1", "persistentvolumeclaims"),
    ("", "v1", "pods"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("batch", "v1", "jobs"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("evenkeel.dev", "v1alpha1", "fairinferencegateways"),
    ("evenkeel.dev", "v1alpha1", "fairinferenceservices"),
    ("gateway.networking.k8s.io", "v1", "httproutes"),
    ("inference.networking.k8s.io", "v1", "inferencepools"),
    ("monitoring.coreos.com", "v1", "podmonitors"),
    ("monitoring.coreos.com", "v1", "prometheusrules"),
    ("networking.k8s.io", "v1", "ingresses"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
}
OF_OTHERS = {"namespaces", "nodes", "secrets", "horizontalpodautoscalers", "inferencepools"}
"""Kinds whose objects have no label of a service."""


async def test_every_kind_is_watched_and_its_events_come_with_its_name() -> None:
    seen, ended = [], []

    async def ends() -> None:
        ended.append(True)

    found = registry(lambda *event: seen.append(event), ends)
    handlers = found._watching.get_all_handlers()
    selectors = {(h.selector.group, h.selector.version, h.selector.any_name) for h in handlers}
    assert selectors == WATCHED
    for handler in handlers:
        await handler.fn(event={"type": None, "object": {"metadata": {}}})
    assert {kind for _, kind, _ in seen} >= {SERVICE, "Pod", "Node", "Namespace"}
    assert len({kind for _, kind, _ in seen}) == len(WATCHED)
    (cleanup,) = (one for one in found._activities.get_all_handlers() if "ends" in str(one.id))
    await cleanup.fn()
    assert ended == [True]


def test_only_labelled_objects_are_watched_where_others_have_many() -> None:
    found = kopf_settings(lambda namespace: None)
    selectors: Any = found.watching.label_selectors
    selected = {selector.any_name: label for selector, label in selectors.items()}
    labelled = {plural for group, _, plural in WATCHED if group != "evenkeel.dev"} - OF_OTHERS
    assert selected == dict.fromkeys(labelled, "evenkeel.dev/service") | {
        "endpointslices": "evenkeel.dev/external"
    }
    assert (found.posting.enabled, found.peering.standalone) == (False, True)


# The leader's time table.


def leader(cluster: FakeCluster) -> Leader:
    settings = Settings(defaults=DEFAULTS, identity="one", namespace="evenkeel-system")
    made = Leader(Connections(cluster, FakeRouters(), FakeDownloads(), FakePrometheus()), settings)
    made._rng = Longest()
    return made


def tenant(name: str) -> dict[str, Any]:
    return {"kind": TENANT, "metadata": {"namespace": "team-ml", "name": name}, "spec": {}}


async def during(seconds: float, work: Any) -> None:
    task = asyncio.create_task(work)
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("fails", [False, True])
def test_every_resource_gets_a_pass_after_all_is_listed_again(fails: bool) -> None:
    cluster = FakeCluster()
    added: list[tuple[Key, float]] = []

    async def main() -> None:
        made = leader(cluster)
        made.store.see("ADDED", SERVICE, cluster.put(document("simulator.yaml")))
        made.store.see("ADDED", TENANT, cluster.put(tenant("acme")))
        made.work_queue.add = lambda key, after_s=None: added.append((key, after_s))  # type: ignore

        async def down(*_: object, **__: object) -> list[Any]:
            raise Unreachable("down")

        if fails:
            cluster.list_all = down  # type: ignore[method-assign]
        await during(RESYNC_S - 1, made.list_again())
        assert added == []
        await during(RESYNC_S + 1, made.list_again())

    run_virtually(main())
    assert sorted(added) == [(KEY, app.SPREAD_S), (Key(TENANT, "team-ml", "acme"), app.SPREAD_S)]


def test_a_watch_that_works_again_leads_to_passes_in_its_namespace() -> None:
    cluster = FakeCluster()
    added: list[Key] = []

    async def main() -> None:
        made = leader(cluster)
        gone = cluster.put(document("simulator.yaml"))
        elsewhere = document("simulator.yaml")
        elsewhere["metadata"]["namespace"] = "team-b"
        for item in (gone, cluster.put(elsewhere)):
            made.store.see("ADDED", SERVICE, item)
        made.work_queue.add = lambda key, after_s=None: added.append(key)  # type: ignore
        del cluster.objects[SERVICE, "team-ml", KEY.name]  # no watch reports it
        listing = asyncio.create_task(made.list_again())
        await asyncio.sleep(0)
        for _ in range(3):  # one for each kind of object
            made.on_recovery("team-ml")
        await asyncio.sleep(2 * app.RECOVERY_S)
        assert made.store.keys(SERVICE, "team-ml") == frozenset()
        assert {key.namespace for key in added} <= {"team-ml"}
        added.clear()
        made.on_recovery("team-b")
        await asyncio.sleep(2 * app.RECOVERY_S)
        listing.cancel()
        await asyncio.gather(listing, return_exceptions=True)

    run_virtually(main())
    assert added == [Key(SERVICE, "team-b", KEY.name)]


def test_a_changed_list_of_apis_leads_to_a_pass_over_every_service() -> None:
    cluster = FakeCluster()
    cluster.optional = frozenset({"PodMonitor"})
    added: list[Key] = []

    async def main() -> None:
        made = leader(cluster)
        made.store.see("ADDED", SERVICE, cluster.put(document("simulator.yaml")))
        made.store.see("ADDED", TENANT, cluster.put(tenant("acme")))
        made.work_queue.add = lambda key, after_s=None: added.append(key)  # type: ignore
        assert await made.observer.look_at_apis()
        assert made.observer.apis == {"PodMonitor"}
        await during(APIS_INTERVAL_S + 1, made.follow_apis())
        assert added == []
        cluster.optional = frozenset({"PodMonitor", "HTTPRoute"})
        await during(APIS_INTERVAL_S + 1, made.follow_apis())
        assert made.observer.apis == {"PodMonitor", "HTTPRoute"}
        assert not await made.observer.look_at_apis()

    run_virtually(main())
    assert added == [KEY]


async def test_news_of_a_waiting_request_and_of_a_scaler_lead_to_a_pass_at_once() -> None:
    made = leader(FakeCluster())
    passes: list[tuple[Key, float | None]] = []
    looks: list[tuple[Key, float | None]] = []
    made.work_queue.add = lambda key, after_s=None: passes.append((key, after_s))  # type: ignore
    made._looks.add = lambda key, after_s=None: looks.append((key, after_s))  # type: ignore
    made.activations._on_news(KEY)
    made._autoscaler._wake(KEY)
    made._autoscaler._look_at(KEY)
    assert (passes, looks) == ([(KEY, 0.0), (KEY, 0.0)], [(KEY, 0.0)])


# Lists and writes.


def item(version: int, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def test_an_event_after_a_list_is_not_applied_to_the_next_list() -> None:
    table: ObjectTable[str] = ObjectTable(lambda one: str(one["metadata"]["name"]))
    table.begin()
    table.see(item(5), gone=False)
    table.finish([])
    assert table.items == {"a": item(5)}
    table.see(item(6, "b"), gone=False)
    table.finish([item(7)])  # without `begin`: nothing happened meanwhile
    assert table.items == {"a": item(7)}


@pytest.mark.parametrize(
    ("known", "event", "gone", "after", "is_news"),
    [
        (5, 6, False, 6, True),
        (5, 5, False, 5, False),
        (5, 4, False, 5, False),
        (5, 5, True, None, True),
        (5, 6, True, None, True),
        (5, 4, True, 5, True),
        (None, 4, True, None, True),
        (None, 4, False, 4, True),
    ],
)
def test_the_newer_version_of_an_object_stays(
    known: int | None, event: int, gone: bool, after: int | None, is_news: bool
) -> None:
    table: ObjectTable[str] = ObjectTable(lambda one: str(one["metadata"]["name"]))
    table.finish([] if known is None else [item(known)])
    assert table.see(item(event), gone=gone) == (is_news, None if known is None else item(known))
    assert table.items == ({} if after is None else {"a": item(after)})


async def test_a_status_is_written_once() -> None:
    cluster, store = FakeCluster(), Store()
    applier = Applier(cluster, store, Refusals(rng=Longest(), monotonic_s=lambda: 0.0))
    raw = cluster.put(document("simulator.yaml"))
    status = {"observedGeneration": 1, "conditions": []}
    assert await applier.write_status(KEY, raw, status) is True
    (known,) = store.named(KEY.kind, KEY.namespace).items.values()
    assert known["status"] == status
    assert await applier.write_status(KEY, known, status) is False


async def test_all_lists_are_made_again_and_named_secrets_read_again() -> None:
    cluster, store = FakeCluster(), Store()
    observer = Observer(cluster, store, any_secret=False)
    cluster.put(tenant("acme"))
    secret = {"kind": "Secret", "metadata": {"namespace": "team-ml", "name": "keys"}, "data": {}}
    cluster.put(secret)
    assert len(await observer.all_of(TENANT, "team-ml")) == 1
    assert await observer.secret("team-ml", "keys") is not None
    cluster.objects.clear()
    assert len(await observer.all_of(TENANT, "team-ml")) == 1
    await observer.list_again()
    assert await observer.all_of(TENANT, "team-ml") == ()
    assert await observer.secret("team-ml", "keys") is None


# The lease.


def test_a_candidate_takes_the_lease_when_its_time_is_over_and_not_before() -> None:
    taken_s: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        timing = LeaseTiming(duration_s=15, renew_deadline_s=10, retry_s=1)
        await candidate(server, "a", timing).acquire()
        began_s = loop.time()
        await candidate(server, "b", timing).acquire()
        taken_s.append(loop.time() - began_s)
        assert server.holder == "b"
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 2
        assert server.lease["spec"]["leaseDurationSeconds"] == 15

    run_virtually(main())
    assert taken_s == [15.0]


def test_a_holder_that_cannot_renew_stops_before_another_may_lead() -> None:
    ended_s: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        holder = candidate(server, "a", LeaseTiming(duration_s=15, renew_deadline_s=10, retry_s=2))
        await holder.acquire()
        began_s = loop.time()
        keeping = asyncio.create_task(holder.keep())
        await asyncio.sleep(5)
        server.is_down = True
        await keeping
        ended_s.append(loop.time() - began_s)

    run_virtually(main())
    assert ended_s == [14.0]  # it renewed last after 4 s
