"""Limit recommendations by `spec.autoscaling.behavior`, as autoscaling/v2 does. Pure.

First the stabilisation windows (growing: the lowest recommendation of the window, shrinking: the highest), then what
the policies allow within their periods, then the bounds.

Rules, order and rounding are those of kubernetes' pkg/controller/podautoscaler/horizontal.go:
stabilizeRecommendationWithBehaviors, convertDesiredReplicasWithBehaviorRate. One difference: from zero, one replica is
always allowed, where the HorizontalPodAutoscaler does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from evenkeel_contract.spec.scaling import (
    Autoscaling,
    ScaleDownRules,
    ScaleUpRules,
    ScalingPolicy,
    ScalingPolicyType,
    SelectPolicy,
)

from evenkeel_operator.core import reasons
from evenkeel_operator.core.recommendation import Recommendation


@dataclass(frozen=True, slots=True)
class PastRecommendation:
    """A recommendation of an earlier step."""

    at_s: float
    recommendation: Recommendation


@dataclass(frozen=True, slots=True)
class Change:
    """The number changed."""

    at_s: float
    by: int
    """Above 0: added replicas."""


@dataclass(frozen=True, slots=True)
class History:
    """Earlier recommendations and changes that windows and periods use, oldest first."""

    recommendations: tuple[PastRecommendation, ...] = ()
    changes: tuple[Change, ...] = ()


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
    if present > high:
        decided = Recommendation(high, reasons.AT_MAXIMUM)
    elif present < low:
        decided = Recommendation(low, reasons.AT_MINIMUM)
    else:
        steady = _stabilised(scaling, history, present=present, now_s=now_s)
        decided = _bounded(
            _limited(scaling, history, steady, present=present, now_s=now_s), low, high
        )
    if decided.replicas != present:
        change = Change(now_s, decided.replicas - present)
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
    if recommendation.replicas > present:
        limit = max(present, _highest(scaling.behavior.scale_up, history, present, now_s))
        limit = max(1, limit)
        return (
            recommendation
            if recommendation.replicas <= limit
            else Recommendation(limit, reasons.RATE_LIMITED)
        )
    if recommendation.replicas < present:
        limit = min(present, _lowest(scaling.behavior.scale_down, history, present, now_s))
        return (
            recommendation
            if recommendation.replicas >= limit
            else Recommendation(limit, reasons.RATE_LIMITED)
        )
    return recommendation


def _bounded(recommendation: Recommendation, low: int, high: int) -> Recommendation:
    if recommendation.replicas > high:
        return Recommendation(high, reasons.AT_MAXIMUM)
    if recommendation.replicas < low:
        return Recommendation(low, reasons.AT_MINIMUM)
    return recommendation


def _highest(rules: ScaleUpRules, history: History, present: int, now_s: float) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return present
    allowed = []
    for policy in rules.policies:
        before = _before(history, present, policy, now_s)
        # Rounded up: else a small fleet would never grow.
        percent = ceil(before * (100 + policy.value) / 100)
        pods = before + policy.value
        allowed.append(percent if policy.type is ScalingPolicyType.PERCENT else pods)
    return _selected(allowed, most=rules.select_policy is SelectPolicy.MAX)


def _lowest(rules: ScaleDownRules, history: History, present: int, now_s: float) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return present
    allowed = []
    for policy in rules.policies:
        before = _before(history, present, policy, now_s)
        # Truncated like an int in Go, also towards 0 if a policy removes more than all replicas.
        percent = int(before * (100 - policy.value) / 100)
        pods = before - policy.value
        allowed.append(percent if policy.type is ScalingPolicyType.PERCENT else pods)
    # The policy that changes most is the one that leaves least.
    return _selected(allowed, most=rules.select_policy is not SelectPolicy.MAX)


def _selected(allowed: Iterable[int], *, most: bool) -> int:
    return max(allowed) if most else min(allowed)


def _before(history: History, present: int, policy: ScalingPolicy, now_s: float) -> int:
    """Number of replicas when the policy's period began."""
    changes = (one.by for one in history.changes if one.at_s > now_s - policy.period_seconds)
    return present - sum(changes)
