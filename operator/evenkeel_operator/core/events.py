"""Events of Kubernetes: what changed from one status of a resource to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.spec.resources import ServiceCondition

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object


@dataclass(frozen=True, slots=True)
class EventText:
    """One event of Kubernetes, before it is sent."""

    reason: str
    message: str
    bad: bool


# Condition → its bad status. The other conditions follow from these.
_REPORTED: Final = {
    ServiceCondition.SPEC_VALID.value: "False",
    ServiceCondition.READY.value: "False",
    ServiceCondition.DEGRADED.value: "True",
    ServiceCondition.PLUGIN_INACTIVE.value: "True",
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
        if old is not None and _is_still_not_ready(old, condition):
            continue
        if old is None or (old.get("status"), _reason(old)) != (
            condition["status"],
            condition["reason"],
        ):
            yield EventText(condition["reason"], condition["message"], bad)


def _is_still_not_ready(old: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """A service that starts is not ready for one reason after another. `Degraded` reports its failures."""
    statuses = {old.get("status"), now["status"]}
    return now["type"] == ServiceCondition.READY.value and statuses == {"False"}


def _reason(condition: Mapping[str, Any]) -> str:
    reason = str(condition.get("reason", ""))
    return reasons.RENAMED.get(reason, reason)


def _scaled(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[EventText]:
    if before and now and before.get("desired") != now["desired"]:
        message = (
            f"Replicas changed from {before.get('desired')} to {now['desired']}: {now['reason']}."
        )
        yield EventText(reasons.SCALED, message, bad=False)
