"""Engine pods with the fields that rotation reads. A pod that is being deleted or has ended is not an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from evenkeel_contract.names import (
    COMPONENT_LABEL,
    DRAIN_ANNOTATION,
    ENGINE_COMPONENT,
    IN_ROTATION_GATE,
)

from evenkeel_operator.core.objects import Object, annotations_of, labels_of
from evenkeel_operator.core.pod_failures import has_ended

COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet first deletes the pod with the lowest cost among equally ready pods; absent is 0."""
COST_OF_CANDIDATES: Final = "-1000000007"
"""Lower than any cost set by hand; identifies marks of the operator."""
MARK_PREFIX: Final = "scale-down since "
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Mark:
    """The operator chose the pod as a scale-down candidate."""

    since: datetime | None
    """None if the pod was drained by hand before, since the time is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine pod that is not being deleted."""

    name: str
    uid: str
    node: str = ""
    """Empty: none yet."""
    template: str = ""
    """Its ReplicaSet."""
    running: bool = False
    ready: bool = False
    """As Kubernetes counts it: containers and gates."""
    waits_since: datetime | None = None
    """Time at which its containers became ready, if only the gate InRotation is missing."""
    drained_by_hand: bool = False
    """Drained by hand: a mark that is not the operator's."""
    mark: Mark | None = None

    @property
    def needs_a_look(self) -> bool:
        """Whether a pass may have to write to the pod although its Deployment is at rest."""
        return self.waits_since is not None or self.mark is not None


def engines_of(pods: Iterable[Object]) -> tuple[Engine, ...]:
    """Pods that are not being deleted, by name."""
    found = (engine_of(pod) for pod in pods)
    alive = (engine for engine in found if engine is not None)
    return tuple(sorted(alive, key=lambda engine: engine.name))


def engine_of(pod: Object) -> Engine | None:
    """None if it is no engine, or is being deleted."""
    status: Mapping[str, Any] = pod.get("status") or {}
    if has_ended(pod) or labels_of(pod).get(COMPONENT_LABEL) != ENGINE_COMPONENT:
        return None
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    drain = annotations_of(pod).get(DRAIN_ANNOTATION)
    return Engine(
        name=str(pod["metadata"]["name"]),
        uid=str(pod["metadata"].get("uid", "")),
        node=str((pod.get("spec") or {}).get("nodeName", "")),
        template=labels_of(pod).get("pod-template-hash", ""),
        running=status.get("phase") == "Running",
        ready=_holds(conditions.get("Ready")),
        waits_since=_waits_since(pod, conditions),
        drained_by_hand=drain is not None and not drain.startswith(MARK_PREFIX),
        mark=_mark(pod, drain),
    )


def _holds(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _waits_since(pod: Object, conditions: Mapping[str, Mapping[str, Any]]) -> datetime | None:
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    is_gated = any(gate.get("conditionType") == IN_ROTATION_GATE for gate in gates)
    containers = conditions.get("ContainersReady")
    if not is_gated or containers is None or not _holds(containers):
        return None
    if _holds(conditions.get(IN_ROTATION_GATE)):
        return None
    # Without a time it counts as having waited long enough.
    return _time(str(containers.get("lastTransitionTime", ""))) or datetime.min.replace(tzinfo=UTC)


def _mark(pod: Object, drain: str | None) -> Mark | None:
    if drain is not None and drain.startswith(MARK_PREFIX):
        return Mark(_time(drain.removeprefix(MARK_PREFIX)))
    cost = annotations_of(pod).get(COST_ANNOTATION)
    return Mark(None) if cost == COST_OF_CANDIDATES else None


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
