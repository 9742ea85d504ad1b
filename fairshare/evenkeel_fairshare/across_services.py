"""Weights of tenants inside each of several services, so that their engine seconds over all services follow the global weights (R22).

Services are to a gateway what cells are to one service (`cells`). Their tokens are not comparable, so rates are in *engine seconds*:
weighted tokens times the seconds that a replica takes for one, times the GPUs of a replica, per second. A service whose n replicas
have g GPUs each serves n·g engine seconds per second while requests wait.

**Bound.** Let demand and speeds be constant. Steps end where (`cells`, 2 of the bound in `docs/design/cells.md`), for each service and
any tenants i and j with requests there,

    X_i/W_i <= X_j/W_j     if j waits there, and i gets more there than `FLOOR` of its level

X being a tenant's engine seconds over all services. So a tenant that floods several services gets, over all of them, no more
than one of equal weight that waits at any of those that still serve it. No step stops a tenant, so no service leaves work
undone while it has some: one tenant may have all of a service that no other uses. What it uses there counts, while it lasts.

A relative error δ of the seconds per token scales that service's part of each X by 1 + δ, and no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from evenkeel_fairshare.cells import NO_CELLS, CellSums, TenantInCell, at_once, demand_of
from evenkeel_fairshare.cells import weighing as weighing_in_cell

FLOOR: Final = 0.05
"""The least part of its level that a tenant keeps in a service, however much it is ahead elsewhere. An engine learns a weight with the
next request of its tenant. With a hundredth, as in a cell, all its requests may wait for minutes before it sends another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRates:
    """One service over the last interval."""

    served: Mapping[str, float]
    """Tenant → weighted tokens per second that it was served."""
    waiting: Mapping[str, float]
    """Tenant → weighted tokens that its waiting requests will cost."""
    token_cost_s: float
    """Engine seconds of a weighted token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InSeconds:
    """One service, in engine seconds per second."""

    capacity: float
    """Service of all tenants."""
    tenants: Mapping[str, CellSums]
    """Tenants with demand."""

    @property
    def is_full(self) -> bool:
        """Whether it cannot serve all demand. Without waiting requests both sums are equal but for rounding."""
        return sum(one.demand for one in self.tenants.values()) > self.capacity * (1 + 1e-9)


def weighing(
    services: Mapping[str, ServiceRates], weight: Callable[[str], float], *, interval_s: float
) -> Generator[None, None, dict[str, dict[str, float]]]:
    """Service → the weights inside it of the tenants with demand there, for the next interval; in steps.

    `weight` returns a tenant's global weight. The weights of a service add up to the sum of the global ones.
    """
    found: dict[str, _InSeconds] = {}
    served: defaultdict[str, float] = defaultdict(float)
    full: defaultdict[str, CellSums] = defaultdict(lambda: NO_CELLS)
    for name, rates in services.items():
        one = found[name] = _in_seconds(rates, interval_s)
        is_full = one.is_full
        for tenant, own in one.tenants.items():
            served[tenant] += own.served
            if is_full:
                before = full[tenant]
                full[tenant] = CellSums(before.served + own.served, before.demand + own.demand)
        yield
    weights: dict[str, dict[str, float]] = {}
    for name, one in found.items():
        if not one.is_full:
            weights[name] = {tenant: weight(tenant) for tenant in one.tenants}
            continue
        seen = {
            tenant: TenantInCell(
                weight=weight(tenant),
                served=own.served,
                demand=own.demand,
                elsewhere=served[tenant] - own.served,
                full=_without(full[tenant], own),
            )
            for tenant, own in one.tenants.items()
        }
        yield
        weights[name] = yield from weighing_in_cell(seen, one.capacity, floor=FLOOR)
    return weights


def weights_in_services(
    services: Mapping[str, ServiceRates], weight: Callable[[str], float], *, interval_s: float
) -> dict[str, dict[str, float]]:
    """The result of `weighing`, at once."""
    return at_once(weighing(services, weight, interval_s=interval_s))


def _in_seconds(rates: ServiceRates, interval_s: float) -> _InSeconds:
    cost_s = rates.token_cost_s
    capacity = sum(rates.served.values())
    tenants = {}
    for tenant in {**rates.served, **rates.waiting}:
        served = rates.served.get(tenant, 0.0)
        waiting = rates.waiting.get(tenant, 0.0)
        demand = demand_of(served, waiting, capacity=capacity, interval_s=interval_s)
        if demand > 0:
            tenants[tenant] = CellSums(served * cost_s, demand * cost_s)
    return _InSeconds(capacity=capacity * cost_s, tenants=tenants)


def _without(sums: CellSums, own: CellSums) -> CellSums:
    """Sums over the other services. Of one that is alone they are zero, not what rounding leaves."""
    demand = sums.demand - own.demand
    if demand <= 1e-9 * sums.demand:
        return NO_CELLS
    return CellSums(max(0.0, sums.served - own.served), demand)
