"""A small Kubernetes API over real sockets: what it lists, and what it says in a watch, is up to the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from evenkeel_kube.client import KubeClient, connected
from kubernetes.aio.client import Configuration

Plain = dict[str, Any]
SECRETS = "/api/v1/namespaces/ns/secrets"


@dataclass
class Collection:
    """One path of the API: its objects, and the watches on it."""

    objects: dict[str, Plain] = field(default_factory=dict)
    version: int = 1
    lists: int = 0
    refuse: int = 0
    """Status of every answer; 0: none is refused."""
    asked: list[str] = field(default_factory=list)
    """Resource version of every watch."""
    selectors: set[str] = field(default_factory=set)
    """Label selectors of all lists and watches."""
    watches: set[asyncio.Queue[Plain | None]] = field(default_factory=set)
    history: list[tuple[int, Plain]] = field(default_factory=list)
    """What every watch from an older version is told first."""

    def put(self, one: Plain) -> None:
        name = one["metadata"]["name"]
        self._notify("MODIFIED" if name in self.objects else "ADDED", one)
        self.objects[name] = one

    def delete(self, name: str) -> None:
        self._notify("DELETED", self.objects.pop(name))

    def bookmark(self) -> None:
        self._notify("BOOKMARK", {"metadata": {}})

    def fail(self, code: int) -> None:
        """An error event, after which the server ends the watches."""
        self._say(
            {
                "type": "ERROR",
                "object": {"kind": "Status", "code": code, "reason": "Gone", "message": "no"},
            }
        )
        self.hang_up()

    def hang_up(self) -> None:
        self._say(None)

    def _notify(self, kind: str, one: Plain) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        event = {"type": kind, "object": json.loads(json.dumps(one))}
        self.history.append((self.version, event))
        self._say(event)

    def _say(self, event: Plain | None) -> None:
        for watch in self.watches:
            watch.put_nowait(event)


@dataclass
class KubeApi:
    """The server."""

    api: KubeClient
    pods: Collection = field(default_factory=Collection)
    slices: Collection = field(default_factory=Collection)
    secrets: Collection = field(default_factory=Collection)
    index: Collection = field(default_factory=Collection)
    """The Secret with the index of tenants."""
    shards: dict[str, Plain] = field(default_factory=dict)
    """Secrets that are read one by one."""
    reads: list[str] = field(default_factory=list)
    """Names of `shards` that were read."""


def access_to(url: str) -> Configuration:
    """With one certificate to trust, as in a pod: reading the system's hundreds takes tenths of a second each time."""
    return Configuration(host=url, ssl_ca_cert=str(Path(__file__).with_name("ca.pem")))


@asynccontextmanager
async def kube_api() -> AsyncIterator[KubeApi]:
    """A server, and a client of it."""
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    holder: list[KubeApi] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer t0ken"
        if request.path.startswith(f"{SECRETS}/"):
            return _one(holder[0], request.path.rpartition("/")[2])
        collection = _collection(holder[0], request)
        collection.selectors.add(request.query.get("labelSelector", ""))
        if collection.refuse:
            return web.json_response({"message": "not you"}, status=collection.refuse)
        if "watch" not in request.query:
            return _list(collection)
        return await _watch(collection, request)

    app.router.add_get("/{path:.*}", handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = access_to(f"http://127.0.0.1:{runner.addresses[0][1]}")
    access.api_key["BearerToken"] = "Bearer t0ken"
    async with connected(access) as api:
        holder.append(KubeApi(api))
        try:
            yield holder[0]
        finally:
            own = holder[0]
            for collection in (own.pods, own.slices, own.secrets, own.index):
                collection.hang_up()
            await runner.cleanup()


def _collection(server: KubeApi, request: web.Request) -> Collection:
    of_index = request.query.get("fieldSelector", "").endswith("-tenants")
    return {
        "/api/v1/namespaces/ns/pods": server.pods,
        "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices": server.slices,
        SECRETS: server.index if of_index else server.secrets,
    }[request.path]


def _one(server: KubeApi, name: str) -> web.Response:
    server.reads.append(name)
    if name not in server.shards:
        return web.json_response({"message": "there is none"}, status=404)
    return web.json_response(server.shards[name])


def _list(collection: Collection) -> web.Response:
    collection.lists += 1
    metadata = {"resourceVersion": str(collection.version)}
    return web.json_response({"metadata": metadata, "items": list(collection.objects.values())})


async def _watch(collection: Collection, request: web.Request) -> web.StreamResponse:
    asked = request.query["resourceVersion"]
    collection.asked.append(asked)
    response = web.StreamResponse()
    await response.prepare(request)
    events: asyncio.Queue[Plain | None] = asyncio.Queue()
    for version, event in collection.history:
        if version > int(asked):
            events.put_nowait(event)
    collection.watches.add(events)
    try:
        while (event := await events.get()) is not None:
            line = json.dumps(event).encode() + b"\n"
            for part in (line[:7], line[7:]):  # an event may come in pieces
                await response.write(part)
        return response
    finally:
        collection.watches.discard(events)


def pod(name: str, *, ready: bool = True, **metadata: Any) -> Plain:
    """An engine's pod, as the API shows it; `uid-<name>` unless another is given."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "False"},  # its gate waits for a router
                {"type": "ContainersReady", "status": "True" if ready else "False"},
            ],
        },
    }


def slice_of(service: str, *pods: str, host: str = "10.0.0.1", **changes: Any) -> Plain:
    """The one slice of a Service; all pods at one address."""
    ports = [
        {"name": "http", "port": 30000},
        {"name": "reports", "port": 5559},
        {"name": "admin", "port": 8082},
    ]
    return {
        "metadata": {"name": f"{service}-1", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [
            {
                "addresses": [host],
                "conditions": {"ready": False},
                "targetRef": {"kind": "Pod", "name": name, "uid": f"uid-{name}"},
            }
            for name in pods
        ],
        **changes,
    }
