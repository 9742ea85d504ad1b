"""The number of replicas to run: the spec's, or the built-in scaler's (design §6). Pure.

The scaler turns a state and measurements into the next state and a decision. Without usable measurements (missing, too
old, or partial) the number is held within the spec's bounds, and counts as a recommendation. So the fleet does not
shrink at once when measurements return, or when a new operator starts.

`spec.autoscaling.behavior` limits recommendations as autoscaling/v2 does: first the stabilisation windows (growing: the
lowest recommendation of the window, shrinking: the highest), then what the policies allow within their periods, then
the bounds. Rules, order and rounding are those of kubernetes' pkg/controller/podautoscaler/horizontal.go:
stabilizeRecommendationWithBehaviors, convertDesiredReplicasWithBehaviorRate. One difference: from zero, one replica is
always allowed, where the HorizontalPodAutoscaler does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from evenkeel_contract.names import engine_name, router_name
from evenkeel_contract.spec.autoscaling import (
    Autoscaling,
    ScaleDownRules,
    ScaleUpRules,
    ScalingPolicy,
    ScalingPolicyType,
    SelectPolicy,
)
from evenkeel_contract.spec.parts import ScaleTarget
from evenkeel_contract.spec.resources import ServiceSpec

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    LATENCY_S,
    LONGEST_S,
    Fleet,
    Measurements,
    Parts,
    Recommendation,
    recommend,
)


@dataclass(frozen=True, slots=True)
class PastRecommendation:
    """A recommendation of an earlier step."""

    at_s: float
    recommendation: Recommendation


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """A change of the number of replicas."""

    at_s: float
    by: int
    """Change of the number of replicas; above 0: replicas were added."""


@dataclass(frozen=True, slots=True)
class History:
    """Earlier recommendations and changes that windows and periods use, oldest first."""

    recommendations: tuple[PastRecommendation, ...] = ()
    changes: tuple[ReplicaChange, ...] = ()


def apply_behavior(
    scaling: Autoscaling,
    history: History,
    recommendation: Recommendation,
    *,
    present: int,
    now_s: float,
) -> tuple[Recommendation, History]:
    """The next number with the reason of its recommendation, and the history with both."""
    low, high = scaling.min_replicas, scaling.max_replicas
    history = _remembered(scaling, history, PastRecommendation(now_s, recommendation))
    decided = Recommendation(present, reasons.STABILIZING)
    # Outside the bounds neither windows nor policies apply: the number goes to the bound at once.
    if low <= present <= high:
        steady = _stabilised(scaling, history, present=present, now_s=now_s)
        decided = _limited(scaling, history, steady, present=present, now_s=now_s)
    decided = _bounded(decided, low, high)
    if decided.replicas != present:
        change = ReplicaChange(now_s, decided.replicas - present)
        history = replace(history, changes=(*history.changes, change))
    return decided, history


def _remembered(scaling: Autoscaling, history: History, newest: PastRecommendation) -> History:
    """Adds the newest entry and removes entries older than all windows and periods."""
    rules = (scaling.behavior.scale_up, scaling.behavior.scale_down)
    window_s = max(one.stabilization_window_seconds for one in rules)
    period_s = max(policy.period_seconds for one in rules for policy in one.policies)
    kept = (one for one in history.recommendations if one.at_s > newest.at_s - window_s)
    changes = (one for one in history.changes if one.at_s > newest.at_s - period_s)
    return History((*kept, newest), tuple(changes))


def _stabilised(
    scaling: Autoscaling, history: History, *, present: int, now_s: float
) -> Recommendation:
    """The present number, limited by the lowest recommendation of the scale-up window and the highest of the
    scale-down window.

    Equal recommendations: the newest gives the reason.
    """
    newest = history.recommendations[-1]

    def within(window_s: int) -> list[Recommendation]:
        past = history.recommendations[:-1]
        found = [one.recommendation for one in past if one.at_s > now_s - window_s]
        return [newest.recommendation, *reversed(found)]

    up = within(scaling.behavior.scale_up.stabilization_window_seconds)
    down = within(scaling.behavior.scale_down.stabilization_window_seconds)
    lowest = min(up, key=lambda recommendation: recommendation.replicas)
    highest = max(down, key=lambda recommendation: recommendation.replicas)
    if present < lowest.replicas:
        return lowest
    if present > highest.replicas:
        return highest
    # The number stays: it is recommended, or the windows disagree on the direction.
    same = next(
        (recommendation for recommendation in down if recommendation.replicas == present), None
    )
    return same or Recommendation(present, reasons.STABILIZING)


def _limited(
    scaling: Autoscaling,
    history: History,
    recommendation: Recommendation,
    *,
    present: int,
    now_s: float,
) -> Recommendation:
    """No further than the policies allow."""
    wanted, behavior = recommendation.replicas, scaling.behavior
    if wanted > present:
        # At least 1: no percentage of 0 replicas adds one.
        limit = max(1, present, _limit(behavior.scale_up, history, present, now_s, sign=1))
        exceeds = wanted > limit
    else:
        limit = min(present, _limit(behavior.scale_down, history, present, now_s, sign=-1))
        exceeds = wanted < limit
    return Recommendation(limit, reasons.RATE_LIMITED) if exceeds else recommendation


def _bounded(recommendation: Recommendation, low: int, high: int) -> Recommendation:
    if recommendation.replicas > high:
        return Recommendation(high, reasons.AT_MAXIMUM)
    if recommendation.replicas < low:
        return Recommendation(low, reasons.AT_MINIMUM)
    return recommendation


def _limit(
    rules: ScaleUpRules | ScaleDownRules, history: History, present: int, now_s: float, *, sign: int
) -> int:
    """How many the policies allow; `sign` is 1 to add replicas and -1 to remove some."""
    if rules.select_policy is SelectPolicy.DISABLED:
        return present
    allowed = []
    for policy in rules.policies:
        before = _before(history, present, policy, now_s)
        change = sign * policy.value
        percent = before * (100 + change) / 100
        # Added ones are rounded up: else a small fleet would never grow. Removed ones are cut off, as an int is in Go:
        # also towards 0 where a policy takes more than all.
        rounded = ceil(percent) if sign > 0 else int(percent)
        by_percent = policy.type is ScalingPolicyType.PERCENT
        allowed.append(rounded if by_percent else before + change)
    # Max selects the policy that changes most, which leaves the fewest where replicas are removed.
    most = (rules.select_policy is SelectPolicy.MAX) is (sign > 0)
    return max(allowed) if most else min(allowed)


def _before(history: History, present: int, policy: ScalingPolicy, now_s: float) -> int:
    """Number of replicas when the policy's period began."""
    changes = (one.by for one in history.changes if one.at_s > now_s - policy.period_seconds)
    return present - sum(changes)


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
    """Why the number was chosen: a word of `reasons`, for `status.scaling`."""
    active: bool
    note: Note


