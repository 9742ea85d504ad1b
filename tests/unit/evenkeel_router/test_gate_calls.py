"""A free place calls requests that wait at other gates of the same router (R12)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import SchedulingConfig
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage
from evenkeel_router.api.identity import UNPAID, Client
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.prompts import FEW
from evenkeel_router.gate.turns import Place
from evenkeel_router.gate.waiters import LOOKS, Waiters
from evenkeel_router.gate.window import FIXED_TOKENS, GatedRequest
from evenkeel_router.request.attempt import Attempt

from tests.support.router_rooms import TOKENS, client, rooms_of, selected
from tests.support.routers import until

PLACES = 2
FLOOD, LIGHT = client("flood"), client("light")


class World:
    """A router's gates in front of engines with two places each; requests go as the forwarder takes them."""

    def __init__(self, replicas: int, *, incarnation: str = "router") -> None:
        scheduling = SchedulingConfig(queue=QueueOwner.AUTO, client_quantum=TOKENS)
        names = [f"r{n}" for n in range(replicas)]
        self.rooms = rooms_of(*names, incarnation=incarnation, scheduling=scheduling)
        self.open: dict[Attempt, Client] = {}
        self.gates: list[Gate] = []
        self.began: list[Client] = []
        """Clients of requests that went to an engine, in this order."""
        fleet = self.rooms.replicas.fleet
        for member in fleet:
            assert member.slot is not None
            gate = self.rooms.gates._place(member, member.slot).gate
            gate.read(EngineLoad(0, 0, 0.5), 0.0)
            gate.engine.limit = PLACES
            self.gates.append(gate)

    def ask(self, of: Client, count: int = 1) -> None:
        for _ in range(count):
            self._note(selected(self.rooms, of), of)
        self.follow()

    def follow(self) -> None:
        """Requests that were called go where they were called to."""
        fleet, gates = self.rooms.replicas.fleet, self.rooms.gates
        while called := [one for one in self.open if one.turn and one.turn.called]:
            for attempt in called:
                of, turn = self.open.pop(attempt), attempt.turn
                assert turn is not None
                invited, call = turn.invited, turn.take_call()
                attempt.refused()
                others = ReplicaSet(fleet.routable & ~invited)
                ticket = fleet.select(attempt.ticket.match, others)
                assert ticket is not None
                after = Attempt(fleet, self.rooms.service_ledger.accounting, ticket, EMPTY)
                after.turn = gates.enter(ticket, of, streams=True, max_output_tokens=9, paid=UNPAID, called=call)  # fmt: skip
                assert after.turn is call
                self._note(after, of)

    def at_engines(self) -> list[Attempt]:
        """What runs, the oldest first."""
        return [one for one in self.open if one.turn and one.turn.request in one.turn.place.gate.sent]  # fmt: skip

    def end(self, number: int, *, away_from: Client | None = None) -> None:
        """One of the requests at engines is over. `away_from`: at an engine for which this client does not wait."""
        running = self.at_engines()
        if away_from is not None:
            running = [one for one in running if one.turn and away_from.identity not in one.turn.place.gate.clients]  # fmt: skip
        if running:
            attempt = running[number % len(running)]
            del self.open[attempt]
            assert attempt.turn is not None
            attempt.turn.leave(Usage(TOKENS, 0, 9))
            self.rooms.replicas.fleet.finished(attempt.ticket, Usage(TOKENS, 0, 9))
            self.follow()

    def _note(self, attempt: Attempt, of: Client) -> None:
        self.open[attempt] = of

    def waits(self, of: Client) -> int:
        return sum(gate.clients[of.identity] for gate in self.gates)

    def is_within_limits(self) -> bool:
        return all(gate.at_engine <= PLACES for gate in self.gates)


async def test_the_first_free_places_call_a_client_that_waits_elsewhere() -> None:
    world = World(8)
    world.ask(FLOOD, 64)
    world.ask(LIGHT)
    assert world.waits(LIGHT) == 1
    for number in range(4):
        world.end(5 * number, away_from=LIGHT)
    assert world.waits(LIGHT) == 0
    assert world.rooms.gates.moved > 0
    assert world.is_within_limits()


async def test_a_client_that_waits_at_every_gate_is_not_called() -> None:
    world = World(4)
    world.ask(FLOOD, 32)
    moved = world.rooms.gates.moved
    for number in range(8):
        world.end(number)
    assert world.rooms.gates.moved == moved


