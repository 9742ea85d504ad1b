"""The built-in scaler of one service: a state, a look, a decision (design §6). Pure; time is a parameter.

Place in the flow: figures | blindness → **scaler** (demand → wish → behaviour) → decision → the pass, which writes it to
the Deployment and to status, never to the spec.

Who cannot see holds: no data, data too old, or part of it leave the number as it is, within the bounds of the spec.
A blind time counts as a wish for what there is, so that nobody shrinks at once when sight returns. So does the start
of an operator, whose memory is empty: it begins with the replicas that live.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_contract.spec.scaling import Autoscaling

from evenkeel_operator.core import reasons
from evenkeel_operator.core.behaviour import History, Recommendation, behave
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.demand import Parts
from evenkeel_operator.core.wish import Figures, Fleet, Wish, wish_of


@dataclass(frozen=True, slots=True)
class Blind:
    """Why nothing is known: what ScalingActive says."""

    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a decision is made by, besides figures."""

    scaling: Autoscaling
    parts: Parts = field(default_factory=Parts)
    ready: int = 0
    """Replicas that take requests."""
    activation: bool = False
    """Requests wait for a replica, and there is none: at least one is wanted, at once and whatever else is known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many, why, and what the condition ScalingActive says."""

    replicas: int
    reason: str
    """Of the number: a word of `reasons`, for `status.scaling`."""
    active: bool
    note: Note


@dataclass(frozen=True, slots=True)
class State:
    """What the next step needs of those before."""

    replicas: int
    history: History = field(default_factory=History)


def started(replicas: int, *, now_s: float) -> State:
    """With the replicas that live: they count as wished for, as for any autoscaler that starts."""
    first = Recommendation(now_s, Wish(replicas, reasons.STABILIZING))
    return State(replicas, History((first,)))


def step(
    state: State, terms: Terms, seen: Figures | Blind, *, now_s: float
) -> tuple[State, Decision]:
    """One look at the figures."""
    scaling = terms.scaling
    if isinstance(seen, Blind):
        wish, note = Wish(state.replicas, reasons.STABILIZING), seen.note
    else:
        fleet = Fleet(wanted=state.replicas, ready=terms.ready)
        wish = wish_of(scaling, seen, terms.parts, fleet)
        note = _note(scaling, wish)
    if terms.activation and wish.replicas == 0:
        wish = Wish(1, reasons.ACTIVATED)
    decided, history = behave(scaling, state.history, wish, present=state.replicas, now_s=now_s)
    if terms.activation and decided.replicas == 0:  # no window lets anybody wait for the first one
        decided = Wish(1, reasons.ACTIVATED)
    if isinstance(seen, Blind) and decided.replicas == state.replicas:
        decided = Wish(
            state.replicas, note.reason
        )  # held for want of sight, whatever else holds it
    decision = Decision(decided.replicas, decided.reason, not isinstance(seen, Blind), note)
    return State(decided.replicas, history), decision


def _note(scaling: Autoscaling, wish: Wish) -> Note:
    """Sentences that stay while all stays: what changes by the minute is in metrics."""
    if wish.reason == reasons.LEARNING:
        return Note(
            reasons.LEARNING,
            "no replica has been seen with requests waiting, so what one can do is not known and demand alone adds "
            "none; to say it: targets.servicePerReplica",
        )
    if wish.replicas > scaling.max_replicas:
        return Note(reasons.AT_MAXIMUM, "more replicas are wanted than maxReplicas allows")
    return Note(reasons.SCALING, "the number of replicas follows demand")
