"""When tenants get other weights inside one of several services, and when they get the configured ones back (R22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.routerconfig import PoolConfig, RouterConfig, ShareAcross, TenancyConfig
from evenkeel_fairshare.across_services import FLOOR
from evenkeel_router.api.claims import Claims
from evenkeel_router.ledger.fairness import Fairness, FleetFigures, MemberFigures
from evenkeel_router.ledger.model_shares import ModelShares
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Settings
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.routers import KEY, applied, config_for, tenancy

BIG, SMALL = "big", "small"
SPEED = 1000.0
"""Weighted tokens per second of each replica."""


class World:
    """Two services of one replica each, in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        pools = (
            PoolConfig(service=BIG, model=BIG, gpus=4),
            PoolConfig(service=SMALL, model=SMALL),
        )
        given: dict[str, Any] = {"pools": pools, "share_across": ShareAcross.GATEWAY}
        self.config: RouterConfig = config_for(**(given | changes))
        self.ledgers = {name: ServiceLedger(Settings(self.config)) for name in (BIG, SMALL)}
        self.speeds: dict[str, float | None] = {BIG: SPEED, SMALL: SPEED}
        self.calls: list[tuple[str, Mapping[str, float]]] = []
        self.now_s = 0.0
        self.served: dict[tuple[str, str], float] = {}
        of = {id(ledger.fairness): name for name, ledger in self.ledgers.items()}
        speed = property(lambda fairness: self.speeds[of[id(fairness)]])
        monkeypatch.setattr(Fairness, "replica_speed", speed)

        async def reweigh(service: str, weights: Mapping[str, float]) -> None:
            self.calls.append((service, weights))

        self.shares = ModelShares(
            lambda: self.config, lambda: self.ledgers, interval_s=5.0, reweigh=reweigh
        )
        self.shares._now = lambda: self.now_s

    async def interval(self, **rates: Mapping[str, float]) -> None:
        """Five seconds in which tenants were served at these rates. All of them have more that waits than can be served."""
        self.now_s += 5.0
        for service, ledger in self.ledgers.items():
            for tenant, rate in rates.get(service, {}).items():
                key = service, f"ns/{tenant}"
                self.served[key] = self.served.get(key, 0.0) + 5.0 * rate
            tenants = {
                tenant: MemberFigures(
                    service=total,
                    waiting=1e6 if tenant.partition("/")[2] in rates.get(service, {}) else 0.0,
                )
                for (of, tenant), total in self.served.items()
                if of == service
            }
            ledger.fairness.now = FleetFigures(tenants=tenants)
        await self.shares._renew()

    async def flood(self, intervals: int = 3) -> None:
        """Tenant a floods both services, and b the small one."""
        for _ in range(intervals):
            await self.interval(big={"a": 1000.0}, small={"a": 500.0, "b": 500.0})


async def test_who_has_the_big_model_weighs_little_in_the_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    await world.flood(1)
    assert not world.shares.weights, "no rate is known before the second look"
    await world.flood()
    weights = world.shares.weights
    assert set(weights) == {SMALL}, "in the big one it is alone"
    # It has four of five engine seconds: no more than the floor is left to it.
    assert weights[SMALL]["ns/a"] == pytest.approx(2.0 * FLOOR / (1.0 + FLOOR), abs=0.001)
    assert weights[SMALL]["ns/a"] + weights[SMALL]["ns/b"] == pytest.approx(2.0)


async def test_a_weight_within_the_tolerance_goes_with_the_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    await world.interval(big={"a": 1000.0})
    world.shares.weights = {BIG: {"ns/a": 1.01}}
    await world.interval(big={"a": 1000.0})
    assert world.calls == [(BIG, {})]


