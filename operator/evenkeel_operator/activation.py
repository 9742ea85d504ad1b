"""Ask routers of services without a ready engine whether requests wait for the first replica (design §6).

A long poll is open to each ready router of such a service, and a change triggers a pass. It needs no write, no
Prometheus and no right on the API server.

It lasts until an engine is ready, not until one is started. Otherwise a scaler that sees no load would remove the
replica that requests wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from evenkeel_contract.names import ROUTER_COMPONENT
from evenkeel_kube.errors import ClusterError

from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.routers import Routers, addresses_of_ready
from evenkeel_operator.cluster.store import Key

_log = logging.getLogger(__name__)

# Pause after an answer without a change: a terminating router answers at once.
PAUSE_S: Final = 0.5
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0


@dataclass(slots=True, eq=False)
class _Followed:
    """One service."""

    token: str
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Its routers may have changed."""
    waiting: dict[str, bool] = field(default_factory=dict)
    """Router address → whether requests wait there for the first replica."""
    task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        return any(self.waiting.values())


class Activations:
    """Follows the services that stand at zero."""

    def __init__(
        self, observer: Observer, routers: Routers, *, on_news: Callable[[Key], None]
    ) -> None:
        """`on_news` is called when requests begin or cease to wait for a service."""
        self._observer = observer
        self._routers = routers
        self._on_news = on_news
        self._followed: dict[Key, _Followed] = {}

    def wanted(self, key: Key) -> bool:
        """Whether requests wait for a first replica of it."""
        followed = self._followed.get(key)
        return followed is not None and followed.wanted

    def follow(self, key: Key, *, token: str) -> None:
        """Called after every pass that finds no ready engine, since the routers may have changed."""
        known = self._followed.get(key)
        if known is not None and known.token == token:
            known.look.set()
            return
        self.leave(key)
        followed = self._followed[key] = _Followed(token)
        self._begin(key, followed)

    def leave(self, key: Key) -> None:
        """An engine is ready, the service is deleted, or a request must not start it."""
        followed = self._followed.pop(key, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    def resume(self) -> None:
        """Continue after `pause`."""
        for key, followed in self._followed.items():
            if followed.task is None or followed.task.done():
                self._begin(key, followed)

    async def pause(self) -> None:
        """Stop asking, until `resume`."""
        tasks = [one.task for one in self._followed.values() if one.task is not None]
        for followed in self._followed.values():
            followed.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: Key, followed: _Followed) -> None:
        followed.task = asyncio.create_task(self._follow(key, followed))
        followed.task.add_done_callback(_report)

    async def _follow(self, key: Key, followed: _Followed) -> None:
        """Keep one open request to each ready router."""
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                followed.look.clear()
                there = await self._addresses(key)
                for address in asking.keys() - there:
                    asking.pop(address).cancel()
                    self._record(key, followed, address, waits=False)
                for address in there - asking.keys():
                    asking[address] = asyncio.create_task(self._ask(key, followed, address))
                    asking[address].add_done_callback(_report)
                await followed.look.wait()
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    # Runs concurrently with passes.

    async def _addresses(self, key: Key) -> set[str]:
        """Addresses of the ready routers."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                return set(addresses_of_ready(await self._observer.pods(key, ROUTER_COMPONENT)))
            except ClusterError as error:
                _log.info("%s: cannot list its routers: %s", key, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LAST_RETRY_S)

    async def _ask(self, key: Key, followed: _Followed, address: str) -> None:
        """Poll one router for as long as it exists."""
        wait_s = FIRST_RETRY_S
        while True:
            known = followed.waiting.get(address, False)
            waits = await self._routers.activation(address, token=followed.token, known=known)
            if waits is None:
                self._record(key, followed, address, waits=False)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LAST_RETRY_S)
                continue
            wait_s = FIRST_RETRY_S
            self._record(key, followed, address, waits=waits)
            if waits is known:
                await asyncio.sleep(PAUSE_S)

    def _record(self, key: Key, followed: _Followed, address: str, *, waits: bool) -> None:
        before = followed.wanted
        followed.waiting[address] = waits
        if not waits:
            del followed.waiting[address]
        if followed.wanted is not before:
            what = "a request waits for the first replica" if waits else "no request waits"
            _log.info("%s: %s", key, what)
            self._on_news(key)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("asking the routers of a service at zero failed", exc_info=task.exception())
