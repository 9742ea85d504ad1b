"""Room for a rollout: old pods that cannot serve leave where the new ones have no room. Pure.

A Deployment with `maxUnavailable: 0` removes no old pod before a new one is ready, also none that never served. Where such pods
hold the GPUs or the quota that the new ones need, a corrected spec would never run. So as many old pods may be missing as cannot
serve: the Deployment then removes these, and none that serves (kubernetes' pkg/controller/deployment/rolling.go,
cleanupUnhealthyReplicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenkeel_contract.values import CountOrPercent

from evenkeel_operator.core.objects import Manifest, Object, conditions_of, labels_of
from evenkeel_operator.core.workload import has_ended, of_readiness, of_scheduling


def lacks_room(deployment: Object, pods: Iterable[Object]) -> bool:
    """Whether a pod fits on no node, or a quota or a webhook refuses pods of the Deployment."""
    refused = conditions_of(deployment).get("ReplicaFailure", {}).get("status") == "True"
    return refused or any(next(of_scheduling(pod), None) for pod in pods if not has_ended(pod))


def is_idle(pod: Object) -> bool:
    """Whether it is on a node, and a container of it is not ready."""
    # Without the gate: a pod that only routers have not taken yet is about to serve.
    ready = conditions_of(pod).get("ContainersReady", {})
    on_node = bool((pod.get("spec") or {}).get("nodeName"))
    return on_node and not has_ended(pod) and ready.get("status") == "False"


def unable_to_serve(pods: Iterable[Object], *, newest: str | None) -> int:
    """The number of old pods that hold room and cannot serve; `newest`: the template hash of the new ones, None if unknown."""
    if newest is None:
        return 0
    old = (pod for pod in pods if labels_of(pod).get("pod-template-hash") != newest)
    return sum(map(cannot_serve, old))


def cannot_serve(pod: Object) -> bool:
    """Whether it is idle and will be for long: it never was ready, or a container of it waits for its image, for its configuration or
    after crashes. A pod that was ready and restarts for the first time is not such a pod."""
    if not is_idle(pod):
        return False
    status = pod.get("status") or {}
    listed: Sequence[Object] = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    waits = any((one.get("state") or {}).get("waiting", {}).get("message") for one in listed)
    was_ready = next(of_readiness(pod), None) is not None
    restarted = any(one.get("restartCount") for one in listed)
    return waits or not (was_ready or restarted)


def with_room(manifest: Manifest, missing: int) -> Manifest:
    """The Deployment's manifest, of which at least so many pods may be missing."""
    spec = manifest["spec"]
    update = spec["strategy"]["rollingUpdate"]
    # The Deployment rounds a percentage down.
    allowed = int(CountOrPercent.from_plain(update["maxUnavailable"]).of(spec["replicas"]))
    if allowed >= missing:
        return manifest
    strategy = {**spec["strategy"], "rollingUpdate": {**update, "maxUnavailable": missing}}
    return {**manifest, "spec": {**spec, "strategy": strategy}}
