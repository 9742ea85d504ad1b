"""The policies that an experiment can run: the shipped ones, the papers' literal ones in their place, and those for comparison only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.fleet import registry
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.qoe import Expectation
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.lpm import by_prefix
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc
from evenkeel_simulator.engine.profiles import PROFILES, CostProfile

from evenkeel_laboratory.policies.andes import Andes
from evenkeel_laboratory.policies.central_dlpm import CentralDlpm
from evenkeel_laboratory.policies.preble import PrebleE2
from evenkeel_laboratory.policies.preble_priority import PreblePriority
from evenkeel_laboratory.policies.round_robin import TURN_TOKENS, PreemptiveRoundRobin
from evenkeel_laboratory.policies.routers import CacheAware, PrefixQueueScorer, SglangRouter
from evenkeel_laboratory.policies.rpm import REQUESTS_PER_MINUTE, DeferredRpm, Rpm
from evenkeel_laboratory.policies.vtc_artifact import (
    ArtifactLcf,
    ArtifactOracle,
    ArtifactPredict,
    ArtifactVtc,
)
from evenkeel_laboratory.policies.vtc_central import CentralCounters, CentralVtc
from evenkeel_laboratory.policies.vtc_oracle import OracleVtc
from evenkeel_laboratory.policies.vtc_preempt import PREEMPTION_LEAD, PreemptiveVtc

_PROFILE: Final = PROFILES["a10g-llama2-7b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaboratoryFleetConfig(registry.FleetPolicyConfig):
    """The parameters of the shipped fleet policies, and of those below."""

    profile: CostProfile = _PROFILE
    """Profile by which PrebleE2 predicts prefills."""
    kv_tokens: int | None = None
    """KV pool of a replica for PrebleE2, tokens; None: that of the profile."""
    deficits: DeficitRules = field(default_factory=DeficitRules)
    """Deficits of DLPMCentral."""


MakeFleetPolicy = Callable[[LaboratoryFleetConfig], FleetPolicy]

FLEET_POLICIES: Final[Mapping[str, MakeFleetPolicy]] = MappingProxyType(
    {
        **registry.POLICIES,
        CacheAware.name: lambda config: CacheAware(),
        SglangRouter.name: lambda config: SglangRouter(),
        PrefixQueueScorer.name: lambda config: PrefixQueueScorer(),
        PrebleE2.name: lambda config: PrebleE2(profile=config.profile, kv_tokens=config.kv_tokens),
        CentralDlpm.name: lambda config: CentralDlpm(rules=config.deficits, cost=config.cost),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaboratoryConfig(ReplicaPolicyConfig):
    """The parameters of the shipped policies, and of those below."""

    requests_per_minute: int = REQUESTS_PER_MINUTE
    """RPM, RPMDefer: a client's limit."""
    preemption_lead: float = PREEMPTION_LEAD
    """VTCPreempt: service that a running client may be ahead of a waiting one, in weighted tokens over the weight."""
    turn_tokens: int = TURN_TOKENS
    """PreemptiveRoundRobin: output tokens of a request's turn."""
    prediction_error: float = 0.0
    """VTCOracle: 0.5 is the paper's ±50 %."""
    seed: int = 0
    """VTCOracle: of the errors."""
    expectation: Expectation = field(default_factory=Expectation)
    """Andes: what users expect."""
    profile: CostProfile = _PROFILE
    """Andes: it predicts token rates."""
    kv_tokens: int | None = None
    """Andes: the KV pool; None: that of the profile."""
    counters: CentralCounters = field(default_factory=CentralCounters)
    """VTCCentral: those of the one fleet that this configuration is for."""


MakeReplicaPolicy = Callable[[LaboratoryConfig], ReplicaPolicy]

REPLICA_POLICIES: Final[Mapping[str, MakeReplicaPolicy]] = MappingProxyType(
    {
        **POLICIES,
        Rpm.name: lambda config: Rpm(limit=config.requests_per_minute),
        DeferredRpm.name: lambda config: DeferredRpm(limit=config.requests_per_minute),
        PreemptiveRoundRobin.name: lambda config: PreemptiveRoundRobin(
            turn_tokens=config.turn_tokens
        ),
        PreblePriority.name: lambda config: PreblePriority(),
        Andes.name: lambda config: Andes(
            profile=config.profile, kv_tokens=config.kv_tokens, expectation=config.expectation
        ),
        CentralVtc.name: lambda config: CentralVtc(config.counters, cost=config.cost),
        OracleVtc.name: lambda config: OracleVtc(
            cost=config.cost, error=config.prediction_error, seed=config.seed
        ),
        PreemptiveVtc.name: lambda config: PreemptiveVtc(
            cost=config.cost, lead=config.preemption_lead
        ),
    }
)


class PrintedDlpm(Dlpm):
    """Walks over the queue in LPM order; a refill does not go back to requests that this walk has passed over."""

    def _eligible(self) -> Iterator[Request]:
        order = by_prefix(self._queue)  # line 16
        progressed = True
        while order and progressed:  # line 17, which ends by §1.13 a
            progressed, passed_over = False, []
            for request in order:
                nodes = self._queue[request].account.path  # its tenant, then its client
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
    queued = [account for account in level.members.values() if account.waiting > account.held]
    if not queued or any(map(is_eligible, queued)):
        return False
    level.refill_to(min(account.positive_from for account in queued))
    return True


def policies(*, printed: bool, artifact: bool) -> Mapping[str, MakeReplicaPolicy]:
    """Policies by their names in the API. `printed`: DLPM as the paper prints it instead of as replicas run it: its order, and a
    newcomer waits for the next refill; `artifact`: VTC,
    with and without predictions, and LCF with the accounts of the VTC paper's artifact."""
    literal: dict[str, MakeReplicaPolicy] = {}
    if printed:
        literal[Dlpm.name] = lambda config: PrintedDlpm(
            rules=replace(config.deficits, first_turn=False),
            cost=config.cost,
            skip_misfit=config.skip_misfit,
            warmup_s=config.warmup_s,
        )
    if artifact:
        literal[Vtc.name] = lambda config: ArtifactVtc(cost=config.cost)
        literal[Lcf.name] = lambda config: ArtifactLcf(cost=config.cost)
        literal[PredictedVtc.name] = lambda config: ArtifactPredict(cost=config.cost)
        literal[OracleVtc.name] = lambda config: ArtifactOracle(
            cost=config.cost, error=config.prediction_error, seed=config.seed
        )
    return {**REPLICA_POLICIES, **literal}
