"""Gateways as services and as themselves see them: who is behind which, the verdicts, and the status. Pure.

A service is behind a gateway once the gateway's routers serve it, which the gateway's status says. From then on the service needs no
routers of its own; it keeps those that it has until a router of the gateway is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.gateway import Member, Members
from evenkeel_contract.names import gateway_base, router_name
from evenkeel_contract.spec.gateway import (
    FairInferenceGateway,
    GatewayCondition,
    GatewayStatus,
    ServedModel,
)
from evenkeel_contract.spec.resources import ConditionStatus, RouterStatus
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.status import (
    Verdict,
    conditions,
    cut,
    generation_of,
    kstatus,
    pods_verdict,
    spec_verdict,
)
from evenkeel_operator.core.workload import Workload

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


@dataclass(frozen=True, slots=True)
class Behind:
    """The gateway that serves a service."""

    gateway: str
    ready: bool
    """Whether a router of the gateway is ready."""
    url: str
    """Where clients send requests; empty if it is not known yet."""

    @property
    def base(self) -> str:
        """What names and labels of the gateway's objects begin with."""
        return gateway_base(self.gateway)


def behind_of(service: str, gateways: Iterable[Object]) -> Behind | None:
    """The gateway whose routers serve `service`; None if there is none. `gateways`: those of the namespace."""
    for gateway in oldest_first(gateways):
        status = gateway.get("status") or {}
        served = (model.get("service") for model in status.get("models") or ())
        if service in served and "deletionTimestamp" not in gateway["metadata"]:
            ready = int((status.get("router") or {}).get("readyReplicas") or 0) > 0
            return Behind(str(gateway["metadata"]["name"]), ready, str(status.get("url") or ""))
    return None


def oldest_first(gateways: Iterable[Object]) -> list[Object]:
    """Gateways by age, then by name."""
    return sorted(
        gateways,
        key=lambda one: (
            str(one["metadata"].get("creationTimestamp", "")),
            str(one["metadata"]["name"]),
        ),
    )


def taken(own: Object, members: Members, gateways: Iterable[Object]) -> Mapping[str, str]:
    """Services of a gateway that another one serves already → that gateway."""
    names = {member.service.metadata.name for member in members.found}
    own_name = str(own["metadata"]["name"])
    found = {}
    for name in sorted(names):
        behind = behind_of(name, gateways)
        if behind is not None and behind.gateway != own_name:
            found[name] = behind.gateway
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFindings:
    """The results of a pass over a gateway."""

    faults: tuple[Fault, ...]
    members: Sequence[Member] = ()
    """The services that the routers serve."""
    lacking: tuple[Note, ...] = ()
    """Why models of the spec are not served."""
    routers: Workload
    notes: tuple[Note, ...] = ()


def lacking_models(
    members: Members, *, elsewhere: Mapping[str, str], starting: Iterable[str]
) -> tuple[Note, ...]:
    """Why models are not served. `elsewhere`: service → the gateway that has it; `starting`: services without a configuration yet."""
    notes = [
        Note(
            reasons.SERVICE_MISSING,
            f"spec.models[{index}].serviceRef: the namespace has no FairInferenceService {name}.",
        )
        for index, name in members.missing
    ]
    notes += [
        Note(
            reasons.MODEL_CLASH,
            f"Services {other} and {service} both have the model {name}; give one of them another name.",
        )
        for service, name, other in members.clashing
    ]
    notes += [
        Note(reasons.SERVICE_TAKEN, f"Gateway {gateway} serves service {service} already.")
        for service, gateway in elsewhere.items()
    ]
    notes += [
        Note(reasons.STARTING, f"Service {service} has no valid spec in use yet.")
        for service in starting
    ]
    return tuple(notes)


def gateway_verdicts(found: GatewayFindings) -> tuple[Verdict, ...]:
    """All conditions."""
    return (
        _ready(found),
        _models(found),
        pods_verdict(GatewayCondition.ROUTER_READY, found.routers, "routers"),
        _degraded(found),
        spec_verdict(found.faults),
        *_kstatus(found),
    )


