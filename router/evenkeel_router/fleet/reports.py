"""Pulling replicas' reports: cumulative totals per client, over ZeroMQ (R3, contract `reports`).

One request and one answer a second for each replica that sends reports. Totals are cumulative, so a lost answer costs
nothing. A report from another incarnation is the first sign of a restart between two probes: the cache is gone, and
health must know. No replica joins before its first report, so a replica that has not joined is asked more often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import zmq
import zmq.asyncio
from evenkeel_contract.reports import (
    IDLE_LOOK_S,
    REPORT_VERSION,
    Report,
    ReportError,
    ReportRequest,
    decode_report,
    encode,
)
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.probe import wait_for
from evenkeel_router.fleet.replicas import ReplicaReport, Replicas
from evenkeel_router.ledger.accounting import SEEDED_POLICY
from evenkeel_router.ledger.maintenance import compute_closings
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Settings

_log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S: Final = 2.0
JOINING_TIMEOUT_S: Final = 0.3
DRAINING_INTERVAL_S: Final = 0.1
"""How often a draining replica is asked: requests that wait there are relocated by its reports."""
MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
FORGETFUL_S: Final = IDLE_LOOK_S / 2
"""After so long without a report all rows of a replica are asked for anew: it keeps marks of rows that it gave back for `IDLE_LOOK_S`."""
PIECE: Final = 500
"""Clients that are taken into the ledger in one go, about a millisecond: requests come first."""


@contextmanager
def reports_socket(
    context: zmq.asyncio.Context, replica: ReplicaConfig, *, max_bytes: int
) -> Iterator[zmq.asyncio.Socket]:
    """A socket for questions to a replica's reports port. Raises `zmq.ZMQError`."""
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        address = replica.reports or ""
        socket.setsockopt(zmq.IPV6, "[" in address)
        socket.connect(address)
        yield socket


class ReportListener(Protocol):
    """What follows a report that is in the ledger."""

    def reported(self, incarnation: str) -> None:
        """A report of an incarnation is in the ledger."""

    def forget(self, incarnation: str) -> None:
        """No report of an incarnation will come any more."""


