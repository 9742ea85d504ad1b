"""The readiness gate `evenkeel.dev/InRotation`: a rollout waits until a router has the new replica in rotation.

Routers judge replicas by their containers' readiness, so the two do not wait for each other. A gate is opened once
and never closed. Closing it after a failed probe would cause writes at rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from evenkeel_contract.names import IN_ROTATION_GATE

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.engines import TIME_FORMAT, Engine
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.scale_down import Answers

PATIENCE: Final = timedelta(seconds=30)
"""How long a replica waits if no router answers. Without routers nothing is served, so waiting longer gains nothing."""
LONGEST_WAIT_S: Final = 30.0
OVERDUE: Final = timedelta(minutes=5)
"""Usually a router takes a replica one or two seconds after its containers are ready."""

IN_ROTATION: Final = "InRotation"
NO_ROUTER: Final = "NoRouter"


@dataclass(frozen=True, slots=True)
class Opening:
    """One gate to be opened."""

    engine: Engine
    reason: str
    message: str


def openings(engines: Iterable[Engine], answers: Answers, now: datetime) -> Iterator[Opening]:
    """The gates that may be opened now."""
    received = [answer for answer in answers if answer is not None]
    routable = {one.name for answer in received for one in answer.replicas if one.routable}
    for engine in engines:
        if engine.waits_since is None:
            continue
        if engine.name in routable:
            yield Opening(engine, IN_ROTATION, "A router sends requests to this replica.")
        elif not received and now - engine.waits_since >= PATIENCE:
            yield Opening(
                engine, NO_ROUTER, "No router answers, so the gate is opened without one."
            )


def look_again_s(engines: Iterable[Engine], now: datetime) -> float | None:
    """Seconds until routers are queried again about waiting replicas, often at first. None: no replica waits."""
    ages = [(now - engine.waits_since).total_seconds() for engine in engines if engine.waits_since]
    return min(LONGEST_WAIT_S, max(1.0, min(ages) / 10)) if ages else None


def overdue(engines: Iterable[Engine], now: datetime) -> Note | None:
    """Replicas that no router uses although their containers are ready; no other condition shows them."""
    names = [
        engine.name
        for engine in engines
        if engine.waits_since is not None and now - engine.waits_since >= OVERDUE
    ]
    if not names:
        return None
    message = f"No router sends requests to ready pods: {', '.join(names)}. GET /v1/state of a router has the reason."
    return Note(reasons.ROLLOUT_BLOCKED, message)


def condition(opening: Opening, now: datetime) -> dict[str, str]:
    """Of the pod."""
    return {
        "type": IN_ROTATION_GATE,
        "status": "True",
        "reason": opening.reason,
        "message": opening.message,
        "lastTransitionTime": now.strftime(TIME_FORMAT),
    }


GATES: Final = [{"conditionType": IN_ROTATION_GATE}]


def has_gate(deployment: Object) -> bool:
    """Whether its pods wait for routers."""
    pod: Mapping[str, Any] = deployment["spec"]["template"]["spec"]
    return any(
        gate.get("conditionType") == IN_ROTATION_GATE for gate in pod.get("readinessGates") or ()
    )


LAST_WORDS: Final = "FallbackToLogsOnError"
"""`terminationMessagePolicy`: the kubelet keeps the end of a failed container's log, for conditions. Added together with
the gate."""


def without_gate(manifest: dict[str, Any]) -> dict[str, Any]:
    """The Deployment as operators before 0.2 built it."""
    template = manifest["spec"]["template"]
    pod = {name: value for name, value in template["spec"].items() if name != "readinessGates"}
    pod["containers"] = [_silent(container) for container in pod["containers"]]
    return {**manifest, "spec": {**manifest["spec"], "template": {**template, "spec": pod}}}


def _silent(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in container.items()
        if (name, value) != ("terminationMessagePolicy", LAST_WORDS)
    }
