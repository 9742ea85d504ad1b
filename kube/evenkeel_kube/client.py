"""Requests to the API server. Objects stay plain data: builders make it and comparisons read it.

`apply` is the only write of objects. It creates and changes alike (server-side apply), and removes fields that an
earlier apply set and this one does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from evenkeel_kube.errors import ApiError, Unreachable, api_error

Object = Mapping[str, Any]
Query = Mapping[str, str]

TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML


class Kind(Protocol):
    """Where the objects of a kind are."""

    @property
    def api(self) -> str:
        """As in `apiVersion`."""

    @property
    def plural(self) -> str: ...


class KubeClient:
    """One API server. `connected` opens and closes it."""

    def __init__(
        self,
        api: ApiClient,
        *,
        kinds: Mapping[str, Kind] | None = None,
        manager: str = "",
        on_write: Callable[[str], None] = lambda method: None,
    ) -> None:
        """`kinds` are those that verbs may name; `manager` owns the fields that are written."""
        self._dynamic = DynamicClient(api)  # never awaited, so it makes no discovery requests
        self._kinds = kinds or {}
        self._manager = manager
        self._on_write = on_write

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""
        try:
            return await self.read(self._path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: str, namespace: str, *, selector: str = "") -> list[Object]:
        """All objects of a kind in a namespace; none where the cluster lacks the API."""
        query = {"labelSelector": selector} if selector else {}
        try:
            found = await self.read(self._path(kind, namespace), query)
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        # Items of a list do not name their kind.
        head = {"apiVersion": self._kinds[kind].api, "kind": kind}
        return [{**head, **item} for item in found.get("items") or ()]

    async def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Make the object match the manifest; returns the whole object. A dry run changes nothing."""
        query = {"fieldManager": self._manager, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        return await self._write("PATCH", self._path_of(manifest), query, manifest, _APPLY)

    async def apply_status(self, manifest: Object) -> Object:
        """The same for the status of an object that exists."""
        query = {"fieldManager": self._manager, "force": "true"}
        path = f"{self._path_of(manifest)}/status"
        return await self._write("PATCH", path, query, manifest, _APPLY)

    async def create(self, manifest: Object) -> Object:
        """Create; raises `Overloaded` with status 409 if the object exists."""
        path = self._path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._write("POST", path, {"fieldManager": self._manager}, manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replace exactly the version that was read; raises `Overloaded` with status 409 if it changed."""
        query = {"fieldManager": self._manager}
        return await self._write("PUT", self._path_of(manifest), query, manifest)

    async def delete(self, item: Object) -> None:
        """Delete exactly this object; an object that is already gone is no error."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": item["metadata"]["uid"]},
            "propagationPolicy": "Background",
        }
        try:
            await self._write("DELETE", self._path_of(item), {}, options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def kinds_of(self, api: str) -> frozenset[str]:
        """The kinds of an API group's version; none where the cluster lacks it."""
        try:
            found = await self.read(f"/apis/{api}")
        except ApiError as error:
            if error.status == 404:
                return frozenset()
            raise
        return frozenset(str(one["kind"]) for one in found.get("resources") or ())

    async def read(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """The answer to a GET. Raises `ClusterError`."""
        return await self._answer("GET", path, query or {})

    async def stream(
        self, path: str, query: Query, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """A GET whose answer is still to be read. Raises `ClusterError`."""
        return await self._request("GET", path, query, limits=limits)

    async def _write(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self._on_write(method.lower())
        return await self._answer(method, path, query, body, content_type)

    async def _answer(self, method: str, path: str, query: Query, *body: Any) -> dict[str, Any]:
        try:
            response = await self._request(method, path, query, *body)
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:  # the connection broke in the body
            raise _unreachable(method, path, error) from error
        return _decode(content)

    async def _request(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object | None = None,
        content_type: str = "application/json",
        *,
        limits: aiohttp.ClientTimeout = TIMEOUT,
    ) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await self._dynamic.request(
                method,
                path,
                body=body,
                query_params=list(query.items()),
                content_type=content_type,
                serialize=False,
                _request_timeout=limits,
            )
        except DynamicApiError as error:
            message = _decode(error.body or b"").get("message") or f"{method} {path}"
            raise api_error(int(error.status), str(message)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(method, path, error) from error
        return response

    def _path_of(self, item: Object) -> str:
        metadata = item["metadata"]
        return self._path(str(item["kind"]), str(metadata["namespace"]), str(metadata["name"]))

    def _path(self, kind: str, namespace: str, name: str | None = None) -> str:
        found = self._kinds[kind]
        root = "/apis" if "/" in found.api else "/api"
        path = f"{root}/{found.api}/namespaces/{quote(namespace, safe='')}/{found.plural}"
        return path if name is None else f"{path}/{quote(name, safe='')}"


@asynccontextmanager
async def connected(
    configuration: Configuration,
    *,
    kinds: Mapping[str, Kind] | None = None,
    manager: str = "",
    on_write: Callable[[str], None] = lambda method: None,
) -> AsyncIterator[KubeClient]:
    """A client for the time of the context."""
    Configuration.set_default(configuration)  # `Watch` makes its own client from it
    async with ApiClient(configuration) as api:
        yield KubeClient(api, kinds=kinds, manager=manager, on_write=on_write)


def _unreachable(method: str, path: str, error: Exception) -> Unreachable:
    return Unreachable(f"{method} {path}: {error or type(error).__name__}")


def _decode(answer: bytes | str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(answer)
    except msgspec.DecodeError:  # a proxy's page
        text = answer if isinstance(answer, str) else answer.decode(errors="replace")
        return {"message": text[:200]}
    return found if isinstance(found, dict) else {"message": str(found)[:200]}
