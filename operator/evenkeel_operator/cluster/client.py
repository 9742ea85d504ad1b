"""The API server, as far as the operator needs it: six verbs on plain data.

It uses kopf's credentials (in the cluster, or a kubeconfig) and aiohttp, which kopf brings: objects stay the plain
data that builders make and comparisons read. The `kubernetes` package would parse each into classes first.

The surprising thing: `apply` is the only write of objects. It creates and changes alike (server-side apply), and
takes back what a former apply of ours had set and this one does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import kopf
import msgspec
from evenkeel_contract.names import API_VERSION

from evenkeel_operator import metrics
from evenkeel_operator.cluster.errors import ApiError, ClusterError, Unreachable, api_error
from evenkeel_operator.core.objects import KINDS, Kind, Object
from evenkeel_operator.manifests.metadata import MANAGER

TIMEOUT_S: Final = 30.0
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_JSON: Final = "application/json"

ALL_KINDS: Final[Mapping[str, Kind]] = {
    **KINDS,
    "FairInferenceService": Kind(API_VERSION, "fairinferenceservices"),
    "InferenceTenant": Kind(API_VERSION, "inferencetenants"),
    "Pod": Kind("v1", "pods"),
    "Event": Kind("v1", "events"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
}


class KubeClient:
    """A session with the API server. `connected` opens and closes it."""

    def __init__(self, session: aiohttp.ClientSession, credentials: kopf.ConnectionInfo) -> None:
        self._session = session
        self._credentials = credentials
        self._ssl = credentials.as_ssl_context()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""
        try:
            return await self._request("GET", _path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: str, namespace: str, *, selector: str = "") -> list[Object]:
        """All objects of a kind in a namespace; none where the cluster lacks the API."""
        try:
            found = await self._request(
                "GET", _path(kind, namespace), {"labelSelector": selector} if selector else {}
            )
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        # Items of a list do not say what they are.
        head = {"apiVersion": ALL_KINDS[kind].api, "kind": kind}
        return [{**head, **item} for item in found.get("items") or ()]

    async def apply(self, manifest: Object, *, rehearsal: bool = False) -> Object:
        """Make the object be as it says; the answer is the whole object. A rehearsal changes nothing."""
        params = {"fieldManager": MANAGER, "force": "true"}
        if rehearsal:
            params["dryRun"] = "All"
        return await self._request("PATCH", _path_of(manifest), params, manifest, _APPLY)

    async def apply_status(self, manifest: Object) -> Object:
        """The same for the status of an object that is there."""
        params = {"fieldManager": MANAGER, "force": "true"}
        path = f"{_path_of(manifest)}/status"
        return await self._request("PATCH", path, params, manifest, _APPLY)

    async def create(self, manifest: Object) -> Object:
        """Create; `Overloaded` with status 409 where it is there."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._request("POST", path, {"fieldManager": MANAGER}, manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replace exactly the version that was read; `Overloaded` with status 409 where it changed."""
        return await self._request("PUT", _path_of(manifest), {"fieldManager": MANAGER}, manifest)

    async def delete(self, item: Object) -> None:
        """Delete exactly this object; that it is gone already is fine."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": item["metadata"]["uid"]},
            "propagationPolicy": "Background",
        }
        try:
            await self._request("DELETE", _path_of(item), {}, options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def kinds_of(self, api: str) -> frozenset[str]:
        """The kinds of an API group's version; none where the cluster lacks it."""
        try:
            found = await self._request("GET", f"/apis/{api}")
        except ApiError as error:
            if error.status == 404:
                return frozenset()
            raise
        return frozenset(str(one["kind"]) for one in found.get("resources") or ())

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
    ) -> dict[str, Any]:
        try:
            return await self._once(method, path, params or {}, body, content_type)
        except ApiError as error:
            if error.status != 401:
                raise
        # A token of a pod lives for an hour; the kubelet has put a new one in its place.
        self._credentials = login()
        return await self._once(method, path, params or {}, body, content_type)

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Object | None,
        content_type: str,
    ) -> dict[str, Any]:
        headers = {"Accept": _JSON, **self._credentials.as_http_headers()}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = msgspec.json.encode(body)
        if method != "GET":
            metrics.WRITES.labels(method.lower()).inc()
        try:
            async with self._session.request(
                method,
                self._credentials.server.rstrip("/") + path,
                params=params,
                data=data,
                headers=headers,
                ssl=self._ssl,
            ) as response:
                answer = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
        found = _decode(answer)
        if status >= 400:
            raise api_error(status, str(found.get("message") or f"{method} {path}"))
        return found


@asynccontextmanager
async def connected() -> AsyncIterator[KubeClient]:
    """A client for the time of the context. Raises `ClusterError` without credentials."""
    credentials = login()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            yield KubeClient(session, credentials)
        finally:
            await asyncio.sleep(0)  # lets TLS connections close before the loop does


def login() -> kopf.ConnectionInfo:
    """Credentials of the pod, or of the kubeconfig. Raises `ClusterError` where there are none."""
    settings = kopf.OperatorSettings()
    try:
        found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(
            settings=settings
        )
    except (kopf.LoginError, OSError, ValueError) as error:
        raise ClusterError(f"cannot read credentials: {error}") from error
    if found is None:
        raise ClusterError("no credentials: neither in a pod, nor is KUBECONFIG set")
    return found


def _path_of(item: Object) -> str:
    metadata = item["metadata"]
    return _path(str(item["kind"]), str(metadata["namespace"]), str(metadata["name"]))


def _path(kind: str, namespace: str, name: str | None = None) -> str:
    found = ALL_KINDS[kind]
    root = "/apis" if "/" in found.api else "/api"
    path = f"{root}/{found.api}/namespaces/{quote(namespace, safe='')}/{found.plural}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


def _decode(answer: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(answer)
    except msgspec.DecodeError:  # a proxy's page
        return {"message": answer[:200].decode(errors="replace")}
    return found if isinstance(found, dict) else {"message": str(found)[:200]}
