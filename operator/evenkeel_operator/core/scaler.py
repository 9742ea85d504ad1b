"""The built-in scaler of one service: a state and measurements become the next state and a decision (design §6). Pure.

Without usable measurements (missing, too old, or partial) the number is held within the spec's bounds, and counts as a
recommendation. So the fleet does not shrink at once when measurements return, or when a new operator starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_contract.spec.scaling import Autoscaling

from evenkeel_operator.core import reasons
from evenkeel_operator.core.behaviour import History, PastRecommendation, apply_behavior
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.demand import Parts
from evenkeel_operator.core.recommendation import Fleet, Measurements, Recommendation, recommend


@dataclass(frozen=True, slots=True)
class Blind:
    """No usable measurements, and why: the message of ScalingActive."""

    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The inputs of a decision besides measurements."""

    scaling: Autoscaling
    parts: Parts = field(default_factory=Parts)
    ready: int = 0
    """Replicas that take requests."""
    activation: bool = False
    """Requests wait and there is no replica: at least one is started at once, regardless of measurements."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of replicas, its reason, and the condition ScalingActive."""

    replicas: int
    reason: str
    """Of the number: a word of `reasons`, for `status.scaling`."""
    active: bool
    note: Note


@dataclass(frozen=True, slots=True)
class State:
    """State that the next step needs."""

    replicas: int
    history: History = field(default_factory=History)


def started(replicas: int, *, now_s: float) -> State:
    """From the replicas that exist: they count as recommended, as in autoscaling/v2 after a start."""
    first = PastRecommendation(now_s, Recommendation(replicas, reasons.STABILIZING))
    return State(replicas, History((first,)))


def step(
    state: State, terms: Terms, seen: Measurements | Blind, *, now_s: float
) -> tuple[State, Decision]:
    """One set of measurements."""
    scaling = terms.scaling
    if isinstance(seen, Blind):
        recommendation, note = Recommendation(state.replicas, reasons.STABILIZING), seen.note
    else:
        fleet = Fleet(wanted=state.replicas, ready=terms.ready)
        recommendation = recommend(scaling, seen, terms.parts, fleet)
        note = _note(scaling, recommendation)
    if terms.activation and recommendation.replicas == 0:
        recommendation = Recommendation(1, reasons.ACTIVATED)
    decided, history = apply_behavior(
        scaling, state.history, recommendation, present=state.replicas, now_s=now_s
    )
    if terms.activation and decided.replicas == 0:  # requests must not wait for a window
        decided = Recommendation(1, reasons.ACTIVATED)
    if isinstance(seen, Blind) and decided.replicas == state.replicas:
        decided = Recommendation(
            state.replicas, note.reason
        )  # without measurements, that is the reason to hold
    decision = Decision(decided.replicas, decided.reason, not isinstance(seen, Blind), note)
    return State(decided.replicas, history), decision


def _note(scaling: Autoscaling, recommendation: Recommendation) -> Note:
    """Messages without changing values, which metrics report."""
    if recommendation.reason == reasons.LEARNING:
        return Note(
            reasons.LEARNING,
            "The capacity of a replica is unknown: no replica had waiting requests yet. Demand alone adds no replicas. "
            "Set targets.servicePerReplica to configure it.",
        )
    if recommendation.replicas > scaling.max_replicas:
        return Note(reasons.AT_MAXIMUM, "The recommended number of replicas exceeds maxReplicas.")
    return Note(reasons.SCALING, "The number of replicas follows demand.")
