"""Why a pod is not ready, by its container statuses and the scheduler's condition. Pure.

Messages do not change from one attempt of the kubelet to the next: each change would be a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object

_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
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


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why pods are not ready."""

    reason: str
    message: str


def has_ended(pod: Object) -> bool:
    """Whether it is being deleted, or has ended (evicted, node shut down): its failures no longer matter."""
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in ("Failed", "Succeeded")


def is_broken(pod: Object) -> bool:
    """Whether a container of it ended, or cannot start."""
    return not has_ended(pod) and next(of_containers(pod), None) is not None


def of_containers(pod: Object) -> Iterator[PodFailure]:
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
            image = container.get("image", "")
            yield PodFailure(
                reasons.IMAGE_CANNOT_BE_PULLED, f"{where}: the image {image} cannot be pulled."
            )
        elif reason in _CONFIG:
            yield PodFailure(reasons.CANNOT_START, f"{where}: {message or reason}")
        elif ended and not container.get("ready"):
            # The same text in every state of a crash loop: no times, no counts. Each change would be a write.
            yield PodFailure(reasons.CRASHING, f"{where} exited and restarts ({_how(ended)}).")


def _how(ended: Mapping[str, Any]) -> str:
    """Why a container ended, with the last line of its log, which the kubelet keeps."""
    ended_with = str(ended.get("message") or "").strip()
    words = ended_with.splitlines()[-1].strip() if ended_with else ""
    if len(words) > WORDS:
        words = f"…{words[-WORDS:]}"
    detail = f": {words}" if words else "; see its log"
    return f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}{detail}"


def of_scheduling(pod: Object) -> Iterator[PodFailure]:
    """A failure to schedule it."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message", ""))
            name = pod["metadata"]["name"]
            yield PodFailure(reasons.UNSCHEDULABLE, f"pod {name} fits on no node: {message}")
