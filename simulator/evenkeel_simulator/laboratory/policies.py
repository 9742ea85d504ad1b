"""The policies that an experiment can run: the shipped ones, the papers' literal ones in their place, and rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.fleet import registry
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.lpm import by_prefix
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig
from evenkeel_fairshare.replica.vtc import Vtc

from evenkeel_simulator.laboratory.cache_aware import CacheAware
from evenkeel_simulator.laboratory.vtc_artifact import ArtifactLcf, ArtifactVtc

FLEET_POLICIES: Final[Mapping[str, Callable[[registry.FleetPolicyConfig], FleetPolicy]]] = (
    MappingProxyType({**registry.POLICIES, CacheAware.name: lambda config: CacheAware()})
)


class PrintedDlpm(Dlpm):
    """Walks over the queue in LPM order; a refill does not go back to requests that this walk has passed over."""

    def _eligible(self) -> Iterator[Request]:
        order = by_prefix(self._queue)  # line 16
        progressed = True
        while order and progressed:  # line 17, which ends by §1.13 a
            progressed, passed_over = False, []
            for request in order:
                nodes = self._queue[request].path  # its tenant, then its client
                for node in nodes:
                    if not is_eligible(node):  # line 19
                        progressed |= check_refill(node.level)
                    if not is_eligible(node):  # line 20
                        passed_over.append(request)
                        break
                else:
                    yield request  # lines 21 to 24
                    progressed |= request in self._running
            order = passed_over


def is_eligible(account: Account) -> bool:
    """q_i > 0, deferred refills counted."""
    return account.positive_from <= account.level.horizon


def check_refill(level: DeficitLevel) -> bool:
    """CheckRefill, lines 3 to 8: a refill if no queued member is eligible, as large as it takes (§1.13 b).

    Whether there was one.
    """
    queued = [account for account in level.members.values() if account.waiting]
    if not queued or any(map(is_eligible, queued)):
        return False
    level.refill_to(min(account.positive_from for account in queued))
    return True


def policies(
    *, printed: bool, artifact: bool
) -> Mapping[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]]:
    """By the names of the API. `printed`: DLPM as the paper prints it instead of as replicas run it; `artifact`: VTC and LCF
    with the accounts of the VTC paper's artifact."""
    literal: dict[str, Callable[[ReplicaPolicyConfig], ReplicaPolicy]] = {}
    if printed:
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