class Reports:
    """Asks all replicas."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        service_ledger: ServiceLedger,
        *,
        health_monitor: HealthMonitor,
        listener: ReportListener,
    ) -> None:
        """`health_monitor` learns which replicas report, and which have a new process."""
        self._settings = settings
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._health_monitor = health_monitor
        self._context = zmq.asyncio.Context()
        self._tasks: dict[ReplicaConfig, asyncio.Task[None]] = {}
        self._last_askers: set[asyncio.Task[None]] = set()
        self._kicks: dict[str, asyncio.Event] = {}
        """Name of a replica → event that is set where a report is wanted at once."""
        self._listener = listener

    async def run(self) -> None:
        """Keep one asker for each replica that makes reports, until cancelled."""
        try:
            while True:
                self._follow()
                await wait_for(
                    self._health_monitor.drained, self._settings.timing.report_interval_s
                )
        finally:
            asking = [*self._tasks.values(), *self._last_askers]
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            self._context.destroy(linger=0)

    def _follow(self) -> None:
        wanted = {replica for replica in self._replicas.configured.values() if replica.reports}
        for replica in [replica for replica in self._tasks if replica not in wanted]:
            self._tasks.pop(replica).cancel()
            self._ask_last_reports(replica)
        for name in [
            name for name in self._replicas.reports if name not in self._replicas.configured
        ]:
            del self._replicas.reports[name]
        for replica in wanted - self._tasks.keys():
            self._kicks[replica.name] = asyncio.Event()
            self._tasks[replica] = asyncio.create_task(self._ask_forever(replica))
        for name in [name for name in self._kicks if name not in self._replicas.configured]:
            del self._kicks[name]
        for name, kick in self._kicks.items():
            if self._drains(name):
                kick.set()

    def _ask_last_reports(self, replica: ReplicaConfig) -> None:
        """A replica that is no longer configured finishes what it has: its last reports count."""
        seen = self._replicas.reports.get(replica.name)
        if seen is not None and seen.counted:
            task = asyncio.create_task(self._ask_last_reports_of(replica, seen.incarnation))
            self._last_askers.add(task)
            task.add_done_callback(self._last_askers.discard)

    async def _ask_last_reports_of(self, replica: ReplicaConfig, incarnation: str) -> None:
        try:
            await self._ask_until_gone(replica, incarnation)
        finally:
            self._listener.forget(incarnation)

    async def _ask_until_gone(self, replica: ReplicaConfig, incarnation: str) -> None:
        accounting = self._service_ledger.accounting
        with reports_socket(self._context, replica, max_bytes=MAX_REPORT_BYTES) as socket:
            while not accounting.is_closed(incarnation):
                since = self._complete_to(incarnation)
                await socket.send(encode(ReportRequest(REPORT_VERSION, incarnation, since)))
                if not await socket.poll(round(ANSWER_TIMEOUT_S * 1000)):
                    return
                frames: list[bytes] = await socket.recv_multipart()
                try:
                    report = decode_report(frames[-1])
                    if report.incarnation != incarnation:
                        return
                    await self._observe(report)
                except (ReportError, ValueError) as error:
                    _log.warning(
                        "the last report of replica %s is invalid: %s", replica.name, error
                    )
                    return
                await asyncio.sleep(
                    min(self._settings.timing.report_interval_s, DRAINING_INTERVAL_S)
                )

    async def _ask_forever(self, replica: ReplicaConfig) -> None:
        while True:
            try:
                with reports_socket(self._context, replica, max_bytes=MAX_REPORT_BYTES) as socket:
                    answered = True
                    while answered:
                        answered = await self._ask(replica.name, socket)
                        await wait_for(self._kicks[replica.name], self._pause_s(replica.name))
            except zmq.ZMQError as error:
                _log.warning("no reports from replica %s: %s", replica.name, error)
                await asyncio.sleep(self._settings.timing.report_interval_s)

    def _drains(self, name: str) -> bool:
        return self._service_ledger.accounting.is_draining(
            self._service_ledger.accounting.incarnation(name)
        )

    def _has_joined(self, name: str) -> bool:
        member = self._replicas.fleet.member(name)
        return member is not None and member.joined

    def _pause_s(self, name: str) -> float:
        interval_s = self._settings.timing.report_interval_s
        if self._drains(name):
            return min(interval_s, DRAINING_INTERVAL_S)
        return interval_s if self._has_joined(name) else min(interval_s, JOINING_TIMEOUT_S)

    async def _ask(self, name: str, socket: zmq.asyncio.Socket) -> bool:
        """One question; False where the socket is better thrown away (an answer may come late)."""
        await socket.send(encode(self._question(name)))
        timeout_s = ANSWER_TIMEOUT_S if self._has_joined(name) else JOINING_TIMEOUT_S
        if not await socket.poll(round(timeout_s * 1000)):
            return False
        frames: list[bytes] = await socket.recv_multipart()
        try:
            await self._take(name, decode_report(frames[-1]))
        except (ReportError, ValueError) as error:
            _log.warning("a report of replica %s is invalid: %s", name, error)
            return False
        return True

    def _question(self, name: str) -> ReportRequest:
        seen = self._replicas.reports.get(name)
        if seen is None:
            return ReportRequest(REPORT_VERSION, incarnation="", since=0)
        since = seen.sequence
        if seen.counted:
            # As far as the ledger is complete: peers may know more, a damaged report less.
            since = self._complete_to(seen.incarnation)
        return ReportRequest(REPORT_VERSION, incarnation=seen.incarnation, since=since)

    def _complete_to(self, incarnation: str) -> int:
        if self._service_ledger.accounting.is_incomplete(incarnation):
            return 0
        return int(self._service_ledger.ledger.sequence(incarnation))

    async def _take(self, name: str, report: Report) -> None:
        if name not in self._replicas.configured:
            return  # no longer configured
        now_s, seen = asyncio.get_running_loop().time(), self._replicas.reports.get(name)
        if seen is not None and seen.incarnation != report.incarnation:
            self._health_monitor.replaced(name)
        if report.inactive:
            self._take_inactive(name, report, now_s)
            return
        accounting = self._service_ledger.accounting
        counted = accounting.meets(name, report.incarnation, policy=report.policy, now_s=now_s)
        if not counted and (seen is None or seen.counted or seen.inactive):
            _log.error(
                "replica %s reports as a process that the ledger has closed: its service is not counted",
                name,
            )
        self._replicas.reports[name] = ReplicaReport(
            incarnation=report.incarnation,
            policy=report.policy,
            sequence=report.sequence,
            received_s=now_s,
            counted=counted,
            quantum=report.quantum,
        )
        self._replicas.unnamed[name].take(
            report.incarnation, requests=report.requests, unnamed=report.unnamed, now_s=now_s
        )
        if report.policy == SEEDED_POLICY:
            self._service_ledger.replica_has_quantum(report.quantum)
        if counted:
            if seen is None or now_s - seen.received_s > FORGETFUL_S:
                # Marks of rows that were given back may be gone (docs/design/0003).
                self._service_ledger.ledger.reread(report.incarnation)
            await self._observe(report)
        if seen is None or seen.incarnation != report.incarnation:
            # It takes requests next, and every client asks for its seed.
            await compute_closings(self._service_ledger)
        self._health_monitor.reported(name)

    def _take_inactive(self, name: str, report: Report, now_s: float) -> None:
        """The engine schedules in its own order: it counts as a replica without reports, and its gate is its account (R12)."""
        seen = self._replicas.reports.get(name)
        if seen is None or seen.incarnation != report.incarnation:
            _log.error("replica %s runs without the replica policy: %s", name, report.inactive)
        self._replicas.reports[name] = ReplicaReport(
            incarnation=report.incarnation,
            policy=report.policy,
            sequence=0,
            received_s=now_s,
            counted=False,
            inactive=report.inactive,
        )
        self._health_monitor.reported(name, active=False)

    async def _observe(self, report: Report) -> None:
        """Take a report into the ledger in pieces. Those before the last claim nothing, so a report that is cut off
        is asked for again."""
        clients, at = report.clients, 0
        while len(clients) - at > PIECE:
            self._piece(report, at, None)
            at += PIECE
            await asyncio.sleep(0)
        self._piece(report, at, report.since)
        self._listener.reported(report.incarnation)

    def _piece(self, report: Report, at: int, since: int | None) -> None:
        self._service_ledger.accounting.observe(
            report.incarnation,
            report.clients[at : at + PIECE],
            policy=report.policy,
            sequence=report.sequence,
            since=since,
        )
