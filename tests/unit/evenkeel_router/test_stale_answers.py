"""News that cross: answers older than a loss, reports that break off, and what a process has from the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import aiohttp
from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report
from evenkeel_contract.routerconfig import PeerConfig, ReplicaConfig, StateConfig
from evenkeel_router.fleet.health import REPORT_PATIENCE_S, HealthMonitor
from evenkeel_router.fleet.probe import ProbeVerdict
from evenkeel_router.fleet.replicas import StaticDiscovery
from evenkeel_router.fleet.reports import PIECE, Reports
from evenkeel_router.ledger.peers import Peers
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.fakes import FakeProber, replicas
from tests.support.router_rooms import rooms_of
from tests.support.routers import config_for, until
from tests.support.virtual_time import run_virtually


class Slow(FakeProber):
    """Answers a probe with what was true when it was asked, a while later."""

    takes_s = 0.0

    async def probe(self, replica: ReplicaConfig) -> ProbeVerdict:
        verdict = self.verdicts.get(replica.name, ProbeVerdict.READY)
        await asyncio.sleep(self.takes_s)
        return verdict


def monitored(prober: FakeProber, *found: ReplicaConfig) -> tuple[Rooms, HealthMonitor]:
    """Rooms whose replicas are probed until the end of the loop."""
    config = config_for(*found)
    rooms = Rooms.make(config, incarnation="router")
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, prober)
    return rooms, monitor


def test_a_probe_that_is_older_than_the_news_of_a_loss_does_not_count() -> None:
    async def scene() -> None:
        prober = Slow()
        rooms, monitor = monitored(prober, *replicas(1))
        running = asyncio.create_task(monitor.run(StaticDiscovery(rooms.settings.config)))
        await asyncio.sleep(0.5)
        member = rooms.replicas.fleet.member("r0")
        assert member is not None
        assert member.joined
        prober.takes_s = 10.0
        await asyncio.sleep(1.0)  # the next probe is on its way
        prober.verdicts["r0"] = ProbeVerdict.GONE
        monitor.lost("r0", "it refused a connection")
        await asyncio.sleep(60.0)
        assert (member.joined, member.lives) == (False, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(scene())


def test_each_process_gets_its_own_time_to_send_a_report() -> None:
    async def scene() -> None:
        prober = FakeProber()
        found = ReplicaConfig(name="r0", url="http://127.0.0.1:1", reports="tcp://127.0.0.1:1")
        rooms, monitor = monitored(prober, found)
        running = asyncio.create_task(monitor.run(StaticDiscovery(rooms.settings.config)))
        await asyncio.sleep(0)
        for lives in (1, 2):
            prober.verdicts["r0"] = ProbeVerdict.READY
            await asyncio.sleep(REPORT_PATIENCE_S - 1.0)
            member = rooms.replicas.fleet.member("r0")
            assert member is not None
            assert not member.joined
            await asyncio.sleep(3.0)
            assert (member.joined, member.lives) == (True, lives)
            prober.verdicts["r0"] = ProbeVerdict.GONE
            await asyncio.sleep(3.0)
            assert not member.joined
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(scene())


class Listener:
    """Notes which incarnations have reported."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reported(self, incarnation: str) -> None:
        self.heard.append(incarnation)

    def forget(self, incarnation: str) -> None:
        return None


def clients(count: int) -> Sequence[ClientReport]:
    return [ClientReport(f"ns/t/{n}", 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0) for n in range(count)]


async def test_a_report_that_is_cut_off_does_not_count_as_complete() -> None:
    """Else the rest of it would never be asked for."""
    rooms = rooms_of()
    ledger, accounting = rooms.service_ledger.ledger, rooms.service_ledger.accounting
    accounting.meets("r0", "process", policy="DLPM", now_s=0.0)
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    listener = Listener()
    reports = Reports(
        rooms.settings,
        rooms.replicas,
        rooms.service_ledger,
        health_monitor=monitor,
        listener=listener,
    )
    report = Report(REPORT_VERSION, "process", 7, 0, "DLPM", tuple(clients(2 * PIECE + 1)))
    taking = asyncio.create_task(reports._observe(report))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert len(rooms.service_ledger.ledger.replica_accounts["process"].clients) == PIECE
    assert (ledger.sequence("process"), listener.heard) == (0, [])
    await reports._observe(report)
    assert (ledger.sequence("process"), listener.heard) == (7, ["process"])
    reports._context.destroy(linger=0)


async def test_a_router_that_is_no_longer_listed_is_no_member() -> None:
    peer = PeerConfig(name="gone", url="http://127.0.0.1:1")
    rooms = rooms_of(state=StateConfig(peers=(peer,), exchange_interval_s=0.01))
    async with aiohttp.ClientSession() as session:
        peers = Peers(rooms.settings, rooms.service_ledger, session)
        running = asyncio.create_task(peers.run())
        await peers.all_asked.wait()
        assert peers.members() is None, "it is not known by name"
        config = rooms.settings.config
        rooms.settings.config = replace(config, state=StateConfig(exchange_interval_s=0.01))
        await until(lambda: peers.members() == {"router"}, "the peer to be forgotten")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
