"""Replica policies by the names that the API uses (design §3 `replicaPolicy`)."""

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
from evenkeel_fairshare.replica.lcf import ArtifactLcf, Lcf
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_fairshare.replica.vtc_artifact import ArtifactVtc
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPolicyConfig:
    """What replica policies can be told; each takes what concerns it."""

    cost: Cost = field(default_factory=LinearCost)
    """VTC, VTCPredict, LCF, DRR, DLPM."""
    deficits: DeficitRules = field(default_factory=DeficitRules)
    """DLPM: quantum Q^u, rejoin, memory. DRR: quantum, memory."""
    skip_misfit: bool = False
    """LPM, DLPM: go on past a request that does not fit."""
    longest_first: bool = False
    """DLPM: after a refill go back to the longest match, instead of on with the walk as printed."""
    warmup_s: float = 0.0
    """DLPM: how long a new replica withholds rounds."""
    artifact: bool = False
    """VTC, LCF: the accounts of the paper's artifact, for reproducing its tables."""


POLICIES: Final[Mapping[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]]] = MappingProxyType(
    {
        Fcfs.name: lambda config: Fcfs(),
        Lpm.name: lambda config: Lpm(skip_misfit=config.skip_misfit),
        Vtc.name: lambda config: (ArtifactVtc if config.artifact else Vtc)(cost=config.cost),
        PredictedVtc.name: lambda config: PredictedVtc(cost=config.cost),
        Lcf.name: lambda config: (ArtifactLcf if config.artifact else Lcf)(cost=config.cost),
        Drr.name: lambda config: Drr(rules=config.deficits, cost=config.cost),
        Dlpm.name: lambda config: Dlpm(
            rules=config.deficits,
            cost=config.cost,
            skip_misfit=config.skip_misfit,
            longest_first=config.longest_first,
            warmup_s=config.warmup_s,
        ),
    }
)


def make_policy(name: str, config: ReplicaPolicyConfig | None = None) -> ReplicaPolicy:
    """A fresh policy, one per replica. Raises `ValueError` naming the policies there are."""
    try:
        make = POLICIES[name]
    except KeyError:
        raise ValueError(f"no replica policy {name!r}; there are {', '.join(POLICIES)}") from None
    return make(config or ReplicaPolicyConfig())
