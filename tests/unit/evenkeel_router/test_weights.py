"""Configured weights by identity."""

from __future__ import annotations

from dataclasses import replace

from evenkeel_contract.routerconfig import ClientConfig, TenancyConfig, TenantConfig
from evenkeel_router.api.identity import client_of
from evenkeel_router.api.tenant_change import TenantChange
from evenkeel_router.ledger.weights import ConfiguredWeights, LocalWeights

from tests.support.router_rooms import rooms_of
from tests.support.routers import applied

NOBODY = TenancyConfig()
TENANT = TenantConfig(
    namespace="ns",
    name="ads",
    weight=4,
    default_client_weight=2,
    clients=(ClientConfig(name="chät", weight=3),),
)


def test_weights_go_by_the_identities_that_travel_in_keys() -> None:
    weights = ConfiguredWeights(TenancyConfig(tenants=(TENANT,)))
    named, other = client_of(TENANT, "chät"), client_of(TENANT, "other")
    assert (weights.client(named.identity), weights.client(other.identity)) == (3.0, 2.0)
    assert weights.tenant(named.tenant_identity) == 4.0


def test_an_unconfigured_client_weighs_one() -> None:
    weights = ConfiguredWeights(NOBODY)
    assert (weights.client("ns/x/y"), weights.tenant("ns/x")) == (1.0, 1.0)


def test_an_undeclared_tenant_has_the_weight_of_such_tenants() -> None:
    """The tenant of requests without an identity is no such tenant."""
    heavy = TenancyConfig(undeclared_tenant_weight=3)
    for weights in (
        ConfiguredWeights(heavy),
        after(ConfiguredWeights(NOBODY), TenantChange(), heavy),
        LocalWeights(ConfiguredWeights(heavy), {"ns/ads": 2.0}),
    ):
        assert (weights.tenant("ns/x"), weights.tenant("ns/anonymous")) == (3.0, 1.0)


async def test_a_changed_weight_of_undeclared_tenants_is_in_force_at_once() -> None:
    rooms = rooms_of("r0")
    before = rooms.settings.config
    tenancy = replace(before.tenancy, undeclared_tenant_weight=3)
    applied(rooms, replace(before, tenancy=tenancy))
    assert rooms.service_ledger.ledger.weights.tenant("ns/x") == 3.0


def test_local_weights_outlive_a_change_of_the_configuration() -> None:
    local = LocalWeights(ConfiguredWeights(TenancyConfig(tenants=(TENANT,))), {"ns/ads": 0.25})
    changed = after(local, TenantChange((TENANT,), (replace(TENANT, weight=9),)))
    assert (changed.tenant("ns/ads"), changed.configured("ns/ads")) == (0.25, 9.0)
    assert (local.tenant("ns/ads"), local.configured("ns/ads")) == (0.25, 4.0)
    assert (local.tenant("ns/x"), local.configured("ns/x")) == (1.0, 1.0)
    assert local.client("ns/ads/other") == 2.0


def after(
    weights: ConfiguredWeights, change: TenantChange, tenancy: TenancyConfig = NOBODY
) -> ConfiguredWeights:
    """What a change leaves."""
    steps = weights.changed(change, tenancy)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: ConfiguredWeights = end.value
            return found
