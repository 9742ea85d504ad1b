"""The number of replicas to run: the spec's, or the scaler's, and one more while the only replica leaves its node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from evenkeel_contract.names import engine_name, router_name
from evenkeel_contract.spec import ServiceSpec

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.scaler import Decision


@dataclass(frozen=True, slots=True)
class Scaling:
    """The number of replicas, and the message of ScalingActive."""

    replicas: int
    note: Note
    decision: Decision | None = None
    """Decision of the built-in scaler, if the service uses it."""


def foreign_scalers(service: str, scalers: Iterable[Object]) -> Iterator[Note]:
    """Autoscalers that target a Deployment of the service: the operator reverts each of their changes."""
    ours = {engine_name(service), router_name(service)}
    for item in sorted(scalers, key=lambda item: str(item["metadata"]["name"])):
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind") == "Deployment" and target.get("name") in ours:
            yield Note(
                reasons.FOREIGN_SCALER,
                f"HorizontalPodAutoscaler {item['metadata']['name']} scales Deployment {target['name']}, and each "
                f"change is reverted. Point it at FairInferenceService {service}.",
            )


def decide(spec: ServiceSpec | None, decision: Decision | None = None) -> Scaling:
    """From the spec, and from what the scaler decided where the spec has one."""
    if spec is None:
        return Scaling(0, Note(reasons.INVALID, "No valid spec is in use."))
    if spec.autoscaling is None:
        message = (
            "spec.autoscaling is not set: engine.replicas or the owner of /scale sets the number."
        )
        return Scaling(spec.initial_replicas, Note(reasons.NOT_CONFIGURED, message))
    if decision is None:  # a dry run
        return Scaling(spec.initial_replicas, Note(reasons.NO_DATA_YET, "No decision yet."))
    return Scaling(decision.replicas, decision.note, decision)


def surged(scaling: Scaling, pods: Iterable[Object], cordoned: Collection[str]) -> Scaling:
    """One more replica while the only one runs on a cordoned node.

    Its PodDisruptionBudget allows no eviction of the only replica. A second ready replica permits it; after the
    eviction the recommendation ends.
    """
    if scaling.replicas != 1:
        return scaling
    leaves = any(
        (pod.get("spec") or {}).get("nodeName") in cordoned
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    )
    return replace(scaling, replicas=2) if leaves else scaling
