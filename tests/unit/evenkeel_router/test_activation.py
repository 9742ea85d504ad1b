"""When a service stands at zero, and who hears that a request wants its first replica."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from evenkeel_contract.routerconfig import AtZero
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_router.fleet.discovered import TERMINATING
from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.fleet.wait_queue import Activation, WaitQueue

from tests.support.routers import PATIENCE_S, config_for, until


class Scene:
    """A fleet without replicas, a waiting room, and what is made of both."""

    def __init__(self, at_zero: AtZero = AtZero.ACTIVATE) -> None:
        self.fleet = Fleet(LeastLoaded(), PrefixIndex(), block_bytes=16)
        self.room = WaitQueue()
        self.config = config_for(at_zero=at_zero)
        self.now_s = 0.0
        self.activation = Activation(
            self.fleet, self.room, lambda: self.config, now=lambda: self.now_s
        )

    def wait(self) -> asyncio.Task[None]:
        """A request that finds no replica."""
        waiting = self.room.wait(client="a", cost=1, weight=1, timeout_s=PATIENCE_S)
        return asyncio.create_task(waiting)

    def becomes_ready(self, name: str) -> None:
        member = self.fleet.member(name)
        assert member is not None
        self.fleet.ready(member)
        self.room.open()


async def test_who_waits_while_there_is_none_wants_one_until_it_takes_requests() -> None:
    scene = Scene()
    activation = scene.activation
    assert activation.holds
    assert not activation.wanted
    waiting = scene.wait()
    assert await activation.other_than(False, PATIENCE_S)
    scene.fleet.add("r0")  # it is there, and loads its model
    scene.now_s = 42.0
    activation.look()
    assert activation.holds
    assert activation.wanted
    scene.becomes_ready("r0")
    assert not await activation.other_than(True, PATIENCE_S)
    assert not activation.holds
    assert activation.took_s.total == 42.0
    await waiting


async def test_a_broken_replica_may_come_back_and_a_deleted_one_does_not() -> None:
    scene = Scene()
    member = scene.fleet.add("r0")
    scene.becomes_ready("r0")
    scene.fleet.lost(member)
    waiting = scene.wait()
    await until(lambda: len(scene.room) == 1, "it to wait")
    assert not scene.activation.holds
    member.unschedulable = "draining"
    scene.activation.look()
    assert not scene.activation.wanted, "somebody marked it by hand"
    member.unschedulable = TERMINATING
    scene.activation.look()
    assert scene.activation.wanted
    scene.room.open()
    await waiting


async def test_who_gives_up_wants_nothing_any_more() -> None:
    scene = Scene()
    waiting = scene.wait()
    await until(lambda: scene.activation.wanted, "it to be wanted")
    asked = asyncio.create_task(scene.activation.other_than(True, PATIENCE_S))
    waiting.cancel()
    assert not await asked
    assert not sum(scene.activation.took_s.counts)
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("at_zero", [AtZero.WAIT, AtZero.REFUSE])
async def test_a_replica_is_wanted_once_the_configuration_allows_activation(
    at_zero: AtZero,
) -> None:
    scene = Scene(at_zero)
    waiting = scene.wait()
    await until(lambda: len(scene.room) == 1, "it to wait")
    assert not await scene.activation.other_than(False, 0.001)
    scene.config = replace(scene.config, at_zero=AtZero.ACTIVATE)
    scene.activation.look()
    assert scene.activation.wanted
    scene.room.open()
    await waiting


async def test_a_router_that_ends_answers_all_polls() -> None:
    scene = Scene()
    asked = asyncio.create_task(scene.activation.other_than(False, PATIENCE_S))
    await asyncio.sleep(0)
    scene.activation.end()
    assert not await asked
    assert not await scene.activation.other_than(False, PATIENCE_S)