@dataclass(frozen=True, slots=True)
class ScalerState:
    """State that the next step needs."""

    replicas: int
    history: History = field(default_factory=History)
    ready: tuple[tuple[float, int], ...] = ()
    """(time, replicas that took requests) of recent steps, oldest first."""


def started(replicas: int, *, now_s: float) -> ScalerState:
    """State at a start. The replicas that exist count as recommended, as in autoscaling/v2."""
    first = PastRecommendation(now_s, Recommendation(replicas, reasons.STABILIZING))
    return ScalerState(replicas, History((first,)))


def step(
    state: ScalerState, terms: Terms, seen: Measurements | Note, *, now_s: float
) -> tuple[ScalerState, Decision]:
    """One set of measurements."""
    scaling = terms.scaling
    earlier = (one for one in state.ready if one[0] > now_s - LATENCY_S - LONGEST_S)
    ready = (*earlier, (now_s, terms.ready))
    if isinstance(seen, Note):
        recommendation, note = Recommendation(state.replicas, reasons.STABILIZING), seen
    else:
        since_s = now_s - LATENCY_S - min(seen.longest_s, LONGEST_S)
        fewest = min(count for at_s, count in ready if at_s > since_s)
        fleet = Fleet(wanted=state.replicas, ready=fewest)
        recommendation = recommend(scaling, seen, terms.parts, fleet)
        note = _note(scaling, recommendation)
    if terms.activation and recommendation.replicas == 0:
        recommendation = Recommendation(1, reasons.ACTIVATED)
    decided, history = apply_behavior(
        scaling, state.history, recommendation, present=state.replicas, now_s=now_s
    )
    if terms.activation and decided.replicas == 0:  # requests must not wait for a window
        decided = Recommendation(1, reasons.ACTIVATED)
    if isinstance(seen, Note) and decided.replicas == state.replicas:
        # Without measurements, that is the reason to hold.
        decided = Recommendation(state.replicas, note.reason)
    decision = Decision(decided.replicas, decided.reason, not isinstance(seen, Note), note)
    return ScalerState(decided.replicas, history, ready), decision


def _note(scaling: Autoscaling, recommendation: Recommendation) -> Note:
    """Messages without changing values, which metrics report."""
    if recommendation.reason == reasons.LEARNING:
        return Note(
            reasons.LEARNING,
            "The capacity of a replica is unknown: requests have not waited at a replica for 15 s yet. Demand alone adds no replicas. "
            "Set targets.servicePerReplica to configure it.",
        )
    if recommendation.replicas > scaling.max_replicas:
        return Note(reasons.AT_MAXIMUM, "The recommended number of replicas exceeds maxReplicas.")
    return Note(reasons.SCALING, "The number of replicas follows demand.")


@dataclass(frozen=True, slots=True)
class Scaling:
    """The number of replicas, and the message of ScalingActive."""

    replicas: int
    note: Note
    decision: Decision | None = None
    """Decision of the built-in scaler, if the service uses it."""


def foreign_scalers(
    service: str, scalers: Iterable[Object], target_ref: ScaleTarget | None = None
) -> Iterator[Note]:
    """Autoscalers that target a Deployment of the service, or the target of its own scaling.

    The operator reverts each change of a Deployment; of a target that both scale, each reverts the other's changes.
    """
    ours = {engine_name(service), router_name(service)}
    for item in sorted(scalers, key=lambda item: str(item["metadata"]["name"])):
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        named = (target.get("kind"), target.get("name"))
        if target_ref is not None and named == (target_ref.kind, target_ref.name):
            yield Note(
                reasons.FOREIGN_SCALER,
                f"HorizontalPodAutoscaler {item['metadata']['name']} scales {target_ref.kind} {target_ref.name} too. "
                "Remove it, or remove spec.autoscaling.",
            )
        if target.get("kind") == "Deployment" and target.get("name") in ours:
            yield Note(
                reasons.FOREIGN_SCALER,
                f"HorizontalPodAutoscaler {item['metadata']['name']} scales Deployment {target['name']}, and each "
                f"change is reverted. Point it at FairInferenceService {service}.",
            )


def decide(spec: ServiceSpec | None, decision: Decision | None = None) -> Scaling:
    """Number of replicas, from the spec and from what the scaler decided where the spec has one."""
    if spec is None:
        return Scaling(0, Note(reasons.INVALID, "No valid spec is in use."))
    if spec.autoscaling is None:
        owner = "engine.replicas or the owner of /scale"
        if spec.engine.pods_of_others is not None:
            owner = "the owner of the engines"
        message = f"spec.autoscaling is not set: {owner} sets the number."
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
