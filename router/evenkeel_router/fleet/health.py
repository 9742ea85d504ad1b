"""Which replicas take requests: what probes see, and what the pipeline ran into.

Place in the flow: discovery → **health** → fleet.

| seen                                | the replica is                                                      |
|-------------------------------------|---------------------------------------------------------------------|
| `/ready` answers 200                | routable; it joins the fleet if its process is new                  |
| `/ready` answers anything else      | not routable (starting, draining); its cache still counts           |
| `/ready` times out three times      | the same: once may be a busy moment                                 |
| no connection, by probe or request  | lost: cache and credit are gone with the process (R6)               |
| a probe or a request broke off      | not routable until its next good probe, which follows at once       |
| it fails what others answer         | not routable for a while (`fleet.backoff`), unless it is the last one |
| another incarnation reports         | lost, and joins again at its next good probe                        |
| discovery withholds it (draining)   | not routable, at once and whatever probes say; its cache counts     |

The surprising thing: a replica that makes reports does not join before its first one, since only a report says which
process it is, and so what clients start from there (R5). One that says nothing for `REPORT_PATIENCE_S` joins all
the same; what it serves until it reports is in no ledger but its own. `/health` is never asked: it makes SGLang generate a
token and takes a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from evenkeel_contract.routerconfig import AtZero, ReplicaConfig

from evenkeel_router.fleet.backoff import Backoff
from evenkeel_router.fleet.discovery import Discovery
from evenkeel_router.fleet.probe import Prober, Verdict, wait_for
from evenkeel_router.fleet.selection import TERMINATING, DiscoveredReplica, Member, Ticket
from evenkeel_router.state import RouterState

_log = logging.getLogger(__name__)
SILENT_PROBES: Final = 3
REPORT_PATIENCE_S: Final = 5.0
FOR_GOOD: Final = (TERMINATING, "draining")
"""Why nothing goes to a replica that will not come back; other reasons (`cluster.endpoints`) pass."""


class Health(Protocol):
    """What the pipeline tells about replicas."""

    def refused(self, name: str, why: str) -> None:
        """A request could not connect."""

    def broken(self, name: str, why: str) -> None:
        """A request broke off."""

    def answered(self, name: str, failed: Sequence[Ticket]) -> None:
        """A request got its first byte, after others had failed it."""


class _Watch:
    """One replica under watch."""

    __slots__ = (
        "kick", "probed", "replica", "reported", "resting", "silent", "sized", "task", "unknown_since_s",
    )  # fmt: skip

    def __init__(self, replica: ReplicaConfig, resting: Backoff) -> None:
        self.replica = replica
        self.resting = resting
        self.kick = asyncio.Event()
        self.probed = False
        """Whether it is known to take requests, or not to."""
        self.silent = 0
        self.reported = False
        """Whether a report named the process that is there now."""
        self.sized = False
        """Whether the process was asked how large it is."""
        self.unknown_since_s: float | None = None
        """Ready since then, and not joined because no report came."""
        self.task: asyncio.Task[None] | None = None


class HealthMonitor:
    """Keeps the fleet in step with what discovery says and probes see."""

    def __init__(self, state: RouterState, prober: Prober) -> None:
        self._state = state
        self._prober = prober
        self._watches: dict[str, _Watch] = {}
        self._now = asyncio.get_running_loop().time
        self._routable: bool | None = None
        """Whether anything was, when somebody last looked; None before the first probes."""
        self.drained = asyncio.Event()
        """A replica began to drain: its next report is wanted at once."""

    async def run(self, discovery: Discovery) -> None:
        """Follow a discovery until cancelled."""
        try:
            async for found in discovery.watch():
                await self._follow(found)
                self._state.in_sync = True
        finally:
            for name, watch in list(self._watches.items()):
                await self._remove(name, watch)

    async def _follow(self, found: Sequence[DiscoveredReplica]) -> None:
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
        self._notice()

    def _withhold(self, watch: _Watch, why: str) -> None:
        member = self._state.fleet.member(watch.replica.name)
        if member is None or member.withheld == why:
            return
        member.withheld = why
        if why:
            _log.info("nothing new goes to replica %s: %s", member.name, why)
            self._state.fleet.unready(member)
            if why in FOR_GOOD:
                self._drain(member)
        else:
            watch.kick.set()

    def _add(self, replica: ReplicaConfig) -> None:
        self._state.replicas[replica.name] = replica
        self._state.fleet.add(replica.name)
        watch = self._watches[replica.name] = _Watch(replica, Backoff(self._state.timing.rest_s))
        watch.task = asyncio.create_task(self._probe_forever(watch))

    async def _remove(self, name: str, watch: _Watch) -> None:
        del self._watches[name]
        if watch.task is not None:
            watch.task.cancel()
            await asyncio.gather(watch.task, return_exceptions=True)
        member = self._state.fleet.member(name)
        if member is not None:
            if member.joined:
                self._drain(member)
            self._state.fleet.remove(member)
        self._state.accounting.leaves(name, self._now())
        del self._state.replicas[name]
        self._state.totals.forget_replica(name)

    async def _probe_forever(self, watch: _Watch) -> None:
        while True:
            verdict = await self._prober.probe(watch.replica)
            member = self._state.fleet.member(watch.replica.name)
            if member is not None and not watch.kick.is_set():  # else it is older than the news
                self._apply(verdict, watch, member)
                if member.joined and not watch.sized:
                    await self._measure(watch)
            await wait_for(watch.kick, self._state.timing.probe_interval_s)

    async def _measure(self, watch: _Watch) -> None:
        """How far deficits can fall there, which bounds what its clients can owe (R5)."""
        size = await self._prober.size(watch.replica)
        watch.sized = True  # once for each process: one that does not say will not say later
        if size is not None:
            self._state.replica_is_of_size(
                max_input_tokens=size.max_input_tokens, pool_tokens=size.max_total_num_tokens
            )

    def _apply(self, verdict: Verdict, watch: _Watch, member: Member) -> None:
        fleet = self._state.fleet
        watch.silent = watch.silent + 1 if verdict is Verdict.SILENT else 0
        if verdict is Verdict.READY:
            kept_out = member.routable or member.withheld or self._rests(watch)
            if not kept_out and self._is_known(watch, member):
                _log.info("replica %s is ready", member.name)
                fleet.ready(member)
                self._state.accounting.serves(member.name)
                self._state.wait_queue.open()
        elif verdict is Verdict.GONE:
            if member.joined:
                _log.warning("replica %s is gone", member.name)
            self._end_life(watch, member)
        elif verdict is not Verdict.SILENT or watch.silent >= SILENT_PROBES:
            if member.routable:
                _log.warning("replica %s is not ready", member.name)
                if verdict is Verdict.NOT_READY:  # by its own word: it drains
                    self._drain(member)
            fleet.unready(member)
        # One that is ready and waits for its report only is neither there nor missing yet.
        watch.probed = watch.probed or verdict is not Verdict.READY or member.routable
        self._notice()

    def _drain(self, member: Member) -> None:
        """It finishes what runs there; what waits is moved with its next report (`request.relocation`)."""
        self._state.accounting.drains(member.name)
        self.drained.set()

    def _notice(self) -> None:
        """Say so when the last replica that takes requests is lost, or the first is found."""
        self._state.activation.look()
        routable = bool(self._state.fleet.routable)
        if routable is self._routable or not all(watch.probed for watch in self._watches.values()):
            return
        if not routable:
            _log.warning(
                "nothing is routable: %s; %s",
                self._state.fleet.why_unroutable(),
                self._what_follows(),
            )
        elif self._routable is not None:
            _log.info("requests are routed again")
        self._routable = routable

    def _what_follows(self) -> str:
        """What becomes of requests while nothing is routable."""
        limits = self._state.config.limits
        if self._state.config.at_zero is AtZero.REFUSE:
            return "requests get 503 at once"
        if self._state.activation.holds:
            wait_s = limits.activation_timeout_s
            return f"requests wait up to {wait_s:g} s for a first replica and then get 503"
        return f"requests wait up to {limits.queue_timeout_s:g} s and then get 503"

    def _rests(self, watch: _Watch) -> bool:
        """Whether it may: the last one to turn to may not."""
        if not self._state.fleet.routable:
            watch.resting.end()
        return watch.resting.rests(self._now())

    def _is_known(self, watch: _Watch, member: Member) -> bool:
        """Whether it is known which process answers, or nobody will ever say."""
        books, name, now_s = self._state.accounting, member.name, self._now()
        if watch.reported:
            return True
        if watch.replica.reports is None:
            if not member.joined:
                books.meets_unreported(name, now_s)
            return True
        if watch.unknown_since_s is None:
            watch.unknown_since_s = now_s
        if now_s - watch.unknown_since_s < REPORT_PATIENCE_S:
            return False
        _log.warning("replica %s makes no reports: what it serves is not counted", name)
        books.leaves(name, now_s)
        return True

    def _end_life(self, watch: _Watch, member: Member) -> None:
        watch.reported = watch.sized = False
        watch.unknown_since_s = None
        watch.resting = Backoff(self._state.timing.rest_s)
        self._state.fleet.lost(member)
        if watch.replica.reports is None:  # nobody will ever say whether it was the same process
            self._state.accounting.leaves(member.name, self._now())

    # What the pipeline and the reports tell.

    def reported(self, name: str) -> None:
        """A report named the process that answers there."""
        watch = self._watches.get(name)
        if watch is not None and not watch.reported:
            watch.reported = True
            watch.kick.set()

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
            self._notice()
            watch.kick.set()

    def answered(self, name: str, failed: Sequence[Ticket]) -> None:
        """One replica answered what others had failed: theirs was the fault."""
        watch = self._watches.get(name)
        if watch is not None:
            watch.resting.answered()
        for ticket in failed:  # a process that followed another is not to be blamed for it
            if ticket.member.name != name and self._state.fleet.alive(ticket):
                self._blame(ticket.member.name)

    def _blame(self, name: str) -> None:
        member, watch = self._state.fleet.member(name), self._watches.get(name)
        if member is None or watch is None:
            return
        others = any(one.routable for one in self._state.fleet if one is not member)
        rest_s = watch.resting.failed(self._now()) if others else 0.0
        if rest_s:
            _log.warning("replica %s rests for %g s: it fails what others answer", name, rest_s)
            self._state.totals.replica(name).rests += 1
            self._state.fleet.unready(member)
            self._notice()

    def _lose(self, name: str, why: str) -> None:
        member, watch = self._state.fleet.member(name), self._watches.get(name)
        if member is not None and watch is not None and member.joined:
            _log.warning("replica %s is lost: %s", name, why)
            self._end_life(watch, member)
            self._notice()
            watch.kick.set()


def _same_place(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Whether both are one process: at another address is another replica, with another key is the same."""
    return replace(one, api_key=None) == replace(other, api_key=None)
