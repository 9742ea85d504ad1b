"""Which replicas take requests, by probes and by the failures of requests.

| seen                                  | the replica is                                                        |
|---------------------------------------|-----------------------------------------------------------------------|
| a probe is answered with 200          | routable; it joins the fleet if its process is new                    |
| it is answered with anything else     | not routable (starting, draining); its cache still counts             |
| it times out three times              | the same: one time-out may be a busy moment                           |
| no connection, by probe or request    | lost: cache and credit are gone with the process (R6)                 |
| a probe or a request broke off        | not routable until its next good probe, which follows at once         |
| outcomes of requests make it suspect  | not routable but for probes (`fleet.suspicion`), unless too many are  |
| another incarnation reports           | lost, and joins again at its next good probe                          |
| `/metrics` has another start time     | the same; read when a replica without reports takes requests again    |
| discovery marks it unschedulable      | not routable, at once and whatever probes show; its cache counts      |

A replica that sends reports does not join before its first report: only a report names the process, and so the state
from which clients start there (R5). A replica without a report for `REPORT_PATIENCE_S` joins without one. If no gate orders its
queue (R12), no ledger has its service until then. A replica that reports an inactive plug-in joins at once. `probe` lists the
paths that are probed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import AtZero, ReplicaConfig

from evenkeel_router.fleet.discovered import TERMINATING, DiscoveredReplica
from evenkeel_router.fleet.member import Member
from evenkeel_router.fleet.probe import Prober, ProbeVerdict, wait_for
from evenkeel_router.fleet.replicas import Discovery, Replicas
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.fleet.suspicion import Evidence, FirstTokenTimes, Standing, most_suspects
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Settings

_log = logging.getLogger(__name__)
SILENT_PROBES: Final = 3
REPORT_PATIENCE_S: Final = 5.0
NEW_LOOKS: Final = 10
"""Probes after which a process that got no request is not new, and a replica that returned and has none is trusted."""
KNOWN_TIMES: Final = 8
"""First tokens from which on a replica's own times count."""
SILENT: Final = Evidence("silent", "it is silent while other replicas answer")
FOR_GOOD: Final = (TERMINATING, "draining")
"""Why nothing goes to a replica that will not come back; other reasons (`cluster.endpoints`) pass."""


@dataclass(slots=True, eq=False)
class _Watch:
    """One replica under watch."""

    replica: ReplicaConfig
    kick: asyncio.Event = field(default_factory=asyncio.Event)
    probed: bool = False
    """Whether a probe has shown if the replica takes requests."""
    silent: int = 0
    looks: int = 0
    """Probes since a process that is not trusted yet takes requests."""
    reported: bool = False
    """Whether a report named the process that is there now."""
    inactive: bool = False
    """Whether the replica reports that its policy is inactive, so that it makes no other reports."""
    sized: bool = False
    """Whether the process was asked how large it is."""
    started_s: float | None = None
    """Start time of the process of a replica without reports; None if it does not report that."""
    unknown_since_s: float | None = None
    """Time since which the replica has been ready without joining, because no report came; None otherwise."""
    task: asyncio.Task[None] | None = None


