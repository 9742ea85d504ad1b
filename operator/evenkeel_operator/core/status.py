"""`status` of a FairInferenceService as plain data: conditions with a reason and a message (design §3).

Messages contain no times and no counts that change at rest, since every change of the status is a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import msgspec
from evenkeel_contract.decode import fields_of, salvage, to_plain
from evenkeel_contract.names import COMPONENT_LABEL, ENGINE_COMPONENT, SERVICE_LABEL, router_name
from evenkeel_contract.spec.gateway import GatewayCondition, GatewayStatus
from evenkeel_contract.spec.resources import (
    Condition,
    ConditionStatus,
    FairInferenceService,
    RouterStatus,
    ScalingStatus,
    ServiceCondition,
    ServiceStatus,
    TenantCondition,
    TenantStatus,
)
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.scaling import Decision, Scaling
from evenkeel_operator.core.workload import Workload

MAX_MESSAGE = 4096  # characters; the API server allows 32768 bytes

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its time."""

    type: ServiceCondition | TenantCondition | GatewayCondition
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results of a pass."""

    faults: tuple[Fault, ...]
    runs: bool
    """Whether a valid spec is in use: the newest one, or the last valid one."""
    engines: Workload
    routers: Workload
    scaling: Scaling
    notes: tuple[Note, ...] = ()
    blocked: Note | None = None
    """Why a rollout is stuck although no pod has a failure."""
    wakes: bool = False
    """Whether the next request starts an engine when there are none."""
    inactive: tuple[str, ...] = ()
    """Why engines run without the policy of their plug-in."""
    model: Note | None = None
    """How far the volume with the model's files is; None: no Job fills it."""
    fill: float = 0.0
    """The largest part of a limit of the routers' configuration that tenants use."""

    @property
    def awaits_model(self) -> bool:
        """Whether a Job still downloads the model of the newest spec."""
        return self.model is not None and self.model.reason != reasons.CACHED

    @property
    def workloads(self) -> tuple[tuple[str, Workload], ...]:
        """Both components, with the word for their pods."""
        return ("engines", self.engines), ("routers", self.routers)


def verdicts(found: Findings) -> tuple[Verdict, ...]:
    """All conditions, in the order in which they are read."""
    return (
        _ready(found),
        _engines_ready(found),
        pods_verdict(ServiceCondition.ROUTER_READY, found.routers, "routers"),
        _scaling(found),
        _progressing(found),
        _degraded(found),
        _inactive(found),
        *_model(found),
        spec_verdict(found.faults),
        *_kstatus(found),
    )


def _ready(found: Findings) -> Verdict:
    ready = ServiceCondition.READY
    if not found.runs:
        message = "The spec is invalid, and no valid spec was applied before."
        return Verdict(ready, FALSE, reasons.INVALID, message)
    if found.routers.ready == 0:
        return Verdict(ready, FALSE, reasons.ROUTER_NOT_READY, _why(found.routers, "routers"))
    if found.engines.ready == 0 and found.wakes:
        return _at_zero(found.engines)
    if found.engines.ready == 0:
        reason = reasons.ENGINES_NOT_READY if found.engines.wanted else reasons.NO_REPLICAS
        return Verdict(ready, FALSE, reason, _why(found.engines, "engines"))
    return Verdict(ready, TRUE, reasons.SERVING, "At least one router and one engine are ready.")


def _at_zero(engines: Workload) -> Verdict:
    """`minReplicas: 0` allows 0 engines; an engine that fails to start is still a failure."""
    ready = ServiceCondition.READY
    if engines.wanted == 0:
        return Verdict(ready, TRUE, reasons.IDLE, "0 engines run. The next request starts one.")
    if engines.failure is None:
        message = "Requests wait for the first engine to start."
        return Verdict(ready, FALSE, reasons.ACTIVATING, message)
    return Verdict(ready, FALSE, reasons.ENGINES_NOT_READY, _why(engines, "engines"))


def _engines_ready(found: Findings) -> Verdict:
    if found.awaits_model and not found.engines.exists:
        message = (
            "Engines start when the volume has all files of the model (condition ModelCached)."
        )
        return Verdict(ServiceCondition.ENGINES_READY, FALSE, reasons.MODEL_NOT_CACHED, message)
    return pods_verdict(ServiceCondition.ENGINES_READY, found.engines, "engines", wakes=found.wakes)


