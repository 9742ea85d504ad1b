"""What is wrong with a pod, by what kubelet and scheduler say of it. Pure.

Place in the pass: pods → **troubles** → workload → conditions. Sentences rest while all rests: a condition must not change
with every attempt of a kubelet.
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
"""What of a new pod no rollout gets beyond by waiting; nodes may come, and weights take their time."""
WORDS: Final = 300
"""Characters of a container's last line: as much as an exception needs."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why pods are not ready."""

    reason: str
    message: str


def has_ended(pod: Object) -> bool:
    """It is on its way out, or was ended for good (evicted, its node shut down): nothing of it matters any more."""
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in ("Failed", "Succeeded")


def is_broken(pod: Object) -> bool:
    """Whether a container of it ended, or cannot start."""
    return not has_ended(pod) and next(of_containers(pod), None) is not None


def of_containers(pod: Object) -> Iterator[Trouble]:
    """What its containers say."""
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
            yield Trouble(reasons.IMAGE_CANNOT_BE_PULLED, f"{where}: {image} cannot be pulled")
        elif reason in _CONFIG:
            yield Trouble(reasons.CANNOT_START, f"{where}: {message or reason}")
        elif ended and not container.get("ready"):
            # The same while it runs, has ended and is waited for: a condition must not change with each attempt. So
            # neither the time of the next one nor their number is told.
            yield Trouble(reasons.CRASHING, f"{where} ended and is started again ({_how(ended)})")


def _how(ended: Mapping[str, Any]) -> str:
    """Why a container ended, with its last words: the kubelet keeps the end of its log."""
    said = str(ended.get("message") or "").strip()
    words = said.splitlines()[-1].strip() if said else ""
    if len(words) > WORDS:
        words = f"…{words[-WORDS:]}"
    told = f": {words}" if words else "; its log says more"
    return f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}{told}"


def of_scheduling(pod: Object) -> Iterator[Trouble]:
    """What the scheduler says."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message", ""))
            name = pod["metadata"]["name"]
            yield Trouble(reasons.UNSCHEDULABLE, f"pod {name} finds no node: {message}")
