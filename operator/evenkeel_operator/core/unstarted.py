"""Pods that do not start because a volume, their network or a claim of devices is missing. Pure.

The status of such a pod says `ContainerCreating` or nothing; the reason is in events of the kubelet and of the controllers of volumes and
claims. They come from each attempt, in turn and in several words for one cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from evenkeel_operator.core.objects import Object, conditions_of
from evenkeel_operator.core.workload import has_ended, time_of

WAIT: Final = timedelta(seconds=60)
"""How long a pod may need for its volumes before anybody looks: a disk is attached in seconds, and a Secret may come after its pod."""
_REASONS: Final = frozenset(
    {"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedResourceClaimCreation"}
)
_SUMMARY: Final = "Unable to attach or mount volumes"
"""The kubelet says this every two minutes beside the cause, with volumes in another order each time."""


def unstarted(pods: Iterable[Object], *, now: datetime) -> Iterable[Object]:
    """The pods that have waited for a minute, on their node to begin with their containers, or before it for claims of devices."""
    for pod in pods:
        since = None if has_ended(pod) else time_of(_waits_since(pod))
        if since is not None and now - since >= WAIT:
            yield pod


def _waits_since(pod: Object) -> str:
    """Since when a pod waits; empty if it does not."""
    conditions, spec = conditions_of(pod), pod.get("spec") or {}
    if spec.get("nodeName"):
        begun = conditions.get("PodReadyToStartContainers", {}).get("status") != "False"
        placed = conditions.get("PodScheduled", {}).get("lastTransitionTime", "")
        return "" if begun else str(placed)
    # Without a claim of its own, a pod is not even offered to the scheduler.
    made = {one["name"] for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    wanted = {one["name"] for one in spec.get("resourceClaims") or () if "resourceClaimTemplateName" in one}  # fmt: skip
    return "" if wanted <= made else str(pod["metadata"].get("creationTimestamp", ""))


def cause(events: Iterable[Object]) -> str | None:
    """Why a pod does not start, by its events; the same text after each attempt."""
    found = {str(event.get("message", "")) for event in events if event.get("reason") in _REASONS}
    return min(found, key=lambda text: (text.startswith(_SUMMARY), text), default=None)
