"""Which changes of conditions people should hear of, and of the number of replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.spec import ServiceCondition

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object


@dataclass(frozen=True, slots=True)
class News:
    """One event."""

    reason: str
    message: str
    bad: bool


# Condition → the status that is bad. The others follow from these, and would say everything twice.
_TOLD: Final = {
    ServiceCondition.SPEC_VALID.value: "False",
    ServiceCondition.READY.value: "False",
    ServiceCondition.DEGRADED.value: "True",
}


def worth_telling(raw: Object, status: Mapping[str, Any]) -> Iterator[News]:
    """What is new in `status`: a condition with another status or reason than `raw` has, or what the scaler wants.

    That something new is not ready yet, or not degraded, is no news.
    """
    yield from _scaled((raw.get("status") or {}).get("scaling"), status.get("scaling"))
    before = {item["type"]: item for item in (raw.get("status") or {}).get("conditions") or ()}
    for condition in status["conditions"]:
        if condition["type"] not in _TOLD:
            continue
        bad = (
            condition["status"] == _TOLD[condition["type"]]
            and condition["reason"] != reasons.ACTIVATING  # what was promised, several times a day
        )
        old = before.get(condition["type"])
        if old is None and (not bad or condition["type"] == ServiceCondition.READY.value):
            continue
        same = old is not None and all(old.get(f) == condition[f] for f in ("status", "reason"))
        if not same:
            yield News(condition["reason"], condition["message"], bad)


def _scaled(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[News]:
    if before and now and before.get("desired") != now["desired"]:
        message = f"from {before.get('desired')} to {now['desired']} replicas: {now['reason']}"
        yield News(reasons.SCALED, message, bad=False)
