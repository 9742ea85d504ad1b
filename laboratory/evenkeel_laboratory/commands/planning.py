"""What `evenkeel plan` computes: settings of a recording, the changed ones, and a replay with each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from operator import itemgetter
from pathlib import Path

import msgspec
from evenkeel_cli.yamlfile import read_documents
from evenkeel_contract.decode import salvage
from evenkeel_contract.enginesettings import ISOLATION
from evenkeel_contract.queueorder import (
    DEFAULT_ORDER,
    IsolationSetting,
    QuantumSetting,
    ReplicaPolicyName,
    RequestOrder,
)
from evenkeel_contract.routerconfig import FleetPolicyName, Positive, Weight
from evenkeel_contract.values import Fault, did_you_mean, show
from evenkeel_fairshare.cost import LinearCost
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import summarise
from evenkeel_simulator.traffic.workload import Client

from evenkeel_laboratory.experiments.engine_fit import Fit, fit_profile
from evenkeel_laboratory.experiments.recording import Recording, records_of
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile, simulate
from evenkeel_laboratory.experiments.whatif import (
    RunFigures,
    Served,
    Verdict,
    figures,
    of_records,
    of_requests,
    verdicts,
)

POOLS = (0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 4.0)
"""KV pools that the calibration tries, as multiples of `Fit.peak_kv_tokens`."""
FINER = (0.05, 0.025)
"""Relative steps around the best pool, tried next. A pool that is 4 % short costs a backlogged client a tenth of its wait."""


class ChangeError(ValueError):
    """An invalid file of changes; the message names file, field and remedy, one fault a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The settings that a plan changes; fields that are not set stay as recorded. Names are those of the resources."""

    weights: Mapping[str, Weight] = field(default_factory=dict)
    """`namespace/tenant`, `namespace/tenant/client`, or `namespace/tenant/*` → weight."""
    replicas: Positive | None = None
    replica_policy: ReplicaPolicyName | None = None
    fleet_policy: FleetPolicyName | None = None
    client_quantum: QuantumSetting | None = None
    worker_quantum: QuantumSetting | None = None
    isolation: IsolationSetting | None = None
    order: RequestOrder | None = None
    input_token_weight: Weight | None = None
    output_token_weight: Weight | None = None
    profile: str | None = None
    """Name of a cost profile, or a JSON file: another GPU or model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A fleet as it is replayed."""

    setup: Setup
    weights: Mapping[str, float]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    recorded: RunFigures
    today: RunFigures
    """The replay with the settings of the recording: its difference to `recorded` is the error of the model."""
    changed: RunFigures
    share_error: float
    """Largest difference of a client's share between `recorded` and `today`."""
    ttft_error: float
    """Difference of the median TTFT between `recorded` and `today`, as a part of the recorded one."""
    fit_answers: int | None
    """Answers from which the profile was fitted; None if it was named."""
    fit_error: float | None
    """Median error of the decode time of an answer, as a part of it."""
    profile: dict[str, float]
    not_replayed: dict[str, int]
    """Why requests are not replayed → how many: no replica served them."""
    verdicts: list[Verdict]


def read_change(path: Path, recording: Recording) -> Change:
    """Raises `ChangeError` and `YamlFault`."""
    documents = read_documents(path)
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        raise ChangeError(f"{path}: must hold one mapping, such as `weights: {{default/ads: 3}}`")
    change, faults = salvage(Change, documents[0].data)
    found = [*faults, *_unknown(change, recording)]
    if found:
        raise ChangeError(
            "\n".join(
                f"{path}:{documents[0].position_of(one.path).line}: {one.path or 'document'}: {one.message}"
                for one in found
            )
        )
    if change == Change():
        raise ChangeError(f"{path}: changes nothing; set weights, replicas or a policy")
    return change


def _unknown(change: Change, recording: Recording) -> Iterator[Fault]:
    clients = {one.client for one in recording.requests}
    tenants = {client.rsplit("/", 1)[0] for client in clients}
    known = clients | tenants | {f"{one}/*" for one in tenants} | set(recording.header.weights)
    for name in change.weights:
        if name not in known:
            hint = (
                did_you_mean(name, known) or f"; the recording has {', '.join(sorted(clients)[:5])}"
            )
            yield Fault(f"weights.{name}", f"{show(name)} is no client and no tenant{hint}")


def today(recording: Recording, profile: CostProfile, *, isolation: float | None) -> Settings:
    """The settings of the recording; raises `SetupError`."""
    given = recording.header.scheduling
    return Settings(
        setup=Setup(
            profile=profile,
            replicas=recording.replicas,
            replica_policy=given.get("replicaPolicy", "DLPM"),
            fleet_policy=given.get("fleetPolicy", "D2LPM"),
            quantum=given.get("clientQuantum"),
            worker_quantum=given.get("workerQuantum"),
            order=given.get("order", DEFAULT_ORDER.value),
            cost=LinearCost(
                float(given.get("inputTokenWeight", 1)),
                float(given.get("outputTokenWeight", 2)),
                float(given.get("kvTime", 0)),
            ),
            engine=engine_config(isolation=isolation),
        ).named(),
        weights={name: float(weight) for name, weight in recording.header.weights.items()},
    )


