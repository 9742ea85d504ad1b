"""Requests to the API server, over real sockets: what is sent, and what its answers become."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from evenkeel_kube.client import ApiError, KubeClient, Overloaded, Refused, Unreachable, connected

from tests.support.kube_api import access_to


class Kind(NamedTuple):
    api: str
    plural: str


KINDS = {"Pod": Kind("v1", "pods"), "Deployment": Kind("apps/v1", "deployments")}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "namespace": "ns", "uid": "u"},
    "spec": {"replicas": None, "selector": {"x": ["y", 1]}},
}


@dataclass
class Server:
    """Remembers requests; answers what the test says."""

    port: int = 0
    status: int = 200
    answer: bytes = b"{}"
    answers: dict[str, bytes] = field(default_factory=dict)
    """By path, in place of `answer`."""
    asked: list[tuple[str, str, dict[str, str], str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        head = (request.method, request.path, dict(request.query), request.content_type)
        self.asked.append((*head, json.loads(body) if body else None))
        body = self.answers.get(request.path, self.answer)
        return web.Response(status=self.status, body=body)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


@pytest.fixture
async def writes() -> list[str]:
    return []


@pytest.fixture
async def client(server: Server, writes: list[str]) -> AsyncIterator[KubeClient]:
    access = access_to(f"http://127.0.0.1:{server.port}")
    async with connected(access, kinds=KINDS, manager="me", on_write=writes.append) as found:
        yield found


async def test_apply_is_forced_server_side_apply_and_counted(
    server: Server, client: KubeClient, writes: list[str]
) -> None:
    server.answer = b'{"kind": "Deployment"}'
    assert await client.apply(DEPLOYMENT) == {"kind": "Deployment"}
    path, manager = "/apis/apps/v1/namespaces/ns/deployments/a", {"fieldManager": "me"}
    content = "application/apply-patch+yaml"
    forced = {**manager, "force": "true"}
    assert server.asked.pop() == ("PATCH", path, forced, content, DEPLOYMENT)
    await client.apply(DEPLOYMENT, dry_run=True)
    assert server.asked.pop()[2] == {**forced, "dryRun": "All"}
    await client.apply_status(DEPLOYMENT)
    assert server.asked.pop()[1] == f"{path}/status"
    await client.create(DEPLOYMENT)
    assert server.asked.pop()[:3] == ("POST", path.removesuffix("/a"), manager)
    await client.replace(DEPLOYMENT)
    assert server.asked.pop()[:4] == ("PUT", path, manager, "application/json")
    await client.delete(DEPLOYMENT)
    method, where, _, _, options = server.asked.pop()
    assert (method, where, options["preconditions"]) == ("DELETE", path, {"uid": "u"})
    assert writes == ["patch", "patch", "patch", "post", "put", "delete"]


async def test_a_list_selects_by_label_and_its_items_name_their_kind(
    server: Server, client: KubeClient, writes: list[str]
) -> None:
    server.answer = b'{"items": [{"metadata": {"name": "p"}}]}'
    found = await client.list_all("Pod", "ns", selector="a=b,c in (d, e)")
    assert found == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    method, path, query, _, body = server.asked.pop()
    assert (method, path, body) == ("GET", "/api/v1/namespaces/ns/pods", None)
    assert query == {"labelSelector": "a=b,c in (d, e)", "limit": "500"}
    await client.list_all("Pod", "")
    assert server.asked.pop()[1] == "/api/v1/pods"
    await client.list_all("Pod", "ns", fields="spec.nodeName=n")
    assert server.asked.pop()[2] == {"fieldSelector": "spec.nodeName=n", "limit": "500"}
    assert writes == []


async def test_the_scale_of_any_kind_is_read_and_written_by_its_subresource(
    server: Server, client: KubeClient, writes: list[str]
) -> None:
    listed = [
        {"name": "workers", "kind": "Worker"},
        {"name": "workers/scale", "kind": "Scale"},
        {"name": "jobs", "kind": "Job"},
    ]
    server.answers["/apis/example.com/v1"] = json.dumps({"resources": listed}).encode()
    path = "/apis/example.com/v1/namespaces/ns/workers/w/scale"
    item = path.removesuffix("/scale")
    server.answers[item] = b'{"metadata": {"labels": {"a": "b"}}}'
    server.answers[path] = b'{"spec": {"replicas": 3}}'
    assert await client.scaled("example.com/v1", "Worker", "ns", "w") == ({"a": "b"}, 3)
    assert [(method, where) for method, where, *_ in server.asked] == [
        ("GET", "/apis/example.com/v1"),
        ("GET", item),
        ("GET", path),
    ]
    await client.set_scale("example.com/v1", "Worker", "ns", "w", replicas=5)
    assert server.asked[3:] == [  # where the kind is found is known by now
        ("PATCH", path, {"fieldManager": "me"}, "application/merge-patch+json", {"spec": {"replicas": 5}})
    ]  # fmt: skip
    assert writes == ["patch"]
    server.answers[path] = b'{"spec": {}}'  # zero is left out
    server.answers[item] = b'{"metadata": {}}'
    assert await client.scaled("example.com/v1", "Worker", "ns", "w") == ({}, 0)
    for kind in ("Job", "Nothing"):
        with pytest.raises(Refused, match=f"has no kind {kind} with the subresource scale"):
            await client.scaled("example.com/v1", kind, "ns", "w")


async def test_an_object_or_an_api_that_is_missing_is_no_error(
    server: Server, client: KubeClient
) -> None:
    server.status = 404
    assert await client.get("Pod", "ns", "p") is None
    assert await client.list_all("Pod", "ns") == []
    assert await client.kinds_of("example.com/v1") == frozenset()
    await client.delete(DEPLOYMENT)


@pytest.mark.parametrize(
    ("status", "answer", "want", "message"),
    [
        (422, b'{"message": "spec: invalid"}', Refused, "spec: invalid"),
        (403, b'{"message": "forbidden"}', Refused, "forbidden"),
        (409, b'{"message": "changed"}', Overloaded, "changed"),
        (429, b"", Overloaded, "PATCH /apis/apps/v1/namespaces/ns/deployments/a"),
        (401, b'{"message": "expired"}', Overloaded, "expired"),
        (500, b'{"message": "failed to create typed patch object (x)"}', Refused, "failed to"),
        (503, b"<html>a proxy</html>", Overloaded, "<html>a proxy"),
    ],
)
async def test_a_status_becomes_an_error_that_shows_whether_to_retry(
    server: Server, client: KubeClient, status: int, answer: bytes, want: type, message: str
) -> None:
    server.status, server.answer = status, answer
    with pytest.raises(ApiError) as caught:
        await client.apply(DEPLOYMENT)
    assert (type(caught.value), caught.value.status) == (want, status)
    assert caught.value.message.startswith(message)


async def test_a_server_that_is_away_is_unreachable() -> None:
    async with connected(access_to("http://127.0.0.1:1"), kinds=KINDS) as client:
        with pytest.raises(Unreachable, match=r"GET /api/v1/namespaces/ns/pods/p: "):
            await client.get("Pod", "ns", "p")
