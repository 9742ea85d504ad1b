"""How many replicas there shall be. Today: what the spec says; the seam for a scaler that decides.

Place in the pass: judge → **scaling** → desired.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel_contract.spec import ServiceSpec

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note


@dataclass(frozen=True, slots=True)
class Scaling:
    """The number of replicas, and what the condition ScalingActive says about it."""

    replicas: int
    note: Note


def decide(spec: ServiceSpec | None) -> Scaling:
    """From the spec alone."""
    if spec is None:
        return Scaling(0, Note(reasons.INVALID, "no spec runs"))
    if spec.autoscaling is None:
        message = "spec.autoscaling is absent: engine.replicas, or whoever owns the scale, decides"
        return Scaling(spec.initial_replicas, Note(reasons.NOT_CONFIGURED, message))
    message = f"this operator has no scaler: {spec.initial_replicas} replicas, as minReplicas says"
    return Scaling(spec.initial_replicas, Note(reasons.NO_SCALER, message))
