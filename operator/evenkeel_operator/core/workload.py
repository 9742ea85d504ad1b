"""Deployments and their pods: engines with the fields that rotation reads, why pods are not ready, stuck rollouts. Pure.

A pod that is being deleted or has ended is not an engine. Messages do not change from one attempt of the kubelet to the
next: each change would be a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from evenkeel_contract.names import (
    COMPONENT_LABEL,
    DRAIN_ANNOTATION,
    ENGINE_COMPONENT,
    ENGINE_KEY_LABEL,
    IN_ROTATION_GATE,
)

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import (
    Object,
    annotations_of,
    conditions_of,
    is_controlled_by,
    labels_of,
)
from evenkeel_operator.core.reasons import Note

_IMAGE: Final = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
    + ("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed")
)
"""Reasons of the kubelet (1.35) about an image of a container, or of a volume of its pod."""
_CONFIG: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
STUCK: Final = frozenset(
    {
        reasons.IMAGE_CANNOT_BE_PULLED,
        reasons.CANNOT_START,
        reasons.CRASHING,
        reasons.PODS_REFUSED,
        reasons.ROLLOUT_STUCK,
    }
)
"""Failures of a new pod that waiting does not resolve. A missing node may still be added."""
WORDS: Final = 300
"""Characters of a container's last line: as much as an exception needs."""


def has_ended(pod: Object) -> bool:
    """Whether it is being deleted, or has ended (evicted, node shut down): its failures no longer matter."""
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in ("Failed", "Succeeded")


def is_broken(pod: Object) -> bool:
    """Whether a container of it ended, or cannot start."""
    return not has_ended(pod) and next(of_containers(pod), None) is not None


def of_containers(pod: Object) -> Iterator[Note]:
    """Failures of its containers."""
    status = pod.get("status") or {}
    listed = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in listed:
        where = f"container {container['name']} of pod {pod['metadata']['name']}"
        state, before = container.get("state") or {}, container.get("lastState") or {}
        waiting = state.get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        ended = state.get("terminated") or before.get("terminated")
        if reason in _IMAGE:
            image = _missing_image(pod, container)
            yield Note(
                reasons.IMAGE_CANNOT_BE_PULLED, f"{where}: the image {image} cannot be pulled."
            )
        elif reason in _CONFIG:
            yield Note(reasons.CANNOT_START, f"{where}: {message or reason}")
        elif ended and not container.get("ready"):
            # The same text in every state of a crash loop: no times, no counts. Each change would be a write.
            yield Note(reasons.CRASHING, f"{where} exited and restarts ({_how(ended)}).")
        elif container.get("restartCount") and not container.get("ready"):
            # The kubelet has removed what was left of it, and forgot how it ended.
            yield Note(reasons.CRASHING, f"{where} exited and restarts.")


def _missing_image(pod: Object, container: Mapping[str, Any]) -> str:
    """The image that the kubelet cannot pull for a container: the one of a volume, if the kubelet names it, else that of the container."""
    own = container.get("image", "")
    volumes = pod.get("spec", {}).get("volumes") or ()
    references = (str((one.get("image") or {}).get("reference") or "") for one in volumes)
    message = container["state"]["waiting"].get("message") or ""
    named = [one for one in (own, *references) if one and one in message]
    return str(max(named, key=len, default=own))  # one name may be the beginning of another


def _how(ended: Mapping[str, Any]) -> str:
    """Why a container ended, with the last line of its log, which the kubelet keeps."""
    ended_with = str(ended.get("message") or "").strip()
    words = ended_with.splitlines()[-1].strip() if ended_with else ""
    if len(words) > WORDS:
        words = f"…{words[-WORDS:]}"
    detail = f": {words}" if words else "; see its log"
    return f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}{detail}"


def of_scheduling(pod: Object) -> Iterator[Note]:
    """A failure to schedule it."""
    scheduled = conditions_of(pod).get("PodScheduled", {})
    if scheduled.get("status") == "False":
        name, message = pod["metadata"]["name"], scheduled.get("message", "")
        yield Note(reasons.UNSCHEDULABLE, f"pod {name} fits on no node: {message}")


def of_readiness(pod: Object) -> Iterator[Note]:
    """A note on a pod that was ready and no longer is, although its containers run: its node is gone, or its probe fails."""
    status = pod.get("status") or {}
    ready = conditions_of(pod).get("Ready", {})
    running = [
        (container.get("state") or {}).get("running", {}).get("startedAt", "")
        for container in status.get("containerStatuses") or ()
    ]
    # The condition of a pod that was never ready is older than its containers.
    changed = str(ready.get("lastTransitionTime", ""))
    if ready.get("status") == "False" and running and changed > max(running) > "":
        why = ready.get("message") or ready.get("reason") or "see its events"
        name = pod["metadata"]["name"]
        yield Note(reasons.NOT_READY, f"pod {name} was ready and no longer is: {why}")


_LATEST: Final = "9999"


