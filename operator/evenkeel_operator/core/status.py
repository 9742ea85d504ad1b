"""`status` of both resources as plain data, and whether it differs from the object's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.decode import salvage, to_plain
from evenkeel_contract.faults import Fault
from evenkeel_contract.names import COMPONENT_LABEL, ENGINE_COMPONENT, SERVICE_LABEL, router_name
from evenkeel_contract.render import serves
from evenkeel_contract.spec import (
    Condition,
    ConditionStatus,
    FairInferenceService,
    InferenceTenant,
    ServiceCondition,
    ServiceStatus,
    TenantCondition,
    TenantStatus,
)
from evenkeel_contract.spec.status import RouterStatus, ScalingStatus, ServedBy

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Findings, dated, spec_verdict, verdicts
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.scaler import Decision
from evenkeel_operator.core.tenants import Roster


def service_status(
    raw: Object,
    found: Findings,
    *,
    running: FairInferenceService | None,
    image: str | None,
    available_image: str | None,
    decision: Decision | None = None,
    now: str,
) -> dict[str, Any]:
    """The status of the FairInferenceService `raw`."""
    generation = int(raw["metadata"].get("generation", 0))
    before = conditions_of(raw)
    status = ServiceStatus(
        observed_generation=generation,
        replicas=found.engines.pods,
        ready_replicas=found.engines.ready,
        selector=engine_selector(str(raw["metadata"]["name"])),
        url=None if running is None else url_of(running),
        image=image,
        available_image=available_image,
        router=RouterStatus(ready_replicas=found.routers.ready),
        scaling=None if decision is None else _scaling_status(decision, raw, now=now),
        conditions=tuple(
            dated(
                (verdict.type.value, verdict.status, verdict.reason, verdict.message),
                before,
                generation=generation,
                now=now,
            )
            for verdict in verdicts(found)
        ),
    )
    plain: dict[str, Any] = to_plain(status)
    return plain


def _scaling_status(decision: Decision, raw: Object, *, now: str) -> ScalingStatus:
    """The status keeps the time of the change, as conditions do. The first number is no change."""
    plain = (raw.get("status") or {}).get("scaling")
    before, faults = salvage(ScalingStatus, plain) if plain else (None, ())
    if before is None or faults:
        changed = None
    else:
        changed = before.last_scale_time if before.desired == decision.replicas else now
    return ScalingStatus(desired=decision.replicas, reason=decision.reason, last_scale_time=changed)


def tenant_status(
    raw: Object,
    *,
    tenant: InferenceTenant | None,
    faults: Sequence[Fault],
    roster: Roster,
    services: Iterable[FairInferenceService],
    now: str,
) -> dict[str, Any]:
    """The status of the InferenceTenant `raw`."""
    generation = int(raw["metadata"].get("generation", 0))
    before = conditions_of(raw)
    valid = spec_verdict(faults)
    found = (
        _keys_verdict(str(raw["metadata"]["name"]), faults, roster),
        (TenantCondition.SPEC_VALID.value, valid.status, valid.reason, valid.message),
    )
    serving = (
        () if tenant is None else (item.metadata.name for item in services if serves(item, tenant))
    )
    status = TenantStatus(
        observed_generation=generation,
        conditions=tuple(dated(v, before, generation=generation, now=now) for v in found),
        services=tuple(ServedBy(name=name) for name in sorted(serving)),
    )
    plain: dict[str, Any] = to_plain(status)
    return plain


def _keys_verdict(
    name: str, faults: Sequence[Fault], roster: Roster
) -> tuple[str, ConditionStatus, str, str]:
    ready = TenantCondition.READY.value
    if faults:
        message = "The spec is invalid; routers use the last valid one."
        return ready, ConditionStatus.FALSE, reasons.INVALID, message
    missing = sorted(key for tenant, key in roster.missing if tenant == name)
    if missing:
        message = f"No Secret has the keys {', '.join(missing)}; they are rejected."
        return ready, ConditionStatus.FALSE, reasons.KEYS_MISSING, message
    clashing = sorted(key for tenant, key in roster.clashing if tenant == name)
    if clashing:
        message = f"The keys {', '.join(clashing)} are used more than once; they are rejected."
        return ready, ConditionStatus.FALSE, reasons.KEYS_CLASH, message
    return ready, ConditionStatus.TRUE, reasons.KEYS_KNOWN, "Routers accept all keys."


def conditions_of(raw: Object) -> tuple[Condition, ...]:
    """The conditions of the object; one that cannot be read counts as missing."""
    listed = (raw.get("status") or {}).get("conditions") or ()
    found = (salvage(Condition, condition) for condition in listed)
    return tuple(condition for condition, faults in found if not faults)


def differs(status: Mapping[str, Any], raw: Object) -> bool:
    """Whether the status of the object differs, in the fields that `status` sets."""
    present = raw.get("status") or {}
    owned = {field: present[field] for field in _OWNED if field in present}
    ours = {condition["type"] for condition in status["conditions"]}
    # Others may add conditions of their own; a list of Kubernetes' kind keeps its order.
    listed = present.get("conditions") or ()
    owned["conditions"] = [c for c in listed if isinstance(c, dict) and c.get("type") in ours]
    return owned != status


_OWNED = (
    "observedGeneration",
    "replicas",
    "readyReplicas",
    "selector",
    "url",
    "image",
    "availableImage",
    "router",
    "scaling",
    "conditions",
    "services",
)


def engine_selector(service: str) -> str:
    """The engines' pods, as text: what an HPA reads."""
    return f"{SERVICE_LABEL}={service},{COMPONENT_LABEL}={ENGINE_COMPONENT}"