_BY_A_PERSON: Final = frozenset({reasons.MODEL_CLASH, reasons.SERVICE_TAKEN})
"""Why a model is not served until a spec changes. A service that is missing or starts may come."""


def _kstatus(found: GatewayFindings) -> tuple[Verdict, ...]:
    """What tools that follow kstatus wait for."""
    stuck = found.routers.stuck
    stalled: Note | Verdict | None = next(
        (note for note in found.lacking if note.reason in _BY_A_PERSON), None
    )
    if found.faults:
        stalled = spec_verdict(found.faults)
    elif stuck is not None:
        message = cut(f"The rollout of routers is stuck: {stuck.message}")
        stalled = Note(reasons.ROLLOUT_STUCK, message)
    moving: Note | None = next(iter(found.lacking), None)
    if moving is None and not found.routers.settled:
        moving = Note(reasons.ROLLING_OUT, "The rollout of routers is in progress.")
    return kstatus(stalled, moving)


def _ready(found: GatewayFindings) -> Verdict:
    ready = GatewayCondition.READY
    if found.faults and not found.routers.exists:
        message = "The spec is invalid, and no valid spec was applied before."
        return Verdict(ready, FALSE, reasons.INVALID, message)
    if not found.members and not found.faults:
        return Verdict(ready, FALSE, reasons.NO_MODELS, "No model of the spec can be served.")
    if found.routers.ready == 0:
        message = "No router is ready; RouterReady has the cause."
        return Verdict(ready, FALSE, reasons.ROUTER_NOT_READY, message)
    return Verdict(ready, TRUE, reasons.SERVING, "At least one router serves at least one model.")


def _models(found: GatewayFindings) -> Verdict:
    condition = GatewayCondition.MODELS_READY
    if found.lacking:
        message = cut(" ".join(note.message for note in found.lacking))
        return Verdict(condition, FALSE, found.lacking[0].reason, message)
    message = f"The routers serve {len(found.members)} models."
    return Verdict(condition, TRUE, reasons.ALL_READY, message)


def _degraded(found: GatewayFindings) -> Verdict:
    condition = GatewayCondition.DEGRADED
    notes = list(found.notes)
    if found.faults:
        notes.insert(
            0, Note(reasons.OLD_SPEC_RUNS, "The spec is invalid; the last valid one is in use.")
        )
    if not notes:
        return Verdict(condition, FALSE, reasons.HEALTHY, "All objects match the spec.")
    return Verdict(condition, TRUE, notes[0].reason, cut(" ".join(n.message for n in notes)))


def gateway_status(
    raw: Object,
    found: GatewayFindings,
    *,
    running: FairInferenceGateway | None,
    host_taken: bool,
    now: str,
) -> dict[str, Any]:
    """The status of the FairInferenceGateway `raw`. With an invalid spec, address and models stay as they were."""
    before = raw.get("status") or {}
    status = GatewayStatus(
        observed_generation=generation_of(raw),
        url=None if running is None else url_of_gateway(running, host_taken=host_taken),
        hosts=() if running is None or host_taken else running.spec.exposure.hosts,
        router=RouterStatus(ready_replicas=found.routers.ready),
        models=tuple(
            ServedModel(service=member.service.metadata.name, name=member.offered[0])
            for member in found.members
        ),
        conditions=conditions(gateway_verdicts(found), raw, now=now),
    )
    plain: dict[str, Any] = to_plain(status)
    if running is None:
        plain |= {name: before[name] for name in ("url", "hosts", "models") if name in before}
    return plain


def url_of_gateway(gateway: FairInferenceGateway, *, host_taken: bool) -> str:
    """Where clients send requests: from outside where it is exposed, else from inside the cluster."""
    exposure = gateway.spec.exposure
    if exposure.hosts and not host_taken:
        scheme = "https" if exposure.ingress is not None and exposure.ingress.tls else "http"
        return f"{scheme}://{exposure.hosts[0]}"
    base = gateway_base(gateway.metadata.name)
    return f"http://{router_name(base)}.{gateway.metadata.namespace}.svc"