def _start(pod: Object) -> tuple[str, str]:
    """Since when an engine starts, and what it does; the latest time and nothing if it does not start.

    SGLang and vLLM open their port when the weights are loaded, so nothing of the loading but its beginning can be seen."""
    status = pod.get("status") or {}
    is_engine = labels_of(pod).get(COMPONENT_LABEL) == ENGINE_COMPONENT
    if not is_engine or has_ended(pod) or _holds(conditions_of(pod).get("ContainersReady")):
        return _LATEST, ""
    name = pod["metadata"]["name"]
    downloads, loads = (
        _running_since(status.get(listed)) for listed in ("initContainerStatuses", "containerStatuses")
    )  # fmt: skip
    if loads:
        return loads, f"pod {name} loads the model since {loads}"
    if downloads:
        return downloads, f"pod {name} downloads the model since {downloads}"
    scheduled = conditions_of(pod).get("PodScheduled", {})
    since = str(scheduled.get("lastTransitionTime") or "")
    if not since or not _holds(scheduled):
        return _LATEST, ""
    return since, f"pod {name} waits for its image or its volumes since {since}"


def _running_since(listed: Iterable[Mapping[str, Any]] | None) -> str:
    """When the first container of a list began that still runs; empty if none does."""
    running = ((one.get("state") or {}).get("running") or {} for one in listed or ())
    return min((str(one["startedAt"]) for one in running if one.get("startedAt")), default="")


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
    """When the pod was chosen. None if it was drained by hand before, since the time is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """One engine pod that is not being deleted."""

    name: str
    uid: str
    node: str = ""
    """Name of the pod's node; empty: none yet."""
    template: str = ""
    """Hash of the pod's template, which names its ReplicaSet."""
    running: bool = False
    ready: bool = False
    """Whether Kubernetes counts the pod as ready: containers and gates."""
    waits_since: datetime | None = None
    """Time at which its containers became ready, if only the gate InRotation is missing."""
    drained_by_hand: bool = False
    """Drained by hand: a mark that is not the operator's."""
    mark: Mark | None = None

    @property
    def needs_a_look(self) -> bool:
        """Whether a pass may have to write to the pod although its Deployment is at rest."""
        return self.waits_since is not None or self.mark is not None


def engines_of(pods: Iterable[Object]) -> tuple[EnginePod, ...]:
    """Pods that are not being deleted, by name."""
    found = (engine_of(pod) for pod in pods)
    alive = (engine for engine in found if engine is not None)
    return tuple(sorted(alive, key=lambda engine: engine.name))


