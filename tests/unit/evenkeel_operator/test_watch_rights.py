"""kopf as it is, against an API server of ours: a right to watch that is missing in one namespace ends no other watch, and objects
come in pages and are not kept."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from evenkeel_contract.names import GROUP
from evenkeel_operator import app
from evenkeel_operator.core.objects import Object
from evenkeel_operator.metrics import REGISTRY
from evenkeel_operator.settings import parse_arguments
from prometheus_client import generate_latest

from tests.support.routers import until

SERVICES = f"/apis/{GROUP}/v1alpha1/namespaces/{{}}/fairinferenceservices"
WHERE = {"wa": SERVICES.format("wa"), "wb": SERVICES.format("wb")}
CRD = {"name": "customresourcedefinitions", "kind": "CustomResourceDefinition", "namespaced": False}
SERVICE = {"name": "fairinferenceservices", "kind": "FairInferenceService", "namespaced": True}
VERBS = {"verbs": ["list", "watch", "patch"], "singularName": ""}
GROUPS = {GROUP: ("v1alpha1", SERVICE), "apiextensions.k8s.io": ("v1", CRD)}


class Server:
    """Two namespaces with a service each. The operator may read no namespaces, and at first nothing in `wb`."""

    def __init__(self) -> None:
        self.forbidden = {WHERE["wb"], "/api/v1/namespaces"}
        self.asked: Counter[str] = Counter()
        self.services = 1
        """In each namespace."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked[path] += 1
        if path in self.forbidden:
            return web.json_response({"kind": "Status", "message": "cannot list"}, status=403)
        if "watch" in request.query:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await asyncio.Event().wait()
        found = self._answer(path)
        if "limit" in request.query and "items" in found:
            begin = int(request.query.get("continue", 0))
            end = begin + int(request.query["limit"])
            following = str(end) if end < len(found["items"]) else ""
            metadata = {**found["metadata"], "continue": following}
            found = {**found, "items": found["items"][begin:end], "metadata": metadata}
        return web.json_response(found, status=200 if found else 404)

    def _answer(self, path: str) -> dict[str, Any]:
        versions = {
            name: {"groupVersion": f"{name}/{version}", "version": version}
            for name, (version, _) in GROUPS.items()
        }
        fixed: dict[str, Any] = {
            "/api": {"versions": ["v1"]},
            "/api/v1": {"resources": [{"name": "namespaces", "kind": "Namespace", "namespaced": False, **VERBS}]},
            "/apis": {"groups": [{"name": name, "preferredVersion": one, "versions": [one]} for name, one in versions.items()]},
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": {"items": [], "metadata": {"resourceVersion": "1"}},
        }  # fmt: skip
        for name, (version, resource) in GROUPS.items():
            fixed[f"/apis/{name}/{version}"] = {"resources": [{**resource, **VERBS}]}
        for namespace, where in WHERE.items():
            items = [
                {"metadata": {"name": "s", "namespace": namespace, "uid": f"{namespace}-{number}"}}
                for number in range(self.services)
            ]
            fixed[where] = {"items": items, "metadata": {"resourceVersion": "1"}}
        found: dict[str, Any] = fixed.get(path, {})
        return found


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    found, application = Server(), web.Application()
    application.router.add_get("/{path:.*}", found.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": access}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))  # fmt: skip
    monkeypatch.setattr(app, "WATCH_RETRIES_S", (0.01, 0.02))
    yield found
    await runner.cleanup()


class Nothing:
    def resume(self) -> None: ...

    async def pause(self) -> None: ...


class Seen:
    activations = Nothing()

    def __init__(self) -> None:
        self.namespaces: set[str] = set()
        self.recovered: set[str] = set()
        self.count = 0

    def on_recovery(self, namespace: str) -> None:
        self.recovered.add(namespace)

    def on_event(self, event: str | None, kind: str, item: Object) -> None:
        self.count += 1
        self.namespaces.add(str(item["metadata"]["namespace"]))


def watch(seen: Seen) -> asyncio.Task[None]:
    images = [f"--{name}-image=x" for name in ("router", "sglang", "vllm", "simulator", "download")]
    places = ["--watch-namespace=wa", "--watch-namespace=wb"]
    settings = parse_arguments(
        [*images, *places], {"POD_NAME": "pod", "POD_NAMESPACE": "evenkeel-system"}
    )
    return asyncio.create_task(app._watch(cast(app.Leader, seen), settings))


async def test_a_namespace_without_rights_is_watched_once_it_has_them(server: Server) -> None:
    seen = Seen()
    watching = watch(seen)
    try:
        # More often than all waits of kopf's own requests.
        await until(lambda: server.asked[WHERE["wb"]] > 3 * len(app.WATCH_RETRIES_S), "attempts")
        await until(lambda: seen.namespaces == {"wa"}, "the first namespace")
        assert not watching.done()
        assert not seen.recovered
        failing = 'evenkeel_operator_watch_failing{watch="fairinferenceservices.v1alpha1.evenkeel.dev@wb"}'
        assert f"{failing} 1.0" in generate_latest(REGISTRY).decode()
        server.forbidden.discard(WHERE["wb"])
        await until(lambda: seen.namespaces == {"wa", "wb"}, "both")
        assert failing not in generate_latest(REGISTRY).decode()
        assert seen.recovered == {"wb"}
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def kept() -> list[str]:
    """Objects that kopf still has whole, each in a task of its own."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in names if name.startswith("worker for ")]


async def test_objects_come_in_pages_and_are_not_kept_by_kopf(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PAGE", 3)
    server.forbidden.discard(WHERE["wb"])
    server.services, seen = 60, Seen()
    watching = watch(seen)
    try:
        await until(lambda: seen.count == 2 * server.services, "all services")
        assert server.asked[WHERE["wa"]] >= server.services / app.PAGE
        # By itself kopf keeps them for five seconds.
        await until(lambda: not kept(), "the end of all objects", patience_s=4.0)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
