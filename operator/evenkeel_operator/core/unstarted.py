"""Pods that are on a node and do not start there, because a volume or their network is missing. Pure.

The status of such a pod says `ContainerCreating` and no more; the reason is in events of the kubelet and of the volume
controller. They come from each attempt, in turn and in several words for one cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from evenkeel_operator.core.objects import Object, conditions_of
from evenkeel_operator.core.workload import has_ended, time_of

WAIT: Final = timedelta(seconds=60)
"""How long a pod may need for its volumes before anybody looks: a disk is attached in seconds, and a Secret may come after its pod."""
_REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"})
_SUMMARY: Final = "Unable to attach or mount volumes"
"""The kubelet says this every two minutes beside the cause, with volumes in another order each time."""


def unstarted(pods: Iterable[Object], *, now: datetime) -> Iterable[Object]:
    """The pods whose node has had them for a minute and has not begun with their containers."""
    for pod in pods:
        conditions = conditions_of(pod)
        placed = time_of(str(conditions.get("PodScheduled", {}).get("lastTransitionTime", "")))
        begun = conditions.get("PodReadyToStartContainers", {}).get("status") != "False"
        on_node = bool((pod.get("spec") or {}).get("nodeName")) and not has_ended(pod)
        if on_node and not begun and placed is not None and now - placed >= WAIT:
            yield pod


def cause(events: Iterable[Object]) -> str | None:
    """Why a pod does not start, by its events; the same text after each attempt."""
    found = {str(event.get("message", "")) for event in events if event.get("reason") in _REASONS}
    return min(found, key=lambda text: (text.startswith(_SUMMARY), text), default=None)