async def test_seconds_are_those_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens at the same speeds: without its four GPUs the big model leaves a its part of the small one."""
    world = World(monkeypatch)
    alone = PoolConfig(service=BIG, model=BIG)
    world.config = replace(world.config, pools=(alone, world.config.pools[1]))
    for _ in range(3):
        await world.interval(big={"a": 500.0}, small={"a": 250.0, "b": 750.0})
    # Both have three quarters of an engine, and keep them.
    assert world.shares.weights == {SMALL: {"ns/a": 0.5, "ns/b": 1.5}}
    world.config = replace(world.config, pools=(replace(alone, gpus=4), world.config.pools[1]))
    await world.interval(big={"a": 500.0}, small={"a": 250.0, "b": 750.0})
    assert world.shares.weights[SMALL]["ns/a"] < 0.12


async def test_a_service_without_a_measured_speed_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.speeds[BIG] = None
    await world.flood()
    assert not world.calls


async def test_nothing_is_sent_while_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.flood(8)
    assert [service for service, _ in world.calls] == [SMALL]


@pytest.mark.parametrize("end", ["not shared", "idle", "gone", "unmeasured"])
async def test_the_configured_weights_come_back(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.flood()
    assert world.shares.weights
    if end == "not shared":
        world.config = replace(world.config, share_across=None)
    elif end == "gone":
        del world.ledgers[SMALL]
    elif end == "unmeasured":
        world.speeds[SMALL] = None
    await world.interval(big={"a": 1000.0})
    assert not world.shares.weights
    assert world.calls[-1] == (SMALL, {})


async def test_tenants_that_no_resource_declares_have_their_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that cannot serve all, and no other: everybody has its weight over all services, which 1 is not."""
    world = World(monkeypatch, tenancy=TenancyConfig(undeclared_tenant_weight=3))
    rates = {"new": 300.0, "other": 300.0, "anonymous": 100.0}
    for _ in range(3):
        await world.interval(small=rates)
    assert not world.shares.weights
    for _ in range(3):
        await world.interval(small={"new": 300.0, "anonymous": 700.0}, big={"anonymous": 1000.0})
    found = world.shares.weights[SMALL]
    assert found["ns/new"] + found["ns/anonymous"] == pytest.approx(3.0 + 1.0)


def test_a_changed_configuration_leaves_the_local_weights() -> None:
    pools = (PoolConfig(service=BIG, model=BIG), PoolConfig(service=SMALL, model=SMALL))
    shared = Rooms.make(config_for(pools=pools), incarnation="router")
    config = config_for(service=SMALL, model=SMALL)
    rooms = shared.of_pool(config)
    rooms.reweigh({"ns/acme": 0.5})
    assert rooms.service_ledger.ledger.weights.tenant("ns/acme") == 0.5
    (acme,) = tenancy().tenants
    changed = tenancy(tenants=(replace(acme, weight=7),))
    applied(shared, replace(config_for(pools=pools), tenancy=changed))
    applied(rooms, replace(config, tenancy=changed))
    weights = rooms.service_ledger.weights
    assert (weights.tenant("ns/acme"), weights.configured("ns/acme")) == (0.5, 7.0)
    assert rooms.intake.directory is not shared.intake.directory
    rooms.reweigh({})
    assert rooms.intake.directory is shared.intake.directory
    assert rooms.service_ledger.weights.tenant("ns/acme") == 7.0


def test_a_service_alone_keeps_the_weights_of_its_cell_too() -> None:
    config = config_for(tenancy=tenancy())
    rooms, sender = Rooms.make(config), Claims([f"Bearer {KEY}"])
    usual = rooms.intake.directory.identify(sender)
    rooms.reweigh({"ns/acme": 0.5})
    assert rooms.intake.directory.identify(sender).tenant_weight == 0.5
    (acme,) = tenancy().tenants
    applied(rooms, replace(config, tenancy=tenancy(tenants=(replace(acme, weight=7),))))
    assert rooms.intake.directory.identify(sender).tenant_weight == 0.5
    rooms.reweigh({})
    assert (usual.tenant_weight, rooms.intake.directory.identify(sender).tenant_weight) == (2, 7)
