"""The Kubernetes API over HTTP: lists and watches, with a pod's own credentials.

Place in the flow: API server → **lists, lines of a watch** → `kubewatch`. Why no client library: docs/design
(0005); what a router needs of one is two GET requests.

The surprising thing: the token is read anew for every request. Kubelet replaces it every hour.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from evenkeel_router.cluster.watched import Lines, WatchError, status_error

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIST_TIMEOUT_S: Final = 30.0
WATCH_TIMEOUT_S: Final = 300
"""Then the API server ends a watch, and the next one goes on where it stood."""
SILENCE_TIMEOUT_S: Final = 100.0
"""Bookmarks come every minute: a connection that says nothing for longer leads nowhere any more."""


class CredentialsError(Exception):
    """This process is not in a pod, or its pod has no service account token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is and who one is to it."""

    url: str
    namespace: str
    tls: ssl.SSLContext
    token_file: Path


def in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """The access that kubelet gives every pod; raises `CredentialsError`."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("KUBERNETES_SERVICE_HOST is not set: is this a pod?")
    try:
        return Access(
            url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            namespace=(folder / "namespace").read_text().strip(),
            tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
            token_file=folder / "token",
        )
    except (OSError, ssl.SSLError) as error:
        message = f"no service account in {folder} ({error}): does the pod mount its token?"
        raise CredentialsError(message) from error


class Api:
    """One API server."""

    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self.namespace = access.namespace
        self._access = access
        self._session = session

    async def list(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """A list, as JSON; raises `WatchError`, `aiohttp.ClientError`, `OSError` (a timeout is one)."""
        limits = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S)
        async with self._get(path, parameters, limits) as response:
            return await response.read()

    async def watch(
        self, path: str, parameters: Mapping[str, str], resource_version: str
    ) -> AsyncGenerator[bytes, None]:
        """Lines of a watch until the server ends it; raises as `list`."""
        query = {
            **parameters,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }
        limits = aiohttp.ClientTimeout(
            total=None, connect=LIST_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S
        )
        async with self._get(path, query, limits) as response:
            lines = Lines()
            try:
                async for data in response.content.iter_any():
                    for line in lines.feed(data):
                        yield line
            finally:  # of a watch that is given up, nothing is wanted any more, not even TLS's farewell
                connection = response.connection
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        token = self._access.token_file.read_text().strip()
        async with self._session.get(
            self._access.url + path,
            params=query,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            ssl=self._access.tls,
            timeout=limits,
        ) as response:
            if response.status != 200:
                raise _refused(response.status, await response.read())
            yield response


@asynccontextmanager
async def open_api(access: Access) -> AsyncIterator[Api]:
    """An API server for the time of the context."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Api(access, session)
    await asyncio.sleep(0)  # the sockets are closed in the loop's next round


class _Message(msgspec.Struct):
    message: str = ""


def _refused(status: int, body: bytes) -> WatchError:
    try:
        said = msgspec.json.decode(body, type=_Message).message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = ""
    return status_error(status, said)
