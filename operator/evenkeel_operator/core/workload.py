"""How a Deployment and its pods are doing, in one value: what conditions are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_operator.core import reasons
from evenkeel_operator.core.engines import engines_of
from evenkeel_operator.core.objects import Object

_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_CONFIG: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why pods are not ready."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Pods of one kind: wanted and found."""

    wanted: int
    exists: bool = False
    pods: int = 0
    """That there are, old ones of a rollout included."""
    ready: int = 0
    settled: bool = False
    """No rollout is going on: all pods are of the newest kind, and no others are left."""
    trouble: Trouble | None = None

    @property
    def is_whole(self) -> bool:
        """Every pod that is wanted is ready."""
        return self.exists and self.ready >= self.wanted


def workload(deployment: Object | None, *, wanted: int, pods: Sequence[Object] = ()) -> Workload:
    """From the Deployment, and its pods where somebody looked (nobody does while all is well)."""
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
        trouble=None if settled else next(troubles(deployment, pods), None),
    )


def troubles(deployment: Object, pods: Iterable[Object]) -> Iterator[Trouble]:
    """The most telling one first: what a container says, the scheduler, routers, then the Deployment."""
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    alive.sort(key=lambda pod: str(pod["metadata"]["name"]))
    for pod in alive:
        yield from _of_containers(pod)
    for pod in alive:
        yield from _of_scheduling(pod)
    for engine in engines_of(alive):
        if engine.waits_since is not None:
            message = f"pod {engine.name} is up, and no router has it in rotation yet"
            yield Trouble(reasons.NOT_IN_ROTATION, message)
    conditions = {c["type"]: c for c in (deployment.get("status") or {}).get("conditions") or ()}
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":  # a quota, an admission webhook
        yield Trouble(reasons.PODS_REFUSED, str(failure.get("message", "")))
    progress = conditions.get("Progressing", {})
    if progress.get("reason") == "ProgressDeadlineExceeded":
        yield Trouble(reasons.ROLLOUT_STUCK, "the rollout has made no progress within its deadline")


def _of_containers(pod: Object) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    listed = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in listed:
        where = f"container {container['name']} of pod {pod['metadata']['name']}"
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _IMAGE:
            image = container.get("image", "")
            yield Trouble(reasons.IMAGE_CANNOT_BE_PULLED, f"{where}: {image} cannot be pulled")
        elif reason in _CONFIG:
            yield Trouble(reasons.CANNOT_START, f"{where}: {message or reason}")
        elif reason == "CrashLoopBackOff":
            ended = (container.get("lastState") or {}).get("terminated") or {}
            how = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}"
            # Neither the time of the next attempt nor their number: a condition must not change all the time.
            yield Trouble(reasons.CRASHING, f"{where} ends again and again ({how}); see its log")


def _of_scheduling(pod: Object) -> Iterator[Trouble]:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message", ""))
            name = pod["metadata"]["name"]
            yield Trouble(reasons.UNSCHEDULABLE, f"pod {name} finds no node: {message}")
