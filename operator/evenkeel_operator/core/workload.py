"""The state of a Deployment and its pods in one value, from which conditions are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel_operator.core import reasons
from evenkeel_operator.core.engines import engines_of
from evenkeel_operator.core.objects import Object, labels_of
from evenkeel_operator.core.pod_failures import (
    STUCK,
    PodFailure,
    has_ended,
    of_containers,
    of_scheduling,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Pods of one component: desired and observed."""

    wanted: int
    exists: bool = False
    pods: int = 0
    """All existing pods, including old ones of a rollout."""
    ready: int = 0
    settled: bool = False
    """No rollout is in progress: all pods are of the newest revision."""
    failure: PodFailure | None = None
    """Of any pod, or of the Deployment."""
    stuck: PodFailure | None = None
    """Why a rollout is stuck: new pods do not start, or not within its deadline."""

    @property
    def is_whole(self) -> bool:
        """Every pod that is wanted is ready."""
        return self.exists and self.ready >= self.wanted


def workload(deployment: Object | None, *, wanted: int, pods: Sequence[Object] = ()) -> Workload:
    """From the Deployment, and from its pods if they were listed; they are not listed at rest."""
    if deployment is None:
        return Workload(wanted=wanted)
    status: Mapping[str, Any] = deployment.get("status") or {}
    total, ready = status.get("replicas", 0), status.get("readyReplicas", 0)
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    settled = current and updated == total == wanted and available >= wanted
    return Workload(
        wanted=wanted,
        exists=True,
        pods=total,
        ready=ready,
        settled=settled,
        failure=None if settled else next(pod_failures(deployment, pods), None),
        stuck=None if settled else _stuck(deployment, pods, current=current),
    )


def _stuck(deployment: Object, pods: Sequence[Object], *, current: bool) -> PodFailure | None:
    """Found long before the Deployment's deadline, which must exceed the time to load weights."""
    done = _conditions(deployment).get("Progressing", {}).get("reason") == "NewReplicaSetAvailable"
    if done and current:  # a failure that no rollout caused
        return None
    alive = [pod for pod in pods if not has_ended(pod)]
    newest = max(alive, key=_made, default=None)
    new = (pod for pod in alive if newest is None or _template(pod) == _template(newest))
    return next((one for one in pod_failures(deployment, new) if one.reason in STUCK), None)


def _made(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _template(pod: Object) -> str:
    """The name of its ReplicaSet."""
    return labels_of(pod).get("pod-template-hash", "")


def _conditions(deployment: Object) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in (deployment.get("status") or {}).get("conditions") or ()}


def pod_failures(deployment: Object, pods: Iterable[Object]) -> Iterator[PodFailure]:
    """The most specific one first: containers, the scheduler, routers, then the Deployment."""
    alive = [pod for pod in pods if not has_ended(pod)]
    alive.sort(key=lambda pod: str(pod["metadata"]["name"]))
    for pod in alive:
        yield from of_containers(pod)
    for pod in alive:
        yield from of_scheduling(pod)
    for engine in engines_of(alive):
        if engine.waits_since is not None:
            message = f"pod {engine.name} is ready, and no router sends requests to it yet."
            yield PodFailure(reasons.NOT_IN_ROTATION, message)
    conditions = _conditions(deployment)
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":  # a quota, an admission webhook
        yield PodFailure(reasons.PODS_REFUSED, str(failure.get("message", "")))
    progress = conditions.get("Progressing", {})
    if progress.get("reason") == "ProgressDeadlineExceeded":
        yield PodFailure(reasons.ROLLOUT_STUCK, "The rollout made no progress within its deadline.")
