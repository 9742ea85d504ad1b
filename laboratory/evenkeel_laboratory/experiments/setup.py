"""Builds a fleet from names: policies, their parameters, a profile, and the engine's rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from evenkeel_contract.enginesettings import ISOLATION, WARMUP_S
from evenkeel_contract.queueorder import DEFAULT_ORDER
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.qoe import Expectation
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.profiles import PROFILES, CostProfile, ProfileError, decode_profile
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Workload

from evenkeel_laboratory.experiments.fleet import MAX_REPLICAS, Fleet, FleetConfig
from evenkeel_laboratory.policies.registry import (
    FLEET_POLICIES,
    REPLICA_POLICIES,
    LaboratoryConfig,
    LaboratoryFleetConfig,
    policies,
)
from evenkeel_laboratory.policies.round_robin import TURN_TOKENS
from evenkeel_laboratory.policies.rpm import REQUESTS_PER_MINUTE
from evenkeel_laboratory.policies.vtc_artifact import artifact_config
from evenkeel_laboratory.policies.vtc_central import CentralCounters
from evenkeel_laboratory.policies.vtc_preempt import PREEMPTION_LEAD


class SetupError(ValueError):
    """An invalid name or number; the message names the field and the valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet, as a user names it."""

    profile: CostProfile
    replicas: int = 1
    slowdowns: tuple[float, ...] = ()
    """Factor on every duration of a replica, by slot, cyclically; empty: none."""
    replica_policy: str = "DLPM"
    fleet_policy: str = "D2LPM"
    quantum: float | None = None
    """Q^u, weighted tokens. None: a share of a second of the measured service."""
    worker_quantum: float | None = None
    """Q^w, weighted tokens. None: it follows the prompts."""
    cost: Cost = field(default_factory=LinearCost)
    warmup_s: float = WARMUP_S
    """DLPM: seconds for which a new replica defers refills; the default is that of replicas."""
    order: str = DEFAULT_ORDER.value
    """DLPM: which of the requests that it may admit goes first; `printed` ignores it."""
    printed: bool = False
    """DLPM in the order that the paper prints and without a first turn for newcomers (R17), instead of as replicas run it."""
    requests_per_minute: int = REQUESTS_PER_MINUTE
    """Limit of a client under RPM and RPMDefer."""
    preemption_lead: float = PREEMPTION_LEAD
    """Lead at which VTCPreempt preempts, weighted tokens."""
    turn_tokens: int = TURN_TOKENS
    """Output tokens of a turn under PreemptiveRoundRobin."""
    prediction_error: float = 0.0
    """Relative error of the lengths that VTCOracle knows, 0 to 1."""
    seed: int = 0
    """Seed of VTCOracle's errors."""
    expectation: Expectation | None = None
    """What users expect: QoE is measured against it, and Andes plans for it. None: QoE is not measured."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    artifact_rules: bool = False
    """The VTC artifact's engine and accounts instead (Tables 2 to 6 of the VTC paper)."""

    def named(self) -> Setup:
        """The setup with the policies as the registries spell them; raises `SetupError`."""
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise SetupError(f"replicas is {self.replicas}, must be from 1 to {MAX_REPLICAS}")
        linear = isinstance(self.cost, LinearCost)
        for name in ("input_weight", "output_weight", "kv_time") if linear else ():
            if not 0 <= getattr(self.cost, name) < float("inf"):
                weight = getattr(self.cost, name)
                raise SetupError(f"{name} is {weight}, must be at least 0 and finite")
        if not 0 <= self.warmup_s < float("inf"):
            raise SetupError(f"warmup_s is {self.warmup_s}, must be at least 0 and finite")
        return replace(
            self,
            replica_policy=_spelled("replica policy", self.replica_policy, REPLICA_POLICIES),
            fleet_policy=_spelled("fleet policy", self.fleet_policy, FLEET_POLICIES),
            order=_spelled("order", self.order, ORDERS),
        )

    def fleet(self) -> FleetConfig:
        """A fresh fleet's configuration; raises `SetupError`."""
        setup = self.named()
        engine = setup.engine
        if setup.artifact_rules:
            engine = artifact_config(kv_tokens=engine.kv_tokens)
        if setup.expectation is not None:
            engine = replace(engine, token_times=True)
        try:
            made = policies(printed=setup.printed, artifact=setup.artifact_rules)
            rules = LaboratoryConfig(
                cost=setup.cost,
                deficits=DeficitRules(quantum=setup.quantum),
                warmup_s=setup.warmup_s,
                order=ORDERS[setup.order],
                requests_per_minute=setup.requests_per_minute,
                preemption_lead=setup.preemption_lead,
                turn_tokens=setup.turn_tokens,
                prediction_error=setup.prediction_error,
                seed=setup.seed,
                expectation=setup.expectation or Expectation(),
                profile=setup.profile,
                kv_tokens=engine.kv_tokens,
            )
            made[setup.replica_policy](replace(rules, counters=CentralCounters()))  # faults now
            return FleetConfig(
                replicas=setup.replicas,
                engine=engine,
                profile=setup.profile,
                replica_policy=lambda: made[setup.replica_policy](rules),
                fleet_policy=FLEET_POLICIES[setup.fleet_policy](
                    LaboratoryFleetConfig(
                        cost=setup.cost,
                        worker_quantum=setup.worker_quantum,
                        profile=setup.profile,
                        kv_tokens=engine.kv_tokens,
                        deficits=rules.deficits,
                    )
                ),
                cost=setup.cost,
                slowdowns=setup.slowdowns,
                expectation=setup.expectation,
            )
        except ValueError as error:
            raise SetupError(str(error)) from error


def simulate(setup: Setup, workload: Workload) -> tuple[list[Record], float]:
    """(records in the order of their ends, seconds until the last one); raises `SetupError`."""
    records: list[Record] = []
    makespan_s = Fleet(setup.fleet(), records.append).run(workload)
    return records, makespan_s


def find_profile(name: str) -> CostProfile:
    """A profile by its name, or from a JSON file; raises `SetupError`."""
    if name in PROFILES:
        return PROFILES[name]
    try:
        return decode_profile(Path(name).read_bytes())
    except ProfileError as error:
        raise SetupError(f"{name}: {error}") from error
    except OSError:
        known = ", ".join(PROFILES)
        raise SetupError(
            f"profile {name!r} is neither one of {known} nor a readable file"
        ) from None


def engine_config(
    *,
    kv_tokens: int | None = None,
    admission: str = "history",
    max_running: int | None = None,
    share_in_batch: bool = True,
    isolation: float | None = ISOLATION,
    adapters_per_batch: int | None = None,
) -> EngineConfig:
    """An engine with the plug-in, with the given replacements; raises `SetupError`."""
    rules = {rule.value: rule for rule in AdmissionRule}
    rule = rules[_spelled("admission", admission, rules)]
    try:
        config = EngineConfig(
            kv_tokens=kv_tokens,
            admission=rule,
            share_in_batch=share_in_batch,
            isolation=isolation,
            adapters_per_batch=adapters_per_batch,
        )
        return config if max_running is None else replace(config, max_running=max_running)
    except ValueError as error:
        raise SetupError(str(error)) from error


def _spelled(what: str, name: str, known: Iterable[str]) -> str:
    """`name` as `known` spells it: `round-robin` finds `RoundRobin`."""
    spellings = {_plain(candidate): candidate for candidate in known}
    try:
        return spellings[_plain(name)]
    except KeyError:
        there_are = ", ".join(spellings.values())
        raise SetupError(f"{what} {name!r} is not one of {there_are}") from None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