def url_of(service: FairInferenceService) -> str:
    """Where clients send requests: from outside where it is exposed, else from inside the cluster."""
    exposure = service.spec.exposure
    if exposure.ingress is not None:
        scheme = "https" if exposure.ingress.tls else "http"
        return f"{scheme}://{exposure.ingress.host}"
    if exposure.http_route is not None and exposure.http_route.hostnames:
        return f"http://{exposure.http_route.hostnames[0]}"
    return f"http://{router_name(service.metadata.name)}.{service.metadata.namespace}.svc"


@dataclass(frozen=True, slots=True)
class EventText:
    """One event."""

    reason: str
    message: str
    bad: bool


# Condition → its bad status. The other conditions follow from these.
_REPORTED: Final = {
    ServiceCondition.SPEC_VALID.value: "False",
    ServiceCondition.READY.value: "False",
    ServiceCondition.DEGRADED.value: "True",
}


def events_for(raw: Object, status: Mapping[str, Any]) -> Iterator[EventText]:
    """Conditions whose status or reason differs from that of `raw`, and a changed number of replicas.

    A new object that is not ready yet, or not degraded, needs no event.
    """
    yield from _scaled((raw.get("status") or {}).get("scaling"), status.get("scaling"))
    before = {item["type"]: item for item in (raw.get("status") or {}).get("conditions") or ()}
    for condition in status["conditions"]:
        if condition["type"] not in _REPORTED:
            continue
        bad = (
            condition["status"] == _REPORTED[condition["type"]]
            and condition["reason"] != reasons.ACTIVATING  # normal with `minReplicas: 0`
        )
        old = before.get(condition["type"])
        if old is None and (not bad or condition["type"] == ServiceCondition.READY.value):
            continue
        if old is None or (old.get("status"), _reason(old)) != (
            condition["status"],
            condition["reason"],
        ):
            yield EventText(condition["reason"], condition["message"], bad)


def _reason(condition: Mapping[str, Any]) -> str:
    reason = str(condition.get("reason", ""))
    return reasons.RENAMED.get(reason, reason)


def _scaled(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[EventText]:
    if before and now and before.get("desired") != now["desired"]:
        message = (
            f"Replicas changed from {before.get('desired')} to {now['desired']}: {now['reason']}."
        )
        yield EventText(reasons.SCALED, message, bad=False)
