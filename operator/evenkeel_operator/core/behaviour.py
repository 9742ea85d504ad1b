"""From wishes to a number that does not flap: `spec.autoscaling.behavior`, exactly as autoscaling/v2 has it. Pure.

Place in the flow: wish → **behaviour** → decision. First the stabilisation windows (growing: the lowest wish of the
window, shrinking: the highest), then what the policies allow to change within their periods, then the bounds.

The rules, their order and their rounding are those of kubernetes' pkg/controller/podautoscaler/horizontal.go:
stabilizeRecommendationWithBehaviors, convertDesiredReplicasWithBehaviorRate. Who leaves zero is let go to one whatever
the policies say, where the HorizontalPodAutoscaler does nothing at all.
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
from evenkeel_operator.core.wish import Wish


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A wish that was had."""

    at_s: float
    wish: Wish


@dataclass(frozen=True, slots=True)
class Change:
    """The number changed."""

    at_s: float
    by: int
    """Above 0: more."""


@dataclass(frozen=True, slots=True)
class History:
    """What windows and periods look back at, oldest first."""

    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()


def behave(
    scaling: Autoscaling, history: History, wish: Wish, *, present: int, now_s: float
) -> tuple[Wish, History]:
    """The number to go to, with the reason of the wish that it follows, and the history with both in it."""
    low, high = scaling.min_replicas, scaling.max_replicas
    history = _remembered(scaling, history, Recommendation(now_s, wish))
    if present > high:
        decided = Wish(high, reasons.AT_MAXIMUM)
    elif present < low:
        decided = Wish(low, reasons.AT_MINIMUM)
    else:
        steady = _stabilised(scaling, history, present=present, now_s=now_s)
        decided = _bounded(
            _limited(scaling, history, steady, present=present, now_s=now_s), low, high
        )
    if decided.replicas != present:
        change = Change(now_s, decided.replicas - present)
        history = replace(history, changes=(*history.changes, change))
    return decided, history


def _remembered(scaling: Autoscaling, history: History, newest: Recommendation) -> History:
    """With the newest, without what no window or period reaches any more."""
    rules = (scaling.behavior.scale_up, scaling.behavior.scale_down)
    window_s = max(one.stabilization_window_seconds for one in rules)
    period_s = max(policy.period_seconds for one in rules for policy in one.policies)
    kept = (one for one in history.recommendations if one.at_s > newest.at_s - window_s)
    changes = (one for one in history.changes if one.at_s > newest.at_s - period_s)
    return History((*kept, newest), tuple(changes))


def _stabilised(scaling: Autoscaling, history: History, *, present: int, now_s: float) -> Wish:
    """The present number, brought within the lowest wish of the one window and the highest of the other.

    Equal wishes: the newest gives the reason.
    """
    newest = history.recommendations[-1]

    def within(window_s: int) -> list[Wish]:
        past = history.recommendations[:-1]
        found = [one.wish for one in past if one.at_s > now_s - window_s]
        return [newest.wish, *reversed(found)]

    up = within(scaling.behavior.scale_up.stabilization_window_seconds)
    down = within(scaling.behavior.scale_down.stabilization_window_seconds)
    lowest = min(up, key=lambda wish: wish.replicas)
    highest = max(down, key=lambda wish: wish.replicas)
    if present < lowest.replicas:
        return lowest
    if present > highest.replicas:
        return highest
    # It stays: as somebody wished, or since the windows differ on which way to go.
    same = next((wish for wish in down if wish.replicas == present), None)
    return same or Wish(present, reasons.STABILIZING)


def _limited(
    scaling: Autoscaling, history: History, wish: Wish, *, present: int, now_s: float
) -> Wish:
    """No further than the policies allow."""
    if wish.replicas > present:
        limit = max(present, _highest(scaling.behavior.scale_up, history, present, now_s))
        limit = max(1, limit)
        return wish if wish.replicas <= limit else Wish(limit, reasons.RATE_LIMITED)
    if wish.replicas < present:
        limit = min(present, _lowest(scaling.behavior.scale_down, history, present, now_s))
        return wish if wish.replicas >= limit else Wish(limit, reasons.RATE_LIMITED)
    return wish


def _bounded(wish: Wish, low: int, high: int) -> Wish:
    if wish.replicas > high:
        return Wish(high, reasons.AT_MAXIMUM)
    if wish.replicas < low:
        return Wish(low, reasons.AT_MINIMUM)
    return wish


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
        # Cut off, as an int is in Go: also towards 0 where a policy takes more than all.
        percent = int(before * (100 - policy.value) / 100)
        pods = before - policy.value
        allowed.append(percent if policy.type is ScalingPolicyType.PERCENT else pods)
    # The policy that changes most is the one that leaves least.
    return _selected(allowed, most=rules.select_policy is not SelectPolicy.MAX)


def _selected(allowed: Iterable[int], *, most: bool) -> int:
    return max(allowed) if most else min(allowed)


def _before(history: History, present: int, policy: ScalingPolicy, now_s: float) -> int:
    """How many there were when the policy's period began."""
    changes = (one.by for one in history.changes if one.at_s > now_s - policy.period_seconds)
    return present - sum(changes)