def _model(found: Findings) -> Iterator[Verdict]:
    """ModelCached, only where a Job fills a volume."""
    if found.model is not None:
        status = FALSE if found.awaits_model else TRUE
        message = cut(found.model.message)
        yield Verdict(ServiceCondition.MODEL_CACHED, status, found.model.reason, message)


def pods_verdict(
    condition: ServiceCondition | GatewayCondition,
    load: Workload,
    what: str,
    *,
    wakes: bool = False,
) -> Verdict:
    """The condition of a component's pods."""
    if load.wanted == 0 and wakes:
        message = f"0 {what} are desired until a request arrives."
        return Verdict(condition, TRUE, reasons.IDLE, message)
    if load.wanted == 0:
        return Verdict(condition, FALSE, reasons.NO_REPLICAS, _why(load, what))
    if load.is_whole:
        message = f"{load.wanted} of {load.wanted} {what} are ready."
        if load.stuck is not None:  # the ready ones are of the previous revision
            message = f"{message} New ones are not: {load.stuck.message}"
        return Verdict(condition, TRUE, reasons.ALL_READY, cut(message))
    if not load.exists:
        return Verdict(condition, FALSE, reasons.NOT_CREATED, f"The {what} do not exist yet.")
    reason = load.failure.reason if load.failure else reasons.STARTING
    return Verdict(condition, FALSE, reason, _why(load, what))


def _why(load: Workload, what: str) -> str:
    if load.wanted == 0:
        return f"0 {what}: {load.failure.message}" if load.failure else f"0 {what} are desired."
    count = f"{load.ready} of {load.wanted} {what} are ready"
    if load.failure:
        return f"{count}: {load.failure.message}"
    return f"{count}: {load.starting}." if load.starting else f"{count}."


def _scaling(found: Findings) -> Verdict:
    decision, note = found.scaling.decision, found.scaling.note
    status = TRUE if decision is not None and decision.active else FALSE
    return Verdict(ServiceCondition.SCALING_ACTIVE, status, note.reason, note.message)


def _progressing(found: Findings) -> Verdict:
    condition = ServiceCondition.PROGRESSING
    moving = [what for what, load in found.workloads if found.runs and not load.settled]
    if found.awaits_model and found.engines.settled:
        message = "Engines of the spec before serve until the volume has all files of the new model (condition ModelCached)."
        return Verdict(condition, TRUE, reasons.MODEL_NOT_CACHED, message)
    if not moving:
        message = "All desired pods exist and are up to date."
        return Verdict(condition, FALSE, reasons.STABLE, message)
    if found.blocked is not None:
        return Verdict(condition, FALSE, found.blocked.reason, found.blocked.message)
    for note in _stuck(found):
        return Verdict(condition, FALSE, note.reason, cut(note.message))
    for _, load in found.workloads:
        failure = load.failure
        # Old pods serve, and new ones fit on no node: a person must add capacity or allow fewer pods.
        if failure is not None and failure.reason == reasons.UNSCHEDULABLE and load.is_whole:
            message = f"No room to surge: {failure.message}. Add capacity, or allow rollout.maxUnavailable."
            return Verdict(condition, FALSE, reasons.ROLLOUT_BLOCKED, message)
    message = f"The rollout of {' and '.join(moving)} is in progress."
    return Verdict(condition, TRUE, reasons.ROLLING_OUT, message)


def _kstatus(found: Findings) -> tuple[Verdict, Verdict]:
    """What tools that follow kstatus (Flux, Helm, Argo CD) wait for. The service may answer by its last good spec all the time."""
    progress = _progressing(found)
    stalled = None
    if found.faults:
        stalled = spec_verdict(found.faults)
    elif progress.reason == reasons.ROLLOUT_STUCK:
        stalled = progress
    # A rollout without room continues by itself once there is room.
    return kstatus(stalled, None if progress.reason == reasons.STABLE else progress)


def kstatus(
    stalled: Note | Verdict | None, moving: Note | Verdict | None
) -> tuple[Verdict, Verdict]:
    """Reconciling and Stalled. `stalled`: why the newest spec does not come into use by itself; else `moving`: what is awaited."""
    condition = ServiceCondition.RECONCILING
    if moving is None or stalled is not None:
        reconciling = Verdict(condition, FALSE, reasons.STABLE, "No rollout is in progress.")
    else:
        reconciling = Verdict(condition, TRUE, moving.reason, moving.message)
    condition = ServiceCondition.STALLED
    if stalled is not None:
        return reconciling, Verdict(condition, TRUE, stalled.reason, stalled.message)
    message = "The newest spec is applied." if moving is None else "The rollout can continue."
    return reconciling, Verdict(condition, FALSE, reasons.STABLE, message)