def engine_of(pod: Object) -> EnginePod | None:
    """The engine of a pod; None if the pod is no engine or is being deleted."""
    status: Mapping[str, Any] = pod.get("status") or {}
    if has_ended(pod) or labels_of(pod).get(COMPONENT_LABEL) != ENGINE_COMPONENT:
        return None
    conditions = conditions_of(pod)
    drain = annotations_of(pod).get(DRAIN_ANNOTATION)
    return EnginePod(
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
    containers = conditions.get("ContainersReady")
    if not has_gate(pod) or containers is None or not _holds(containers):
        return None
    if _holds(conditions.get(IN_ROTATION_GATE)):
        return None
    # Without a time it counts as having waited long enough.
    return time_of(str(containers.get("lastTransitionTime", ""))) or datetime.min.replace(
        tzinfo=UTC
    )


def has_gate(pod: Mapping[str, Any]) -> bool:
    """Whether a pod, or pods of a template, wait for routers."""
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    return any(gate.get("conditionType") == IN_ROTATION_GATE for gate in gates)


def _mark(pod: Object, drain: str | None) -> Mark | None:
    if drain is not None and drain.startswith(MARK_PREFIX):
        return Mark(time_of(drain.removeprefix(MARK_PREFIX)))
    cost = annotations_of(pod).get(COST_ANNOTATION)
    return Mark(None) if cost == COST_OF_CANDIDATES else None


def time_of(text: str) -> datetime | None:
    """A time as the API server writes it; None if it is no time."""
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


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
    failure: Note | None = None
    """Failure of any pod, or of the Deployment."""
    starting: str = ""
    """What the engine does that has been starting for the longest time; empty if pods have a failure."""
    stuck: Note | None = None
    """Why a rollout is stuck: new pods do not start, or not within its deadline."""

    @property
    def is_whole(self) -> bool:
        """Every pod that is wanted is ready."""
        return self.exists and self.ready >= self.wanted

    @property
    def lacks_pods(self) -> bool:
        """Fewer pods are ready than desired, and a failure is the cause: pods that merely start are not missing."""
        failure = self.failure
        waits = failure is None or failure.reason == reasons.NOT_IN_ROTATION
        return self.ready < self.wanted and not waits


def external_workload(slices: Iterable[Object]) -> Workload:
    """Engines that another owner made, from the EndpointSlices of their Service: as many as there are, are wanted."""
    ready: dict[str, bool] = {}
    for endpoint in (one for item in slices for one in item.get("endpoints") or ()):
        target, state = endpoint.get("targetRef") or {}, endpoint.get("conditions") or {}
        if target.get("kind") == "Pod" and not state.get("terminating"):
            # A pod has an endpoint for each family of addresses. Without a condition it is ready, says the API.
            ready[str(target.get("name"))] = state.get("ready") is not False
    failure = None
    if not ready:
        message = "no pod of the namespace has the labels of spec.engine.external."
        failure = Note(reasons.NO_REPLICAS, message)
    return Workload(
        wanted=len(ready),
        exists=True,
        pods=len(ready),
        ready=sum(ready.values()),
        settled=True,
        failure=failure,
    )


def newest_template(replica_sets: Iterable[Object], deployment: Object) -> str | None:
    """The `pod-template-hash` of the Deployment's newest revision; None if it has no ReplicaSet.

    The newest pod does not show it: pods that a scale-up adds during a rollout may be of the old ReplicaSet.
    """
    uid = str(deployment["metadata"].get("uid", ""))
    owned = [item for item in replica_sets if is_controlled_by(item, uid)]
    newest = max(owned, key=_revision, default=None)
    return None if newest is None else _template(newest)


def _revision(replica_set: Object) -> int:
    text = annotations_of(replica_set).get("deployment.kubernetes.io/revision", "")
    return int(text) if text.isdecimal() else 0


def workload(
    deployment: Object | None,
    *,
    wanted: int,
    pods: Sequence[Object] = (),
    newest: str | None = None,
    unstarted: Mapping[str, str] | None = None,
) -> Workload:
    """State of a Deployment, and of its pods if they were listed; they are not listed at rest.

    `newest` is the `newest_template`; without it, no failure of a pod counts as one of the rollout. `unstarted`: names of pods that do
    not start on their node, and why.
    """
    if deployment is None:
        return Workload(wanted=wanted)
    status: Mapping[str, Any] = deployment.get("status") or {}
    total, ready = status.get("replicas", 0), status.get("readyReplicas", 0)
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    settled = current and updated == total == wanted and available >= wanted
    failure = None if settled else next(pod_failures(deployment, pods, unstarted), None)
    of_newest = [pod for pod in pods if newest is not None and _template(pod) == newest]
    new = pod_failures(deployment, of_newest, unstarted)
    return Workload(
        wanted=wanted,
        exists=True,
        pods=total,
        ready=ready,
        settled=settled,
        failure=failure,
        starting="" if settled or failure else min(map(_start, pods), default=("", ""))[1],
        stuck=None if settled else _paused(deployment) or _stuck(deployment, new, current=current),
    )


def _stuck(deployment: Object, failures: Iterable[Note], *, current: bool) -> Note | None:
    """Found long before the Deployment's deadline, which must exceed the time to load weights. `failures`: of new pods."""
    done = (
        conditions_of(deployment).get("Progressing", {}).get("reason") == "NewReplicaSetAvailable"
    )
    if done and current:  # a failure that no rollout caused
        return None
    return next((one for one in failures if one.reason in STUCK), None)


def _paused(deployment: Object) -> Note | None:
    """A Deployment that was paused by hand: what an administrator does by hand to stop a rollout is not reverted."""
    if not (deployment.get("spec") or {}).get("paused"):
        return None
    where, name = deployment["metadata"].get("namespace"), deployment["metadata"]["name"]
    message = f"Deployment {name} is paused. `kubectl -n {where} rollout resume deployment/{name}` continues."
    return Note(reasons.ROLLOUT_STUCK, message)


def _template(item: Object) -> str:
    """Hash of the template of a pod or ReplicaSet."""
    return labels_of(item).get("pod-template-hash", "")


def pod_failures(
    deployment: Object, pods: Iterable[Object], unstarted: Mapping[str, str] | None = None
) -> Iterator[Note]:
    """The most specific one first: containers, volumes, the scheduler, nodes, routers, then the Deployment."""
    alive = [pod for pod in pods if not has_ended(pod)]
    alive.sort(key=lambda pod: str(pod["metadata"]["name"]))
    for pod in alive:
        yield from of_containers(pod)
    for pod in alive:
        if why := (unstarted or {}).get(str(pod["metadata"]["name"])):
            message = f"pod {pod['metadata']['name']} does not start: {why}"
            yield Note(reasons.CANNOT_START, message)
    for failures in (of_scheduling, of_readiness):
        for pod in alive:
            yield from failures(pod)
    for engine in engines_of(alive):
        if engine.waits_since is not None:
            message = f"pod {engine.name} is ready, and no router sends requests to it yet."
            yield Note(reasons.NOT_IN_ROTATION, message)
    conditions = conditions_of(deployment)
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":  # a quota, an admission webhook
        yield Note(reasons.PODS_REFUSED, str(failure.get("message", "")))
    progress = conditions.get("Progressing", {})
    if progress.get("reason") == "ProgressDeadlineExceeded":
        yield Note(reasons.ROLLOUT_STUCK, "The rollout made no progress within its deadline.")


def all_use_key(engines: Object | None, key_id: str) -> bool:
    """Whether every pod of the engines' Deployment has the key that engines of the service share."""
    if engines is None:
        return True
    spec = engines["spec"]
    label = (spec["template"]["metadata"].get("labels") or {}).get(ENGINE_KEY_LABEL)
    return label == key_id and workload(engines, wanted=spec.get("replicas", 1)).settled
