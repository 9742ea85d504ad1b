"""The replica policies that a fleet runs, by their names in the API (design §3 `replicaPolicy`). A new policy is added here.

The enum `ReplicaPolicyName` of the contract offers it to a FairInferenceService.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.drr import Drr
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_fairshare.replica.hrrn import Hrrn
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH, Order
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPolicyConfig:
    """The parameters of replica policies; each policy takes its own."""

    cost: Cost = field(default_factory=LinearCost)
    """VTC, VTCPredict, LCF, DRR, DLPM."""
    deficits: DeficitRules = field(default_factory=DeficitRules)
    """DLPM: quantum Q^u, rejoin, memory. DRR: quantum, memory."""
    skip_misfit: bool = False
    """LPM, HRRN, DLPM: go on past a request that does not fit."""
    warmup_s: float = 0.0
    """DLPM: time in which a new replica defers refills."""
    order: Order = LONGEST_MATCH
    """DLPM: which request of clients with positive deficits goes first."""


POLICIES: Final[Mapping[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]]] = MappingProxyType(
    {
        Fcfs.name: lambda config: Fcfs(),
        Lpm.name: lambda config: Lpm(skip_misfit=config.skip_misfit),
        Hrrn.name: lambda config: Hrrn(skip_misfit=config.skip_misfit),
        Vtc.name: lambda config: Vtc(cost=config.cost),
        PredictedVtc.name: lambda config: PredictedVtc(cost=config.cost),
        Lcf.name: lambda config: Lcf(cost=config.cost),
        Drr.name: lambda config: Drr(rules=config.deficits, cost=config.cost),
        Dlpm.name: lambda config: Dlpm(
            rules=config.deficits,
            cost=config.cost,
            skip_misfit=config.skip_misfit,
            warmup_s=config.warmup_s,
            order=config.order,
        ),
    }
)


def make_policy(name: str, config: ReplicaPolicyConfig | None = None) -> ReplicaPolicy:
    """A new policy, one per replica. Raises `ValueError` with the known names."""
    try:
        make = POLICIES[name]
    except KeyError:
        raise ValueError(f"no replica policy {name!r}; there are {', '.join(POLICIES)}") from None
    return make(config or ReplicaPolicyConfig())
