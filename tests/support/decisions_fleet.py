"""Lives of a router's rooms over drawn events, in virtual time: replicas come and go, attempts hold things and give them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any

from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import AtZero, ReplicaConfig, SchedulingConfig
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.probe import EngineSize, ProbeVerdict
from evenkeel_router.fleet.selection import DiscoveredReplica
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.ledger.held_work import TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.decisions import text
from tests.support.fakes import FakeProber, FakeReply, FakeUpstream
from tests.support.router_rooms import (
    client,
    dispatched,
    ends,
    held,
    joins,
    reports,
    rooms_of,
    selected,
)
from tests.support.routers import config_for
from tests.support.virtual_time import run_virtually

Life = Callable[[Random, list[str]], Coroutine[Any, Any, None]]
REPORTS = "tcp://127.0.0.1:1"


def _lived(life: Life, seed: int) -> str:
    lines: list[str] = []
    run_virtually(life(Random(seed), lines))
    return f"{seed}: {' '.join(lines)}"


# Health.


class Drawn:
    """A discovery that finds other replicas every few seconds."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def run(self) -> None: ...

    def update(self, config: object) -> None: ...

    async def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        while True:
            rng = self._rng
            names = rng.sample(("r0", "r1", "r2"), rng.choice((2, 3, 3)))
            yield [
                DiscoveredReplica(
                    ReplicaConfig(
                        name=name,
                        url=f"http://127.0.0.1:{rng.choice((1, 1, 1, 2))}",
                        reports=REPORTS if name == "r1" else None,
                        api_key=rng.choice((None, "k")),
                    ),
                    unschedulable=rng.choice(("", "", "", "draining", "not ready")),
                )
                for name in sorted(names)
            ]
            await asyncio.sleep(rng.choice((4.0, 12.0)))


def _of_fleet(rooms: Rooms) -> str:
    accounting = rooms.service_ledger.accounting
    shown = []
    for member in rooms.replicas.fleet:
        state = "r" if member.routable else "j" if member.joined else "-"
        incarnation = accounting.incarnation(member.name)
        flags = "d" if accounting.is_draining(incarnation) else ""
        flags += "b" if member.backoff.is_active(asyncio.get_running_loop().time()) else ""
        shown.append(
            f"{member.name[1]}{state}{member.lives}{flags}{'i' if incarnation else ''}{member.unschedulable[:1]}"
        )
    return ",".join(shown) or "none"


async def _health(rng: Random, lines: list[str]) -> None:
    scheduling = SchedulingConfig(queue=rng.choice((QueueOwner.AUTO, QueueOwner.ENGINE)))
    rooms = Rooms.make(
        config_for(scheduling=scheduling, at_zero=rng.choice(list(AtZero))), incarnation="router"
    )
    prober = FakeProber()
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, prober)
    running = asyncio.create_task(monitor.run(Drawn(rng)))
    usual = (ProbeVerdict.READY, ProbeVerdict.READY, *ProbeVerdict)
    for _ in range(30):
        await asyncio.sleep(rng.choice((0.3, 1.1, 2.5)))
        name = rng.choice(("r0", "r1", "r2"))
        action = rng.randrange(8)
        if action < 3:
            prober.verdicts[name] = rng.choice(usual)
            prober.started[name] = rng.choice((1.0, 2.0))
            prober.sizes[name] = EngineSize(
                max_total_num_tokens=20_000, max_req_input_len=rng.choice((100, 9000))
            )
        elif action == 3:
            active = bool(rng.randrange(3))
            rooms.service_ledger.accounting.meets(
                "r1", f"i{rng.randrange(3)}", policy="DLPM", now_s=0.0
            )
            monitor.reported("r1", active=active)
        elif action == 4:
            monitor.broken(name, "reset")
        elif action == 5:
            if rng.randrange(2):
                monitor.lost(name, "refused")
            else:
                monitor.replaced(name)
        elif rooms.replicas.fleet.routable:
            attempt = selected(rooms, client(), gated=False)
            other = rng.choice(("r0", "r1", "r2"))
            monitor.failed([attempt.ticket] * rng.choice((1, 3)), answered_by=other)
            attempt.refused()
        lines.append(_of_fleet(rooms) + ("!" if monitor.drained.is_set() else ""))
        monitor.drained.clear()
    totals = {
        name: one.backoffs for name, one in sorted(rooms.replicas.totals.items()) if one.backoffs
    }
    lines.append(f"backoffs {text(totals)} asked {prober.asked_start}")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    lines.append(f"end {_of_fleet(rooms)} {len(rooms.replicas.configured)}")


# Attempts and gates.


def _of_gates(rooms: Rooms) -> str:
    fleet = rooms.replicas.fleet
    shown = []
    for member in fleet:
        gate = rooms.gates.gate(member.name)
        at = "" if gate is None else f":{len(gate)}/{gate.unanswered}/{gate.limit}"
        shown.append(f"{fleet.load(member)}{at}")
    opened = sum(
        len(numbers)
        for at in rooms.service_ledger.accounting._open.values()
        for numbers in at.values()
    )
    return f"{','.join(shown)}+{opened}"


