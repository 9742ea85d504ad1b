"""Follow the objects of one kind: list them, then watch them until cancelled.

| what happens                                     | what follows                                            |
|--------------------------------------------------|---------------------------------------------------------|
| the server ends the watch (timeout, restart)     | watch again from the last resource version              |
| the connection breaks, or stays silent           | the same, after a wait that doubles (with jitter)       |
| the resource version expired (410)               | list again; objects that the list lacks are removed     |
| refused (RBAC), not JSON, an unknown event       | logged once per reason; listed again after the wait     |

The official `Watch` parses events; it has no informer with an asynchronous half, so list, resume and back-off are here.
While the API server is away the cache stays as it was: routers keep serving, and probe their replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from sys import intern
from typing import Any, Final, Generic

import aiohttp
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.watch import Watch

from evenkeel_kube.cache import Cache, Named, Object
from evenkeel_kube.client import (
    METADATA,
    METADATA_OF_LIST,
    PAGE,
    ApiError,
    KubeClient,
    Unreachable,
)

_log = logging.getLogger(__name__)
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 10.0
WATCH_S: Final = 300
"""The API server ends a watch after this time, and the next watch resumes."""
# Bookmarks come every minute: a connection that is silent for longer is dead.
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=30.0, sock_read=100.0)
# The API server no longer has the events since the version.
_EXPIRED: Final = 410
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class Selection(Generic[Object]):
    """Which objects: a collection of the API, and a selector."""

    kind: type[Object]
    path: str
    parameters: Mapping[str, str]
    accept: str | None = None
    """Media type of the objects; None: the usual one."""


class Watcher(Generic[Object]):
    """One selection, kept up to date."""

    def __init__(
        self,
        client: KubeClient,
        selection: Selection[Object],
        changed: Callable[[], None],
        *,
        rng: Random,
    ) -> None:
        """`changed` is called after every list and every event that changed an object."""
        self._client = client
        self._selection = selection
        self._changed = changed
        self._rng = rng
        self._watch = Watch()
        self._wait_s = FIRST_WAIT_S
        self._failure = ""
        self.cache: Cache[Object] = Cache(selection.kind)
        self.synced = False
        """Whether all objects were listed at least once."""
        self.refused = False
        """Whether the API server refuses the first list: a right is missing."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self.cache.resource_version:
                    await self._list()
                await self._follow()
            except (ApiError, ApiException) as error:
                if error.status == _EXPIRED:
                    _log.info(
                        "listing %s again, because of: %s", self._selection.path, _text(error)
                    )
                else:
                    self._log_failure(_text(error))
                    self._note_refusal(error.status == _FORBIDDEN)
                self.cache.expire()
            except (Unreachable, aiohttp.ClientError, OSError) as error:
                # The version stays: the next watch resumes there, without a new list.
                self._log_failure(f"{type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - `Watch` raises no type of its own for what it cannot parse
                self._log_failure(f"{type(error).__name__}: {error}")
                self.cache.expire()
            await asyncio.sleep(self._next_wait_s())

    async def _list(self) -> None:
        self.cache.replace(
            await self._client.read(self._selection.path, self._selection.parameters)
        )
        self.synced, self.refused = True, False
        self._changed()

    def _note_refusal(self, refused: bool) -> None:
        if refused and not self.refused and not self.synced:
            self.refused = True
            self._changed()

    async def _follow(self) -> None:
        version = self.cache.resource_version
        ends = AsyncExitStack()

        # Without annotations: `Watch` would look for the class of a result that it names.
        async def start(**query):  # type: ignore[no-untyped-def]
            return await ends.enter_async_context(self._started(str(query["resource_version"])))

        async with ends, self._watch as watch:
            async for event in watch.stream(
                start, resource_version=version, timeout_seconds=WATCH_S
            ):
                changed = self.cache.take(event)
                self._reset_failure()
                if changed:
                    self._changed()

    @asynccontextmanager
    async def _started(self, resource_version: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to one watch. If it is left unfinished, so is its TLS: its end would be waited for in vain."""
        query = {
            **self._selection.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_S),
        }
        selection = self._selection
        answer = await self._client.stream(selection.path, query, _TIMEOUT, accept=selection.accept)
        transport = answer.connection and answer.connection.transport
        try:
            yield answer
        finally:
            if transport and not answer.content.is_eof():
                transport.abort()

    def _next_wait_s(self) -> float:
        """Doubles until an event comes, also where the server ends every watch at once."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s * self._rng.uniform(0.5, 1.0)

    def _log_failure(self, failure: str) -> None:
        if failure != self._failure:
            _log.warning("cannot watch %s: %s", self._selection.path, failure)
        self._failure = failure

    def _reset_failure(self) -> None:
        if self._failure:
            _log.info("watching %s again", self._selection.path)
        self._failure, self._wait_s = "", FIRST_WAIT_S


def _text(error: ApiError | ApiException) -> str:
    return str(error) if isinstance(error, ApiError) else f"{error.status}: {error.reason}"


OnEvent = Callable[[str | None, Mapping[str, Any]], None]
"""Event (None: in a list), object."""


class _Events(Cache[Named]):
    """Passes objects on, and keeps their names: what a later list lacks was deleted meanwhile."""

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(Named)
        self._on_event = on_event
        self._known: set[tuple[str, str]] = set()
        self._listed: set[tuple[str, str]] | None = None

    def begin(self) -> None:
        """A list begins."""
        self._listed = set()

    def add(self, page: Mapping[str, Any]) -> str:
        """A page of a list; its version."""
        assert self._listed is not None
        for item in page.get("items") or ():
            self._listed.add(_place_of(item))
            self._on_event(None, item)
        return str((page.get("metadata") or {}).get("resourceVersion", ""))

    def finish(self, version: str) -> None:
        """The list is complete, as of `version`."""
        assert self._listed is not None
        for namespace, name in self._known - self._listed:
            metadata = {"namespace": namespace, "name": name, "resourceVersion": version}
            self._on_event("DELETED", {"metadata": metadata})
        self._known, self._listed = self._listed, None
        self.resource_version = version

    def take(self, event: Any) -> bool:
        """Pass an event on. Raises `WatchError`."""
        changed = super().take(event)
        self.objects.clear()
        kind, item = event["type"], event.get("raw_object")
        if kind != "BOOKMARK":
            where = _place_of(item)
            if kind == "DELETED":
                self._known.discard(where)
            else:
                self._known.add(where)
            self._on_event(kind, item)
        return changed


def _place_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name. Many objects have the same ones, and each is kept in several places: equal ones become one string."""
    metadata = item["metadata"]
    metadata["name"] = intern(str(metadata["name"]))
    if "namespace" not in metadata:
        return "", metadata["name"]
    metadata["namespace"] = intern(str(metadata["namespace"]))
    return metadata["namespace"], metadata["name"]


class EventWatcher(Watcher[Named]):
    """One selection, of which every object is passed on and none is kept. Lists come in pages."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        on_event: OnEvent,
        *,
        rng: Random,
        metadata_only: bool = False,
        page: int = PAGE,
        is_failing: Callable[[bool], None] = lambda failing: None,
    ) -> None:
        """`metadata_only`: the API server leaves out the contents; `is_failing` is called when that changes."""
        selection = Selection(Named, path, {}, METADATA if metadata_only else None)
        super().__init__(client, selection, lambda: None, rng=rng)
        self._accept_list = METADATA_OF_LIST if metadata_only else None
        self._page = page
        self._is_failing = is_failing
        self._events = self.cache = _Events(on_event)

    async def _list(self) -> None:
        self._events.begin()
        version = ""
        pages = self._client.lists(
            self._selection.path, {}, limit=self._page, accept=self._accept_list
        )
        async for page in pages:
            version = self._events.add(page)
            await asyncio.sleep(0)
        self._events.finish(version)
        self.synced, self.refused = True, False
        self._reset_failure()

    def _log_failure(self, failure: str) -> None:
        super()._log_failure(failure)
        self._is_failing(True)

    def _reset_failure(self) -> None:
        if self._failure:
            self._is_failing(False)
        super()._reset_failure()