class HealthMonitor:
    """Keeps the fleet in step with discovery and probes."""

    def __init__(
        self, settings: Settings, replicas: Replicas, service_ledger: ServiceLedger, prober: Prober
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._prober = prober
        self._watches: dict[str, _Watch] = {}
        self._now = asyncio.get_running_loop().time
        self._routable: bool | None = None
        """Whether any replica was routable at the last check; None before the first probes."""
        self.first_tokens = FirstTokenTimes()
        """Times of all replicas together, for those that have answered few requests."""
        self._avoided: deque[tuple[float, str, Ticket]] = deque()
        """Ends of the times in which a client avoids a replica; the client; the failed request. Oldest first."""
        self.drained = asyncio.Event()
        """A replica began to drain: its next report is wanted at once."""

    async def run(self, discovery: Discovery) -> None:
        """Follow a discovery until cancelled."""
        try:
            async for found in discovery.watch():
                await self._follow(found)
                self._replicas.in_sync = True
        finally:
            for name, watch in list(self._watches.items()):
                await self._remove(name, watch)

    async def _follow(self, found: Sequence[DiscoveredReplica]) -> None:
        wanted = {one.replica.name: one for one in found}
        for name, watch in list(self._watches.items()):
            one = wanted.get(name)
            if one is None or not _same_place(one.replica, watch.replica):
                await self._remove(name, watch)
                _log.info("replica %s is no longer configured", name)
        for name, one in wanted.items():
            if name not in self._watches:
                self._add(one.replica)
            self._replicas.configured[name] = self._watches[name].replica = one.replica
            self._withhold(self._watches[name], one.unschedulable)
        self._notice()

    def _withhold(self, watch: _Watch, why: str) -> None:
        member = self._replicas.fleet.member(watch.replica.name)
        if member is None or member.unschedulable == why:
            return
        if not (why in FOR_GOOD and member.unschedulable in FOR_GOOD):
            member.unschedulable_since_s = self._now()
        member.unschedulable = why
        if why:
            _log.info("replica %s gets no new requests: %s", member.name, why)
            self._replicas.fleet.unready(member)
            if why in FOR_GOOD:
                self._drain(member)
        else:
            watch.kick.set()

    def _add(self, replica: ReplicaConfig) -> None:
        self._replicas.configured[replica.name] = replica
        member = self._replicas.fleet.add(replica.name)
        member.standing = Standing(self._settings.timing.first_rest_s, is_new=True)
        watch = self._watches[replica.name] = _Watch(replica)
        watch.task = asyncio.create_task(self._probe_forever(watch))

    async def _remove(self, name: str, watch: _Watch) -> None:
        del self._watches[name]
        if watch.task is not None:
            watch.task.cancel()
            await asyncio.gather(watch.task, return_exceptions=True)
        member = self._replicas.fleet.member(name)
        if member is not None:
            # Drained before it leaves: `leaves` forgets the incarnation.
            if member.joined:
                self._drain(member)
            self._replicas.fleet.remove(member)
        self._service_ledger.accounting.leaves(name, self._now())
        self._replicas.remove(name)

    async def _probe_forever(self, watch: _Watch) -> None:
        while True:
            verdict = await self._prober.probe(watch.replica)
            member = self._replicas.fleet.member(watch.replica.name)
            if member is not None and verdict is ProbeVerdict.READY:
                await self._look_for_restart(watch, member)
            if member is not None and not watch.kick.is_set():  # else it is older than the news
                self._apply(verdict, watch, member)
                if member.joined and not watch.sized:
                    await self._measure(watch)
            self._forget_avoided()
            if member is not None:
                self.first_tokens.learn(member.standing.learn())
                watch.looks = watch.looks + 1 if self._is_unused(member) else 0
                if watch.looks > NEW_LOOKS:
                    self._replicas.fleet.settled(member)
            await wait_for(watch.kick, self._settings.timing.probe_interval_s)

    def _is_unused(self, member: Member) -> bool:
        """Whether the replica gets few requests, and hardly any comes that could show more of it."""
        standing = member.standing
        if standing.allowed is None or not member.routable:
            return False
        return standing.is_new or not self._replicas.fleet.load(member)

    async def _look_for_restart(self, watch: _Watch, member: Member) -> None:
        """A replica without reports takes requests again: it may be another process, started between two probes."""
        if watch.replica.reports is None and member.joined and not member.routable:
            started_s = await self._prober.started_s(watch.replica)
            if watch.started_s is not None and started_s not in (None, watch.started_s):
                self.replaced(member.name)

    async def _measure(self, watch: _Watch) -> None:
        """Measure how far deficits can fall at a replica, which bounds the debts of its clients (R5), and when the
        process started."""
        if watch.replica.reports is None:
            watch.started_s = await self._prober.started_s(watch.replica)
        size = await self._prober.size(watch.replica)
        watch.sized = True  # a process that does not answer once will not answer later
        if size is not None:
            member = self._replicas.fleet.member(watch.replica.name)
            if member is not None:
                member.context_tokens = size.max_input_tokens
            self._service_ledger.replica_is_of_size(
                max_input_tokens=size.max_input_tokens, pool_tokens=size.max_total_num_tokens
            )

    def _apply(self, verdict: ProbeVerdict, watch: _Watch, member: Member) -> None:
        fleet = self._replicas.fleet
        watch.silent = watch.silent + 1 if verdict is ProbeVerdict.SILENT else 0
        member.unready = self._prober.refusal(watch.replica)
        member.loads = verdict is ProbeVerdict.NOT_READY and not member.joined
        if verdict is ProbeVerdict.READY:
            kept_out = member.routable or member.unschedulable or self._is_kept_suspect(member)
            if not kept_out and self._is_known(watch, member):
                _log.info("replica %s is ready", member.name)
                fleet.ready(member)
                self._service_ledger.accounting.serves(member.name)
                self._replicas.wait_queue.open()
        elif verdict is ProbeVerdict.GONE:
            if member.joined:
                _log.warning("replica %s has ended: nothing listens at its address", member.name)
            self._end_life(watch, member)
        elif verdict is not ProbeVerdict.SILENT or watch.silent >= SILENT_PROBES:
            if member.routable:
                _log.warning("replica %s is not ready", member.name)
                if verdict is ProbeVerdict.NOT_READY:  # the replica itself reports that it drains
                    self._drain(member)
            fleet.unready(member)
        # A replica that is ready and only waits for its report counts neither as lost nor as found.
        watch.probed = watch.probed or verdict is not ProbeVerdict.READY or member.routable
        self._notice()

    def _drain(self, member: Member) -> None:
        """Let a replica finish what runs there; what waits is moved with its next report (`request.relocation`)."""
        self._service_ledger.accounting.drains(member.name)
        self.drained.set()

    def _notice(self) -> None:
        """Log when the last routable replica is lost, or the first one is found."""
        self._replicas.activation.look()
        routable = bool(self._replicas.fleet.routable)
        if routable is self._routable or not all(watch.probed for watch in self._watches.values()):
            return
        if not routable:
            _log.warning("%s. %s", self._replicas.fleet.why_unroutable(), self._what_follows())
        elif self._routable is not None:
            _log.info("replicas can take requests again")
        self._routable = routable

    def _what_follows(self) -> str:
        """What happens to requests while no replica is routable."""
        limits = self._settings.config.limits
        if self._settings.config.at_zero is AtZero.REFUSE:
            return "Requests get 503 at once."
        if self._replicas.activation.holds:
            wait_s = limits.activation_timeout_s
            return f"Requests wait up to {wait_s:g} s for a first replica and then get 503."
        return f"Requests wait up to {limits.queue_timeout_s:g} s and then get 503."

    def _is_kept_suspect(self, member: Member) -> bool:
        """Whether the replica gets no request but a probe, for which it is offered here. The last replica of a fleet is trusted."""
        if not member.suspect:
            return False
        if not self._replicas.fleet.routable:
            member.standing.trust()
            return False
        if member.standing.wants_probe(self._now()):
            self._replicas.fleet.offer(member)
        return True

    def _is_known(self, watch: _Watch, member: Member) -> bool:
        """Whether it is known which process answers, or cannot be known."""
        accounting, name, now_s = self._service_ledger.accounting, member.name, self._now()
        if watch.reported:
            return True
        if watch.replica.reports is None or watch.inactive:
            if not member.joined:
                accounting.meets_unreported(name, now_s)
            return True
        if watch.unknown_since_s is None:
            watch.unknown_since_s = now_s
        if now_s - watch.unknown_since_s < REPORT_PATIENCE_S:
            return False
        if self._settings.config.scheduling.queue is QueueOwner.ENGINE:
            _log.warning("replica %s sends no reports: its service is not in the ledger", name)
            accounting.leaves(name, now_s)
        elif not member.joined:  # it joins, and its gate counts its service
            _log.warning("replica %s sends no reports: this router orders its queue", name)
            accounting.meets_unreported(name, now_s)
        return True

    def _end_life(self, watch: _Watch, member: Member) -> None:
        was_inactive = watch.inactive
        watch.reported = watch.inactive = watch.sized = False
        watch.unknown_since_s = None
        member.standing = Standing(self._settings.timing.first_rest_s, is_new=True)
        self._replicas.fleet.lost(member)
        if (
            watch.replica.reports is None or was_inactive
        ):  # no report will show whether it was the same process
            self._service_ledger.accounting.leaves(member.name, self._now())

    # What requests and reports show.

    def reported(self, name: str, *, active: bool = True) -> None:
        """A report named the process that answers there; `active`: with its replica policy in charge."""
        watch = self._watches.get(name)
        if watch is not None and not (watch.reported if active else watch.inactive):
            watch.reported, watch.inactive = active, not active
            watch.kick.set()

    def lost(self, name: str, why: str) -> None:
        """The replica's process is gone, as when it refuses connections: nothing goes there until a probe succeeds."""
        member, watch = self._replicas.fleet.member(name), self._watches.get(name)
        if member is not None and watch is not None and member.joined:
            _log.warning("replica %s is lost: %s", name, why)
            self._end_life(watch, member)
            self._notice()
            watch.kick.set()

    def replaced(self, name: str) -> None:
        """Another process than before sends the replica's reports or metrics."""
        self.lost(name, "a new process answers in its place")

    def broken(self, name: str, why: str) -> None:
        """A connection broke: nothing goes there until a probe, right now, succeeds."""
        member, watch = self._replicas.fleet.member(name), self._watches.get(name)
        if member is not None and watch is not None and member.routable:
            _log.warning("replica %s broke off a request: %s", name, why)
            self._replicas.fleet.unready(member)
            self._notice()
            watch.kick.set()

    # What outcomes of requests show (R20). A client's own requests may fail everywhere, so one failure is evidence only if another
    # replica answered the same request, or if no other replica failed a request of the same client a moment ago.

    def begun(self, ticket: Ticket) -> None:
        """A replica that is not trusted begins to answer. After a probe, the next look at its readiness lets it return."""
        watch = self._watches.get(ticket.member.name)
        if self._replicas.fleet.begins(ticket) and watch is not None:
            _log.info("replica %s answers again and gets some requests", ticket.member.name)
            watch.kick.set()

    def overdue_s(self, ticket: Ticket, longest_s: float, *, stream: bool) -> float:
        """Time after which a replica that sends nothing to any client counts as silent, at most `longest_s`."""
        if not stream:
            return longest_s  # a whole answer takes as long as its output
        self.first_tokens.learn(ticket.member.standing.learn())
        own = ticket.member.standing.first_tokens
        times = own if own.count >= KNOWN_TIMES else self.first_tokens
        if times.count < KNOWN_TIMES:
            return longest_s
        usual_s = times.overdue_s(ticket.match.dispatch.input_tokens)
        return min(longest_s, max(self._settings.timing.overdue_s, usual_s))

    def failed(
        self, failed: Sequence[tuple[Ticket, Evidence]], client: str, *, answered_by: str
    ) -> None:
        """One replica answered a request that others failed, each with its evidence: the fault is theirs."""
        for ticket, evidence in failed:
            if ticket.member.name != answered_by:
                self.avoid(client, ticket)
                self._blame(ticket, evidence)

    def broke_off(self, ticket: Ticket, client: str, evidence: Evidence) -> None:
        """A replica failed a request that it had begun, so that no other one was asked."""
        known = client in self._replicas.fleet.avoided
        ticket.member.standing.answers = max(0, ticket.member.standing.answers - 1)
        self.avoid(client, ticket)
        if not known:  # else the client's requests may be the cause
            if self._replicas.fleet.alive(ticket):  # its successor broke nothing off
                ticket.member.standing.breaks_off = True
            self._blame(ticket, evidence)

    def silent(self, ticket: Ticket, client: str, since_s: float) -> None:
        """A replica did not begin a request in time, and no other one was asked."""
        others = (one for one in self._replicas.fleet if one is not ticket.member)
        self.avoid(client, ticket)
        if any(one.standing.begun_s > since_s for one in others):
            self._blame(ticket, SILENT)

    def avoid(self, client: str, ticket: Ticket) -> None:
        """The client's requests go elsewhere for a while, if they can."""
        if self._replicas.fleet.avoid(client, ticket):
            self._avoided.append((self._now() + self._settings.timing.avoid_s, client, ticket))

    def probe_failed(self, ticket: Ticket, evidence: Evidence) -> None:
        """A suspect failed its probe: it rests for longer."""
        if self._replicas.fleet.alive(ticket) and ticket.member.suspect:
            ticket.member.standing.suspect(evidence, self._now())

    def _forget_avoided(self) -> None:
        while self._avoided and self._avoided[0][0] <= self._now():
            _, client, ticket = self._avoided.popleft()
            self._replicas.fleet.avoid_no_more(client, ticket)

    def _blame(self, ticket: Ticket, evidence: Evidence) -> None:
        if not self._replicas.fleet.alive(
            ticket
        ):  # a successor is not at fault for the process before it
            return
        member = ticket.member
        others = [one.standing for one in self._replicas.fleet if one is not member]
        failures = sum(one.failures for one in others)
        outcomes = failures + sum(one.answers for one in others)
        is_bad = member.standing.failed(failures / outcomes if outcomes else 0.0)
        if (is_bad or evidence is SILENT) and not member.suspect:
            self._suspect(member, evidence)

    def _suspect(self, member: Member, evidence: Evidence) -> None:
        replicas = [one for one in self._replicas.fleet if one.routable or one.suspect]
        if sum(one.suspect for one in replicas) >= most_suspects(len(replicas)):
            return
        rest_s = member.standing.suspect(evidence, self._now())
        _log.warning(
            "replica %s is suspect and gets nothing but probes, the first in %g s: %s",
            member.name,
            rest_s,
            evidence.why,
        )
        self._replicas.totals[member.name].backoffs += 1
        self._replicas.fleet.unready(member)
        self._notice()


def _same_place(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Whether both are one process: at another address is another replica, with another key is the same."""
    return replace(one, api_key=None) == replace(other, api_key=None)
