"""The fleet policies by their names in `scheduling.fleetPolicy`. Add a new policy here only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.fleet.per_client_round_robin import PerClientRoundRobin
from evenkeel_fairshare.fleet.round_robin import RoundRobin


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicyConfig:
    """The parameters of fleet policies; each policy takes its own."""

    cost: Cost = field(default_factory=LinearCost)
    """The cost of service, the same as at the replicas."""
    worker_quantum: float | None = None
    """Q^w, weighted tokens. None: it follows the prompts (R2)."""
    max_clients: int = 10_000
    """Number of clients that a policy keeps; beyond it the least recently used is removed (R8 allows it)."""


def _d2lpm(config: FleetPolicyConfig) -> FleetPolicy:
    if config.worker_quantum is None:
        return AutoD2lpm(cost=config.cost, max_clients=config.max_clients)
    return D2lpm(
        worker_quantum=config.worker_quantum,
        cost=config.cost,
        max_clients=config.max_clients,
    )


POLICIES: Final[Mapping[str, Callable[[FleetPolicyConfig], FleetPolicy]]] = MappingProxyType(
    {
        RoundRobin.name: lambda config: RoundRobin(),
        PerClientRoundRobin.name: lambda config: PerClientRoundRobin(
            max_clients=config.max_clients
        ),
        LeastLoaded.name: lambda config: LeastLoaded(),
        D2lpm.name: _d2lpm,
    }
)


def make_policy(name: str, config: FleetPolicyConfig | None = None) -> FleetPolicy:
    """A new policy; raises `ValueError` with the known names."""
    constructor = POLICIES.get(name)
    if constructor is None:
        raise ValueError(f"fleet policy {name!r} is not one of {', '.join(POLICIES)}")
    return constructor(config or FleetPolicyConfig())