def _stuck(found: Findings) -> Iterator[Note]:
    for what, load in found.workloads:
        if found.runs and load.stuck is not None:
            message = f"The rollout of {what} is stuck: {load.stuck.message}"
            yield Note(reasons.ROLLOUT_STUCK, message)


def _degraded(found: Findings) -> Verdict:
    condition = ServiceCondition.DEGRADED
    notes = list(found.notes)
    if found.faults and found.runs:
        notes.insert(
            0, Note(reasons.OLD_SPEC_RUNS, "The spec is invalid; the last valid one is in use.")
        )
    notes += _stuck(found)
    for what, load in found.workloads:
        if load.lacks_pods and (load.ready or load.stuck is None):
            notes.append(Note(reasons.FEWER_REPLICAS, _why(load, what)))
    if not notes:
        return Verdict(condition, FALSE, reasons.HEALTHY, "All objects match the spec.")
    message = " ".join(_sentence(note.message) for note in notes)
    return Verdict(condition, TRUE, notes[0].reason, cut(message))


_GATED: Final = "Engines schedule in their own order, because they do not fit the plug-in, and routers order their queues: "


def _inactive(found: Findings) -> Verdict:
    condition = ServiceCondition.PLUGIN_INACTIVE
    if not found.inactive:
        message = "No engine reports that its replica policy is inactive."
        return Verdict(condition, FALSE, reasons.POLICY_ACTIVE, message)
    message = cut(_GATED + "; ".join(found.inactive))
    return Verdict(condition, TRUE, reasons.MISMATCH, message)


def inactive_before(raw: Object) -> tuple[str, ...]:
    """What the status of the object says of it: what routers answered last."""
    for known in _known_conditions(raw):
        if known.type == ServiceCondition.PLUGIN_INACTIVE.value and known.status is TRUE:
            return tuple(known.message.removeprefix(_GATED).split("; "))
    return ()


def spec_verdict(faults: Iterable[Fault]) -> Verdict:
    """SpecValid, with every fault and its path."""
    listed = [str(fault) for fault in faults]
    if not listed:
        message = "The spec is valid."
        return Verdict(ServiceCondition.SPEC_VALID, TRUE, reasons.VALID, message)
    message = cut("; ".join(listed))
    return Verdict(ServiceCondition.SPEC_VALID, FALSE, reasons.INVALID, message)


def conditions(found: Iterable[Verdict], raw: Object, *, now: str) -> tuple[Condition, ...]:
    """Each with the time at which its status changed last."""
    before = {condition.type: condition for condition in _known_conditions(raw)}
    generation = generation_of(raw)

    def condition(verdict: Verdict) -> Condition:
        old = before.get(verdict.type.value)
        unchanged = old is not None and old.status is verdict.status
        return Condition(
            type=verdict.type.value,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            last_transition_time=old.last_transition_time if old and unchanged else now,
            observed_generation=generation,
        )

    return tuple(condition(verdict) for verdict in found)


def generation_of(raw: Object) -> int:
    """The generation of the spec."""
    return int(raw["metadata"].get("generation", 0))


def _sentence(message: str) -> str:
    """What a server or a scheduler reported may lack its full stop."""
    return message if message.endswith((".", "…")) else f"{message}."


def cut(message: str, most: int = MAX_MESSAGE) -> str:
    """The message, cut to `most` characters."""
    return message if len(message) <= most else message[: most - 1] + "…"


def service_status(
    raw: Object,
    found: Findings,
    *,
    running: FairInferenceService | None,
    image: str | None,
    available_image: str | None,
    host_taken: bool,
    gateway_url: str | None = None,
    now: str,
) -> dict[str, Any]:
    """The status of the FairInferenceService `raw`. `host_taken`: requests to its host reach another service. `gateway_url`: address
    of the gateway that it is behind."""
    decision = found.scaling.decision
    status = ServiceStatus(
        observed_generation=generation_of(raw),
        replicas=found.engines.pods,
        ready_replicas=found.engines.ready,
        selector=engine_selector(str(raw["metadata"]["name"]), running),
        url=_url(running, gateway_url, host_taken=host_taken),
        hosts=()
        if running is None or host_taken or gateway_url is not None
        else running.spec.exposure.hosts,
        image=image,
        available_image=available_image,
        router=RouterStatus(ready_replicas=found.routers.ready),
        scaling=None if decision is None else _scaling_status(decision, raw, now=now),
        conditions=conditions(verdicts(found), raw, now=now),
    )
    plain: dict[str, Any] = to_plain(status)
    return plain


