"""Requests to the API server, its address and credentials, and the errors of both.

Objects stay plain data: builders make it and comparisons read it. `apply` is the only write of objects. It creates and
changes alike (server-side apply), and removes fields that an earlier apply set and this one does not.

ClusterError
├── CredentialsError    no credentials, or unreadable ones
├── Unreachable         no answer: try again
└── ApiError
    ├── Refused         the same request gets the same answer: 400, 403, 409 AlreadyExists, 422, …
    └── Overloaded      429, 5xx, 409 Conflict, 401: try again
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

# 401: the pod's token may just have been replaced, and is read again. 409: another writer was faster.
TRANSIENT: Final = frozenset({401, 408, 409, 425, 429})
# How the API server answers an apply whose fields have wrong types: with status 500 [seen in 1.35].
_MALFORMED: Final = "failed to create typed patch object"


class ClusterError(Exception):
    """The API server cannot be used; the message is for users."""


class CredentialsError(ClusterError):
    """This process has no credentials for an API server."""


class Unreachable(ClusterError):
    """The API server did not answer."""


class ApiError(ClusterError):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Refused(ApiError):
    """The same request would be refused again."""


class Overloaded(ApiError):
    """The same request may succeed later."""


def api_error(status: int, message: str) -> ApiError:
    """The error for an HTTP status."""
    transient = status in TRANSIENT or (status >= 500 and not message.startswith(_MALFORMED))
    return (Overloaded if transient else Refused)(status, message)


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_pod(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT
) -> Configuration:
    """What the kubelet gives every pod; the token is read again each minute. Raises `CredentialsError`."""
    found = _configuration()
    try:
        InClusterConfigLoader(
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
            environ=environment,
        ).load_and_set(found)
    except (ConfigException, OSError) as error:
        message = f"no credentials of a pod ({error}); is this a pod that mounts its token?"
        raise CredentialsError(message) from error
    return found


def namespace_of_pod(folder: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod. Raises `CredentialsError`."""
    try:
        return (folder / "namespace").read_text().strip()
    except OSError as error:
        message = f"the namespace of this pod is unknown ({error})"
        raise CredentialsError(message) from error


async def in_pod_or_kubeconfig() -> Configuration:
    """The pod's credentials, or those of KUBECONFIG. Raises `CredentialsError`."""
    try:
        return in_pod()
    except CredentialsError as no_pod:
        found = _configuration()
        try:
            await load_kube_config(client_configuration=found)
        except (ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"{no_pod} No kubeconfig either: {error}") from error
        return found


def _configuration() -> Configuration:
    # The proxies of the environment are for other traffic: a pod reaches the API server directly.
    found = Configuration(client_session_kwargs={"trust_env": False})
    found.retries = 0  # callers retry, with a back-off of their own
    return found


Object = Mapping[str, Any]
Query = Mapping[str, str]

TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
PAGE: Final = 500
"""Objects of one answer to a list."""
METADATA_OF_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""What a watch accepts that needs no contents of objects."""
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_MERGE: Final = "application/merge-patch+json"


class ApiKind(Protocol):
    """Where the objects of a kind are."""

    @property
    def api(self) -> str:
        """Group and version, as in `apiVersion`."""

    @property
    def plural(self) -> str: ...


class KubeClient:
    """One API server. `connected` opens and closes it."""

    def __init__(
        self,
        api: ApiClient,
        *,
        kinds: Mapping[str, ApiKind] | None = None,
        manager: str = "",
        on_write: Callable[[str], None] = lambda method: None,
    ) -> None:
        """`kinds` are those that verbs may name; `manager` owns the fields that are written."""
        self._dynamic = DynamicClient(api)  # never awaited, so it makes no discovery requests
        self._kinds = kinds or {}
        self._manager = manager
        self._on_write = on_write
        self._scaled: dict[tuple[str, str], str] = {}
        """(apiVersion, kind) → its plural, of kinds that have the subresource `/scale`."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""
        return await self._read_if_there(self._path(kind, namespace, name))

    async def list_all(
        self, kind: str, namespace: str, *, selector: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects of a kind in a namespace, or in all if it is empty; none where the cluster lacks the API. `selector`: by labels,
        `fields`: by fields."""
        pages = self.pages(kind, namespace, selector=selector, fields=fields)
        return [item async for page in pages for item in page]

    async def pages(
        self, kind: str, namespace: str, *, selector: str = "", fields: str = "", limit: int = PAGE
    ) -> AsyncIterator[list[Object]]:
        """Like `list_all`, at most `limit` objects at a time."""
        query = {"labelSelector": selector} if selector else {}
        if fields:
            query["fieldSelector"] = fields
        # Items of a list do not name their kind.
        head = {"apiVersion": self._kinds[kind].api, "kind": kind}
        try:
            async for found in self.lists(self._path(kind, namespace), query, limit=limit):
                yield [{**head, **item} for item in found.get("items") or ()]
        except ApiError as error:
            if error.status != 404:
                raise

    async def lists(
        self, path: str, query: Query, *, limit: int = PAGE, accept: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The answers to a list, page by page. Raises `ClusterError`, with status 410 if the list took too long."""
        following = ""
        while True:
            page = {**query, "limit": str(limit)}
            if following:
                page["continue"] = following
            found = await self._answer("GET", path, page, accept=accept)
            yield found
            following = str((found.get("metadata") or {}).get("continue") or "")
            if not following:
                return

    async def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Make the object match the manifest; returns the whole object. A dry run changes nothing."""
        query = {"fieldManager": self._manager, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        return await self._write(
            "PATCH", self._path_of(manifest), query, manifest, content_type=_APPLY
        )

    async def apply_status(self, manifest: Object) -> Object:
        """Make the status of an existing object match the manifest; returns the whole object."""
        query = {"fieldManager": self._manager, "force": "true"}
        path = f"{self._path_of(manifest)}/status"
        return await self._write("PATCH", path, query, manifest, content_type=_APPLY)

    async def merge(self, path: str, patch: Object) -> dict[str, Any]:
        """Change some fields of an object (RFC 7386: a null removes a field); returns the whole object. Raises `ClusterError`."""
        return await self._write("PATCH", path, {}, patch, content_type=_MERGE)

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

    async def scaled(
        self, api: str, kind: str, namespace: str, name: str
    ) -> tuple[Mapping[str, str], int]:
        """(labels, replicas that it asks for) of an object of any kind with the subresource `/scale`. Raises `ClusterError`."""
        path = await self._scale_path(api, kind, namespace, name)
        item = await self.read(path.removesuffix("/scale"))  # the subresource has no labels
        found = await self.read(path)
        replicas = int((found.get("spec") or {}).get("replicas") or 0)
        return item["metadata"].get("labels") or {}, replicas

    async def set_scale(
        self, api: str, kind: str, namespace: str, name: str, *, replicas: int
    ) -> None:
        """Set the number of replicas of an object of any kind. Raises `ClusterError`."""
        path = await self._scale_path(api, kind, namespace, name)
        query = {"fieldManager": self._manager}
        await self._write(
            "PATCH", path, query, {"spec": {"replicas": replicas}}, content_type=_MERGE
        )

    async def _scale_path(self, api: str, kind: str, namespace: str, name: str) -> str:
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        if (api, kind) not in self._scaled:
            listed = (await self.read(root)).get("resources") or ()
            plurals = {str(one["name"]) for one in listed if one.get("kind") == kind}
            names = {str(one["name"]) for one in listed}
            found = next((one for one in sorted(plurals) if f"{one}/scale" in names), None)
            if found is None:
                raise Refused(404, f"{api} has no kind {kind} with the subresource scale")
            self._scaled[api, kind] = found
        plural, of = self._scaled[api, kind], quote(namespace, safe="")
        return f"{root}/namespaces/{of}/{plural}/{quote(name, safe='')}/scale"

    async def kinds_of(self, api: str) -> frozenset[str]:
        """The kinds of an API group's version; none where the cluster lacks it."""
        found = await self._read_if_there(f"/apis/{api}") or {}
        return frozenset(str(one["kind"]) for one in found.get("resources") or ())

    async def _read_if_there(self, path: str, query: Query | None = None) -> dict[str, Any] | None:
        try:
            return await self.read(path, query)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def read(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """The answer to a GET. Raises `ClusterError`."""
        return await self._answer("GET", path, query or {})

    async def stream(
        self,
        path: str,
        query: Query,
        limits: aiohttp.ClientTimeout,
        *,
        accept: str | None = None,
    ) -> aiohttp.ClientResponse:
        """A GET whose answer is still to be read. Raises `ClusterError`."""
        return await self._request("GET", path, query, limits=limits, accept=accept)

    async def _write(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object,
        *,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self._on_write(method.lower())
        return await self._answer(method, path, query, body, content_type=content_type)

    async def _answer(
        self, method: str, path: str, query: Query, *body: Any, **kind: Any
    ) -> dict[str, Any]:
        try:
            response = await self._request(method, path, query, *body, **kind)
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
        *,
        content_type: str = "application/json",
        limits: aiohttp.ClientTimeout = TIMEOUT,
        accept: str | None = None,
    ) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await self._dynamic.request(
                method,
                path,
                body=body,
                query_params=list(query.items()),
                content_type=content_type,
                serialize=False,
                header_params={"Accept": accept} if accept else {},
                _request_timeout=limits,
            )
        except DynamicApiError as error:
            message = _decode(error.body or b"").get("message") or f"{method} {path}"
            raise api_error(int(error.status), str(message)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(method, path, error) from error
        return response

    def path_of(self, kind: str, namespace: str) -> str:
        """Path of the objects of a kind in a namespace, or in all if it is empty."""
        return self._path(kind, namespace)

    def _path_of(self, item: Object) -> str:
        metadata = item["metadata"]
        return self._path(str(item["kind"]), str(metadata["namespace"]), str(metadata["name"]))

    def _path(self, kind: str, namespace: str, name: str | None = None) -> str:
        found = self._kinds[kind]
        root = "/apis" if "/" in found.api else "/api"
        place = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
        path = f"{root}/{found.api}/{place}{found.plural}"
        return path if name is None else f"{path}/{quote(name, safe='')}"


@asynccontextmanager
async def connected(
    configuration: Configuration,
    *,
    kinds: Mapping[str, ApiKind] | None = None,
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
