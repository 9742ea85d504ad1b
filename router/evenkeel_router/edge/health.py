"""Which replicas take requests: what probes see, and what the pipeline ran into.

Place in the flow: discovery → **health** → fleet.

| seen                                | the replica is                                                      |
|-------------------------------------|---------------------------------------------------------------------|
| `/ready` answers 200                | routable; it joins the fleet if its process is new                  |
| `/ready` answers anything else      | not routable (starting, draining); its cache still counts           |
| `/ready` times out three times      | the same: once may be a busy moment                                 |
| no connection, by probe or request  | lost: cache and credit are gone with the process (R6)               |
| a request broke off                 | not routable until its next good probe, which follows at once       |
| another incarnation reports         | lost, and joins again at its next good probe                        |
| discovery withholds it (draining)   | not routable, at once and whatever probes say; its cache counts     |

The surprising thing: `/health` is never asked. It makes SGLang generate a token and takes a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.core.candidates import Member
from evenkeel_router.core.endpoints import Found
from evenkeel_router.edge.discovery import Discovery
from evenkeel_router.edge.probe import Prober, Verdict, wait_for
from evenkeel_router.state import RouterState

_log = logging.getLogger(__name__)
SILENT_PROBES: Final = 3


class Health(Protocol):
    """What the pipeline tells about replicas."""

    def refused(self, name: str, why: str) -> None:
        """A request could not connect."""

    def broken(self, name: str, why: str) -> None:
        """A request broke off."""


class _Watch:
    """One replica under watch."""

    __slots__ = ("kick", "replica", "silent", "task")

    def __init__(self, replica: ReplicaConfig) -> None:
        self.replica = replica
        self.kick = asyncio.Event()
        self.silent = 0
        self.task: asyncio.Task[None] | None = None


class Watchtower:
    """Keeps the fleet in step with what discovery says and probes see."""

    def __init__(self, state: RouterState, prober: Prober) -> None:
        self._state = state
        self._prober = prober
        self._watches: dict[str, _Watch] = {}

    async def run(self, discovery: Discovery) -> None:
        """Follow a discovery until cancelled."""
        try:
            async for found in discovery.watch():
                await self._follow(found)
                self._state.in_sync = True
        finally:
            for name, watch in list(self._watches.items()):
                await self._remove(name, watch)

    async def _follow(self, found: Sequence[Found]) -> None:
        wanted = {one.replica.name: one for one in found}
        for name, watch in list(self._watches.items()):
            one = wanted.get(name)
            if one is None or not _same_place(one.replica, watch.replica):
                await self._remove(name, watch)
                _log.info("replica %s is no longer there", name)
        for name, one in wanted.items():
            if name not in self._watches:
                self._add(one.replica)
            self._state.replicas[name] = self._watches[name].replica = one.replica
            self._withhold(self._watches[name], one.withheld)

    def _withhold(self, watch: _Watch, why: str) -> None:
        member = self._state.fleet.member(watch.replica.name)
        if member is None or member.withheld == why:
            return
        member.withheld = why
        if why:
            _log.info("nothing new goes to replica %s: %s", member.name, why)
            self._state.fleet.unready(member)
        else:
            watch.kick.set()

    def _add(self, replica: ReplicaConfig) -> None:
        self._state.replicas[replica.name] = replica
        self._state.fleet.add(replica.name)
        watch = self._watches[replica.name] = _Watch(replica)
        watch.task = asyncio.create_task(self._probe_forever(watch))

    async def _remove(self, name: str, watch: _Watch) -> None:
        del self._watches[name]
        if watch.task is not None:
            watch.task.cancel()
            await asyncio.gather(watch.task, return_exceptions=True)
        member = self._state.fleet.member(name)
        if member is not None:
            self._state.fleet.remove(member)
        del self._state.replicas[name]
        self._state.accounts.forget_replica(name)

    async def _probe_forever(self, watch: _Watch) -> None:
        while True:
            verdict = await self._prober.probe(watch.replica)
            member = self._state.fleet.member(watch.replica.name)
            if member is not None and not watch.kick.is_set():  # else it is older than the news
                self._apply(verdict, watch, member)
            await wait_for(watch.kick, self._state.timing.probe_interval_s)

    def _apply(self, verdict: Verdict, watch: _Watch, member: Member) -> None:
        fleet = self._state.fleet
        watch.silent = watch.silent + 1 if verdict is Verdict.SILENT else 0
        if verdict is Verdict.READY:
            if not member.routable and not member.withheld:
                _log.info("replica %s is ready", member.name)
                fleet.ready(member)
                self._state.room.open()
        elif verdict is Verdict.GONE:
            if member.joined:
                _log.warning("replica %s is gone", member.name)
            fleet.lost(member)
        elif verdict is Verdict.NOT_READY or watch.silent >= SILENT_PROBES:
            if member.routable:
                _log.warning("replica %s is not ready", member.name)
            fleet.unready(member)

    # What the pipeline and the reports tell.

    def refused(self, name: str, why: str) -> None:
        """Nobody listens there: lost until a probe succeeds."""
        self._lose(name, why)

    def replaced(self, name: str) -> None:
        """Its reports come from another process than before."""
        self._lose(name, "its process is another one")

    def broken(self, name: str, why: str) -> None:
        """A connection broke: nothing goes there until a probe, right now, succeeds."""
        member, watch = self._state.fleet.member(name), self._watches.get(name)
        if member is not None and watch is not None and member.routable:
            _log.warning("replica %s broke a request off: %s", name, why)
            self._state.fleet.unready(member)
            watch.kick.set()

    def _lose(self, name: str, why: str) -> None:
        member, watch = self._state.fleet.member(name), self._watches.get(name)
        if member is not None and watch is not None and member.joined:
            _log.warning("replica %s is lost: %s", name, why)
            self._state.fleet.lost(member)
            watch.kick.set()


def _same_place(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Whether both are one process: at another address is another replica, with another key is the same."""
    return replace(one, api_key=None) == replace(other, api_key=None)