def changed(settings: Settings, change: Change) -> Settings:
    """Settings with the change; raises `SetupError`."""
    setup = settings.setup
    values: dict[str, object] = {}
    if change.replicas is not None:
        values["replicas"] = change.replicas
    if change.replica_policy is not None:
        values["replica_policy"] = change.replica_policy.value
    if change.fleet_policy is not None:
        values["fleet_policy"] = change.fleet_policy.value
    if change.client_quantum is not None:
        values["quantum"] = change.client_quantum.tokens
    if change.worker_quantum is not None:
        values["worker_quantum"] = change.worker_quantum.tokens
    if change.isolation is not None:
        values["engine"] = replace(setup.engine, isolation=change.isolation.share)
    if change.order is not None:
        values["order"] = change.order.value
    if change.profile is not None:
        values["profile"] = find_profile(change.profile)
    cost = _linear(setup)
    values["cost"] = LinearCost(
        float(change.input_token_weight or cost.input_weight),
        float(change.output_token_weight or cost.output_weight),
        cost.kv_time,
    )
    return Settings(
        setup=replace(setup, **values).named(),  # type: ignore[arg-type]
        weights={**settings.weights, **{name: float(w) for name, w in change.weights.items()}},
    )


def replayed(recording: Recording, settings: Settings) -> RunFigures:
    """The figures of a replay; raises `SetupError`."""
    workload = recording.workload(settings.weights)
    records, _ = simulate(settings.setup, workload)
    sentence = _sentence(records, recording, workload.clients)
    return _figures(recording, of_records(records), settings.setup, sentence)


def _linear(setup: Setup) -> LinearCost:
    """The cost of replicas; other costs are the laboratory's."""
    assert isinstance(setup.cost, LinearCost)
    return setup.cost


def recorded_figures(recording: Recording, setup: Setup) -> RunFigures:
    """What the fleet did."""
    found = of_requests(recording.requests)
    clients = recording.workload(
        {name: float(weight) for name, weight in recording.header.weights.items()}
    ).clients
    sentence = _sentence(records_of(recording), recording, clients)
    return _figures(recording, found, replace(setup, replicas=recording.replicas), sentence)


def _sentence(
    records: Sequence[Record], recording: Recording, clients: Mapping[str, Client]
) -> str:
    """The verdict on a run, until its last request ended."""
    ends = (one.finished_s or one.admitted_s or 0.0 for one in records)
    end_s = max([recording.end_s, *ends])
    return summarise(records, end_s, clients=clients).verdict


def _figures(recording: Recording, served: list[Served], setup: Setup, verdict: str) -> RunFigures:
    cost = _linear(setup)
    return figures(
        served,
        replicas=setup.replicas,
        window_s=recording.end_s,
        verdict=verdict,
        input_weight=cost.input_weight,
        output_weight=cost.output_weight,
    )


def calibrated(
    recording: Recording, *, isolation: float | None = ISOLATION
) -> tuple[Fit, Settings]:
    """The fitted profile, with the KV pool with which a replay is most like the recording. Raises `FitError`."""
    fit = fit_profile(recording.requests)

    def tried(pool: float) -> tuple[float, float, Settings]:
        profile = msgspec.structs.replace(fit.profile, kv_tokens=int(fit.peak_kv_tokens * pool))
        settings = today(recording, profile, isolation=isolation)
        wanted = recorded_figures(recording, settings.setup)
        return _distance(wanted, replayed(recording, settings)), pool, settings

    best = min(map(tried, POOLS), key=itemgetter(0))
    for part in FINER:
        around = map(tried, (best[1] - part, best[1] + part))
        best = min(best, *around, key=itemgetter(0))
    return fit, best[2]


def _distance(wanted: RunFigures, found: RunFigures) -> float:
    """Distance of the medians of TTFT, as a factor, over clients weighted by their service."""
    return sum(
        one.share * abs(log(max(found.clients[name].ttft_p50_s, 1e-4) / max(one.ttft_p50_s, 1e-4)))
        for name, one in wanted.clients.items()
        if name in found.clients
    )


def make_plan(recording: Recording, before: Settings, after: Settings, fit: Fit | None) -> Plan:
    """Replay the recording with both settings."""
    recorded = recorded_figures(recording, before.setup)
    today_figures = replayed(recording, before)
    changed_figures = replayed(recording, after)
    shares = [
        abs(one.share - today_figures.clients[name].share)
        for name, one in recorded.clients.items()
        if name in today_figures.clients
    ]
    return Plan(
        recorded=recorded,
        today=today_figures,
        changed=changed_figures,
        share_error=max(shares, default=0.0),
        ttft_error=today_figures.ttft_p50_s / max(recorded.ttft_p50_s, 1e-9) - 1.0,
        fit_answers=None if fit is None else fit.answers,
        fit_error=None if fit is None else fit.median_error,
        profile=msgspec.structs.asdict(before.setup.profile),
        not_replayed=dict(recording.failed),
        verdicts=verdicts(recorded, today_figures, changed_figures),
    )