async def test_a_request_that_was_called_and_leaves_gives_its_place_back() -> None:
    world = World(4)
    world.ask(FLOOD, 24)
    world.ask(LIGHT)
    attempt = next(one for one, of in world.open.items() if of is LIGHT)
    turn = attempt.turn
    assert turn is not None
    world.follow = lambda: None  # type: ignore[method-assign] # its client leaves first
    while turn.called is None:
        world.end(0, away_from=LIGHT)
    called = turn.called.place.gate
    assert called.at_engine == PLACES
    before = called.clients.total()
    attempt.refused()
    assert called.at_engine == PLACES
    assert called.clients.total() == before - 1, "a request that waits there has the place"


async def behind_prompts(monkeypatch: pytest.MonkeyPatch, due_s: float) -> tuple[World, Place]:
    """Requests wait at one gate. The other one has free places, and prompts of whole answers that are computed after `due_s`."""
    monkeypatch.setattr("evenkeel_router.gate.prompts.MOST_TOKENS", 0)
    world = World(2)
    fleet, gates, now_s = (
        world.rooms.replicas.fleet,
        world.rooms.gates,
        asyncio.get_running_loop().time(),
    )
    free, _ = fleet
    assert free.slot is not None
    fleet.unready(free)
    world.ask(FLOOD, 4)
    fleet.ready(free)
    place = gates._place(free, free.slot)
    for n in range(FEW):
        one = GatedRequest(
            id=f"whole{n}", client=LIGHT.identity, tenant="ns/light", arrival_s=now_s, input_tokens=1, max_output_tokens=1, streams=False,
        )  # fmt: skip
        place.gate.prompts.sent(one, now_s, due_s / FIXED_TOKENS / FEW)
    gates.rebalance()
    assert gates.moved == 0
    return world, place


async def test_a_prompt_that_should_be_computed_makes_room_for_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await behind_prompts(monkeypatch, 0.1)
    await until(lambda: world.rooms.gates.moved > 0, "a call")


async def test_a_gate_that_was_replaced_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world, old = await behind_prompts(monkeypatch, 0.1)
    gates, config = world.rooms.gates, world.rooms.settings.config
    scheduling = replace(config.scheduling, client_quantum=2 * TOKENS)
    gates.apply(replace(config, scheduling=scheduling), config)
    free = next(iter(world.rooms.replicas.fleet))
    world.rooms.replicas.fleet.unready(free)
    world.ask(FLOOD, 8)
    world.rooms.replicas.fleet.ready(free)
    assert gates.waiting
    await until(lambda: old.timer is None, "the end of its time")
    assert not old.gate.sent


async def test_no_request_is_called_to_a_replica_that_takes_none() -> None:
    world = World(4)
    world.ask(FLOOD, 24)
    world.ask(LIGHT)
    for name in ("r0", "r1", "r2", "r3"):
        member = world.rooms.replicas.fleet.member(name)
        assert member is not None
        member.routable = False
    world.rooms.replicas.fleet.routable = EMPTY
    moved = world.rooms.gates.moved
    for number in range(8):
        running = world.at_engines()
        attempt = running[number % len(running)]
        del world.open[attempt]
        assert attempt.turn is not None
        attempt.turn.leave(NOTHING)
    assert world.rooms.gates.moved == moved


class Named(str):
    """What waits, for `Waiters`."""

    __slots__ = ()

    @property
    def who(self) -> str:
        return self.partition(" ")[0]


def test_each_client_is_looked_at_in_turn() -> None:
    waiters: Waiters[Named] = Waiters()
    for number in range(2 * LOOKS):
        waiters.add(Named(f"c{number} 1"))
    seen = Counter(waiters.clients())
    assert len(seen) == LOOKS
    seen.update(waiters.clients())
    assert set(seen.values()) == {1}
    assert len(seen) == len(waiters)


def test_a_change_is_notified_when_a_client_begins_and_ends_to_wait() -> None:
    waiters: Waiters[Named] = Waiters()
    changes = []
    waiters.changed = lambda: changes.append(len(waiters))
    first, second = Named("a 1"), Named("a 2")
    for one in (first, second):
        waiters.add(one)
    assert list(waiters.oldest("a")) == [first, second]
    for one in (first, first, second):
        waiters.remove(one)
    assert changes == [1, 0]