def failed_status(raw: Object, why: Note, *, now: str) -> dict[str, Any]:
    """The status of a resource whose pass failed: what is known already, and the reason."""
    is_tenant = raw["kind"] == "InferenceTenant"
    verdict = (
        Verdict(TenantCondition.READY, ConditionStatus.UNKNOWN, why.reason, _failed(why))
        if is_tenant
        else Verdict(ServiceCondition.DEGRADED, TRUE, why.reason, _failed(why))
    )
    (found,) = conditions((verdict,), raw, now=now)
    kinds: Mapping[str, type[Enum]] = {
        "InferenceTenant": TenantCondition,
        "FairInferenceGateway": GatewayCondition,
    }
    types = {one.value for one in kinds.get(raw["kind"], ServiceCondition)}
    present = raw.get("status") or {}
    before = [one for one in _known_conditions(raw) if one.type in types]
    kept = [found if one.type == found.type else one for one in before]
    listed = kept if found in kept else [*kept, found]
    owned = {field: present[field] for field in _OWNED if field in present}
    return {**owned, "conditions": [to_plain(one) for one in listed]}


def _failed(why: Note) -> str:
    return cut(f"A pass over the resource failed and is repeated: {why.message}")


def _scaling_status(decision: Decision, raw: Object, *, now: str) -> ScalingStatus:
    """The status keeps the time of the change, as conditions do. The first number is no change."""
    plain = (raw.get("status") or {}).get("scaling")
    before, faults = salvage(ScalingStatus, plain) if plain else (None, ())
    if before is None or faults:
        changed = None
    else:
        changed = before.last_scale_time if before.desired == decision.replicas else now
    return ScalingStatus(desired=decision.replicas, reason=decision.reason, last_scale_time=changed)


def _known_conditions(raw: Object) -> tuple[Condition, ...]:
    """The conditions of the object; one that cannot be read counts as missing."""
    listed = (raw.get("status") or {}).get("conditions") or ()
    found = (_read_condition(msgspec.json.encode(condition)) for condition in listed)
    return tuple(condition for condition in found if condition is not None)


@lru_cache(maxsize=512)
def _read_condition(content: bytes) -> Condition | None:
    """A condition in JSON; None if it cannot be read. Many resources have equal ones, and each pass reads those of the last."""
    condition, faults = salvage(Condition, msgspec.json.decode(content))
    return None if faults else condition


def differs(status: Mapping[str, Any], raw: Object) -> bool:
    """Whether the status of the object differs, in the fields that `status` sets."""
    present = raw.get("status") or {}
    owned = {field: present[field] for field in _OWNED if field in present}
    ours = {condition["type"] for condition in status["conditions"]}
    # Others may add conditions of their own; a list of Kubernetes' kind keeps its order.
    listed = present.get("conditions") or ()
    owned["conditions"] = [c for c in listed if isinstance(c, dict) and c.get("type") in ours]
    return owned != status


_OWNED: Final = {
    name for kind in (ServiceStatus, TenantStatus, GatewayStatus) for name in fields_of(kind)
} - {"fairness"}


def engine_selector(service: str, running: FairInferenceService | None) -> str:
    """The engines' pods, as text: what an HPA reads."""
    external = None if running is None else running.spec.engine.pods_of_others
    own = {SERVICE_LABEL: service, COMPONENT_LABEL: ENGINE_COMPONENT}
    labels = own if external is None else external.labels
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _url(
    running: FairInferenceService | None, gateway_url: str | None, *, host_taken: bool
) -> str | None:
    if gateway_url is not None:
        return gateway_url or None
    return None if running is None else url_of(running, host_taken=host_taken)


def url_of(service: FairInferenceService, *, host_taken: bool) -> str:
    """Where clients send requests: from outside where it is exposed, else from inside the cluster."""
    exposure = service.spec.exposure
    if exposure.hosts and not host_taken:
        scheme = "https" if exposure.ingress is not None and exposure.ingress.tls else "http"
        return f"{scheme}://{exposure.hosts[0]}"
    return f"http://{router_name(service.metadata.name)}.{service.metadata.namespace}.svc"