async def _end(attempt: Attempt, rng: Random) -> str:
    """One of the ways in which an attempt ends; what is charged of it."""
    usage = rng.choice((None, NOTHING, Usage(100, 20, 7)))
    action = rng.randrange(4)
    if attempt.turn is not None and attempt.turn.waits and attempt.booking is None:
        attempt.refused()
        return "w"
    if attempt.booking is None:
        attempt.finished(usage)
        return "u"
    if action == 0:
        ran, paid = attempt.failed(Usage(100, 0, 0))
        return f"f{ran:d}{text(paid)}"
    if action == 1:
        incarnation = attempt.booking.incarnation
        if rng.randrange(2):
            accounting = attempt._accounting
            work = accounting.held(incarnation, attempt.booking.client.identity)
            attempt.taken_back = PendingVerdict(
                TakenBack(work, work.share(1), (attempt.booking.number,))
            )
            attempt.taken_back.reported(
                accounting.held(incarnation, attempt.booking.client.identity)
            )
        return f"m{text(await attempt.relocated(Usage(100, 0, 0)))}"
    if attempt.turn is not None and rng.randrange(2):
        attempt.turn.begun(usage)
    attempt.finished(usage)
    attempt.finished(None)
    return "e"


class _World:
    """Rooms of a router with two replicas, and its open attempts."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.rooms = rooms_of("r0", "r1")
        self.upstream = FakeUpstream(lambda *_: FakeReply([b"{}"]))
        self.clients = [client("acme", "c"), client("acme", "d"), client("beta", "c")]
        self.open: list[Attempt] = []
        self.reported = 0

    async def begin(self) -> None:
        rng, of = self.rng, self.rng.choice(self.clients)
        if not self.rooms.replicas.fleet.routable:
            return
        paid = rng.choice((UNPAID, UNPAID, Paid(True, 3)))
        if rng.randrange(4):
            self.open.append(await dispatched(self.rooms, of, self.upstream, paid=paid))
        else:
            self.open.append(selected(self.rooms, of, gated=bool(rng.randrange(2))))

    def change(self) -> None:
        """A replica joins, ends, or takes no new requests."""
        fleet, name = self.rooms.replicas.fleet, self.rng.choice(("r0", "r1"))
        member = fleet.member(name)
        assert member is not None
        if not member.joined:
            joins(self.rooms, name)
        elif self.rng.randrange(2):
            ends(self.rooms, name)
        else:
            fleet.unready(member)

    def at_gates(self) -> None:
        """What the upkeep of gates does."""
        rng, gates = self.rng, self.rooms.gates
        load = EngineLoad(rng.choice((0, 4)), rng.choice((0, 3)), 0.5)
        gates.read("r0", rng.choice((None, load)))
        gates.publish("r0")
        gates.share("r0")
        if rng.randrange(2):
            gates.rebalance()

    def report(self) -> None:
        work = held(self.clients[0], running=self.rng.choice((0, 1)), waiting=1)
        since, self.reported = self.reported, self.reported + 1
        reports(self.rooms, "r1", "i1", work, sequence=self.reported, since=since)
        self.rooms.gates.hand_back()


async def _attempts(rng: Random, lines: list[str]) -> None:
    world = _World(rng)
    for _ in range(45):
        await asyncio.sleep(rng.choice((0.05, 0.5, 2.0)))
        action = rng.randrange(12)
        if action < 5:
            await world.begin()
        elif action < 8 and world.open:
            attempt = world.open.pop(rng.randrange(len(world.open)))
            lines.append(await _end(attempt, rng))
        elif action == 8:
            world.change()
        elif action == 9:
            world.report()
        else:
            world.at_gates()
        lines.append(_of_gates(world.rooms))
    while world.open:
        lines.append(await _end(world.open.pop(), rng))
    gates, ledger = world.rooms.gates, world.rooms.service_ledger.ledger
    gates.publish("r0")
    accounts = ledger.replica_accounts.values()
    served = {
        one.identity: sum(at.served(one.identity) for at in accounts) for one in world.clients
    }
    lines.append(
        f"moved {gates.moved} closed {world.upstream.closed} in use {text(sorted(gates.in_use()))}"
    )
    lines.append(f"left {_of_gates(world.rooms)} served {text(served)}")


def health() -> Iterator[str]:
    """The state of each replica, second by second, as probes, reports and failed requests show it."""
    yield from (_lived(_health, seed) for seed in range(40))


def attempts() -> Iterator[str]:
    """Tickets, bookings and turns at gates while attempts begin and end, and what the ledger has at the end."""
    yield from (_lived(_attempts, seed) for seed in range(40))


TABLES = {"router-health": health, "router-attempts": attempts}
