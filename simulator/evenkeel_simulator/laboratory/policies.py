"""The replica policies that an experiment can run: the shipped ones, and the papers' literal ones in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig
from evenkeel_fairshare.replica.vtc import Vtc

from evenkeel_simulator.laboratory.printed_dlpm import PrintedDlpm
from evenkeel_simulator.laboratory.vtc_artifact import ArtifactLcf, ArtifactVtc


def policies(
    *, longest_first: bool, artifact: bool
) -> Mapping[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]]:
    """By the names of the API. `longest_first`: DLPM as replicas run it instead of as printed; `artifact`: VTC and LCF
    with the accounts of the VTC paper's artifact."""
    literal: dict[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]] = {}
    if not longest_first:
        literal[Dlpm.name] = lambda config: PrintedDlpm(
            rules=config.deficits,
            cost=config.cost,
            skip_misfit=config.skip_misfit,
            warmup_s=config.warmup_s,
        )
    if artifact:
        literal[Vtc.name] = lambda config: ArtifactVtc(cost=config.cost)
        literal[Lcf.name] = lambda config: ArtifactLcf(cost=config.cost)
    return {**POLICIES, **literal}
