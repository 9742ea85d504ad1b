"""Following objects of one kind: list, then watch for ever.

Place in the flow: `kubeapi` → **cache kept true** → discovery, configuration. What is seen → what is done:

| seen                                             | done                                                    |
|--------------------------------------------------|---------------------------------------------------------|
| the server ends the watch (timeout, its restart) | watch on from the last resource version                 |
| the connection breaks, or says nothing           | the same, after a wait that doubles (with jitter)       |
| the resource version expired (410)               | list again; what is gone from the list is gone          |
| refused (RBAC), garbage, a version of the future | said in the log, once per reason; listed after the wait |

The surprising thing: while the API server is away the cache stays as it was. A router serves on by what it
knows, and its own probes of replicas tell which of them died meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Final, Generic

import aiohttp

from evenkeel_router.cluster.api import Api
from evenkeel_router.cluster.watched import Cache, Expired, Object, WatchError

_log = logging.getLogger(__name__)
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Selection(Generic[Object]):
    """Which objects: a collection of the API, and what selects among them."""

    kind: type[Object]
    path: str
    parameters: Mapping[str, str]


class Watcher(Generic[Object]):
    """One selection, kept true."""

    def __init__(
        self, api: Api, selection: Selection[Object], changed: Callable[[], None], *, rng: Random
    ) -> None:
        """`changed` is called after every list and every event that changed an object."""
        self._api = api
        self._selection = selection
        self._changed = changed
        self._rng = rng
        self._wait_s = FIRST_WAIT_S
        self._trouble = ""
        self.cache = Cache(selection.kind)
        self.synced = False
        """Whether all objects were listed at least once."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self.cache.resource_version:
                    await self._list()
                await self._watch()
            except Expired as error:
                _log.info("listing %s again: %s", self._selection.path, error)
                self.cache.expire()
            except WatchError as error:
                self._complain(str(error))
                self.cache.expire()
            except (aiohttp.ClientError, OSError) as error:
                self._complain(f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._next_wait_s())

    async def _list(self) -> None:
        body = await self._api.list(self._selection.path, self._selection.parameters)
        self.cache.take_list(body)
        self.synced = True
        self._changed()

    async def _watch(self) -> None:
        version = self.cache.resource_version
        selection = self._selection
        lines = self._api.watch(selection.path, selection.parameters, version)
        async with aclosing(lines):  # also where a line is no event
            async for line in lines:
                changed = self.cache.take_event(line)
                self._calm()
                if changed:
                    self._changed()

    def _next_wait_s(self) -> float:
        """Doubles until something comes, so that not even a server that ends every watch at once is flooded."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s * self._rng.uniform(0.5, 1.0)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("cannot follow %s: %s", self._selection.path, trouble)
        self._trouble = trouble

    def _calm(self) -> None:
        if self._trouble:
            _log.info("following %s again", self._selection.path)
        self._trouble, self._wait_s = "", FIRST_WAIT_S
