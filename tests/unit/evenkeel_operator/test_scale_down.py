"""Who leaves on a scale-down, when the Deployment may shrink, and whose gate is opened."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from evenkeel_contract.adminstate import ReplicasState
from evenkeel_operator.core.rotation import (
    DRAIN_PATIENCE,
    Loss,
    ScaleDownStep,
    choose_candidates,
    condition,
    look_again_s,
    losses,
    marked,
    next_step,
    openings,
    overdue,
)
from evenkeel_operator.core.workload import EnginePod, Mark, engine_of, engines_of

from tests.support.fake_routers import answer, replica

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LATELY = NOW - timedelta(seconds=1)


def engine(name: str, **changes: Any) -> EnginePod:
    given: dict[str, Any] = {"node": "n1", "template": "t", "running": True, "ready": True}
    return EnginePod(name=name, uid=f"uid-{name}", **(given | changes))


def four(**changes: Any) -> tuple[EnginePod, ...]:
    return tuple(engine(name, **changes) for name in "abcd")


# The order.

ORDER: dict[str, tuple[EnginePod, dict[str, Loss]]] = {
    "without a node": (engine("x", node="", running=False, ready=False), {}),
    "not running": (engine("x", running=False, ready=False), {}),
    "not ready": (engine("x", ready=False), {"x": Loss(9, 9)}),
    "marked before": (engine("x", mark=Mark(LATELY)), {"x": Loss(9, 9)}),
    "drained by hand": (engine("x", drained_by_hand=True), {"x": Loss(9, 9)}),
    "on a cordoned node": (engine("x", node="n2"), {"x": Loss(9, 9)}),
    "with the least work": (engine("x"), {"a": Loss(2, 0), "b": Loss(3, 0), "x": Loss(1, 900)}),
    "with the smallest cache": (engine("x"), {"a": Loss(1, 8), "b": Loss(1, 9), "x": Loss(1, 7)}),
}


@pytest.mark.parametrize(("cheap", "known"), ORDER.values(), ids=ORDER)
def test_first_goes_one(cheap: EnginePod, known: dict[str, Loss]) -> None:
    engines = (engine("a"), engine("b"), cheap)
    assert choose_candidates(engines, 1, known=known, cordoned={"n2"}) == (cheap,)


def test_rules_that_come_first_outweigh_those_that_follow() -> None:
    ladder = [one for one, _ in ORDER.values()][:6]
    ladder = [replace(one, name=f"e{n}") for n, one in enumerate(reversed(ladder))]
    assert list(choose_candidates(ladder, 6, known={}, cordoned={"n2"})) == ladder[::-1]


def test_work_is_the_larger_of_sent_and_reported_and_caches_add_up() -> None:
    one = answer(replica("a", in_flight=2, running=3, blocks=10), replica("b", in_flight=1))
    two = answer(replica("a", in_flight=2, running=1, blocks=5))
    assert losses((one, None, two)) == {"a": Loss(4, 15), "b": Loss(1, 0)}
    assert losses((answer(replica("a", in_flight=1, running=7)),)) == {"a": Loss(7, 0)}


# The next_step.

IDLE = answer(*(replica(name, in_flight=n) for n, name in enumerate("dcba")))
"""d does nothing, c little, a most."""


def leave(
    engines: tuple[EnginePod, ...],
    *answers: ReplicasState | None,
    wanted: int = 2,
    shrinking: bool = True,
) -> ScaleDownStep:
    return next_step(
        engines, wanted=wanted, shrinking=shrinking, answers=answers, cordoned=(), now=NOW
    )


def names(engines: tuple[EnginePod, ...]) -> str:
    return "".join(sorted(engine.name for engine in engines))


def with_marks(
    marks: str, since: datetime | None = LATELY, kind: str = "t"
) -> tuple[EnginePod, ...]:
    return tuple(
        engine(name, template=kind, mark=Mark(since) if name in marks else None) for name in "abcd"
    )


def test_the_idlest_are_marked_first_and_the_deployment_waits() -> None:
    found = leave(four(), IDLE)
    assert (names(found.mark), found.unmark, found.wait) == ("cd", (), True)


def test_a_scale_down_without_routers_waits_for_one_look_at_its_marks() -> None:
    assert leave(four()).wait
    assert leave(with_marks("cd")) == ScaleDownStep()


LET_GO = answer(
    replica("a"),
    replica("c", unschedulable_reason="draining"),
    replica("d", unschedulable_reason="draining"),
)
HOLDS_ON = answer(replica("c", unschedulable_reason="draining"), replica("d"))
NEVER_KNEW = answer(replica("a"))
LEAVES = answer(
    replica("c", unschedulable_reason="terminating"), replica("d", unschedulable_reason="ended")
)
STARTS = answer(
    replica("c", unschedulable_reason="starting"), replica("d", unschedulable_reason="draining")
)
ANSWERS: dict[str, tuple[tuple[ReplicasState | None, ...], bool]] = {
    "all let go": ((LET_GO, LET_GO), False),
    "one holds on": ((LET_GO, HOLDS_ON), True),
    "one is silent": ((LET_GO, None), True),
    "one never knew them": ((LET_GO, NEVER_KNEW), False),
    "they leave already": ((LEAVES,), False),
    "one takes it for one that starts": ((STARTS,), True),
}


@pytest.mark.parametrize(("answers", "want"), ANSWERS.values(), ids=ANSWERS)
def test_the_deployment_waits_until_all_routers_have_let_go(
    answers: tuple[ReplicasState | None, ...], want: bool
) -> None:
    assert leave(with_marks("cd"), *answers) == ScaleDownStep(wait=want)


@pytest.mark.parametrize("since", [NOW - DRAIN_PATIENCE, NOW + timedelta(hours=1), None])
def test_it_does_not_wait_for_ever_nor_for_a_clock_that_is_ahead(since: datetime | None) -> None:
    assert leave(with_marks("cd", since), None) == ScaleDownStep()


def test_who_was_marked_stays_chosen_whatever_it_does_now() -> None:
    busy = answer(*(replica(name, in_flight=9, unschedulable_reason="draining") for name in "ab"))
    assert leave(with_marks("ab"), busy) == ScaleDownStep()


def test_one_that_stops_being_ready_takes_the_place_of_a_victim() -> None:
    engines = (engine("a", ready=False), *with_marks("cd")[1:])
    found = leave(engines, LET_GO)
    assert (names(found.mark), names(found.unmark), found.wait) == ("a", "d", True)


@pytest.mark.parametrize(("wanted", "unmarked"), [(2, ""), (3, "d"), (4, "cd"), (9, "cd")])
def test_a_scale_up_in_the_meantime_lets_victims_stay(wanted: int, unmarked: str) -> None:
    found = leave(with_marks("cd"), LET_GO, wanted=wanted, shrinking=wanted < 4)
    assert (found.mark, names(found.unmark), found.wait) == ((), unmarked, False)


def test_marks_stay_while_the_replica_set_is_about_to_remove_their_pods() -> None:
    assert leave(with_marks("cd"), shrinking=False) == ScaleDownStep()


def test_no_candidate_is_chosen_in_a_rollout_to_zero_or_for_a_foreign_number() -> None:
    rolling = (*four()[:2], *four(template="u")[2:])
    assert leave(rolling, IDLE) == ScaleDownStep()
    assert leave(four(), IDLE, wanted=0) == ScaleDownStep()
    assert leave(four(), IDLE, shrinking=False) == ScaleDownStep()
    assert leave(four()[:2], IDLE) == ScaleDownStep()  # two of them could never be made


# Pods.


def pod(name: str = "a", **parts: Any) -> dict[str, Any]:
    labels = {"evenkeel.dev/component": "engine", "pod-template-hash": "t"}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, **parts.pop("metadata", {})}
    conditions = parts.pop("conditions", {"Ready": "True", "ContainersReady": "True"})
    listed = [{"type": t, "status": s, "lastTransitionTime": "2026-01-31T11:59:50Z"} for t, s in conditions.items()]  # fmt: skip
    spec = {"nodeName": "n1", "readinessGates": [{"conditionType": "evenkeel.dev/InRotation"}]}
    return {
        "metadata": metadata,
        "spec": parts.pop("spec", spec),
        "status": {"phase": parts.pop("phase", "Running"), "conditions": listed},
    }


IN = "evenkeel.dev/InRotation"


def test_a_pod_is_read() -> None:
    found = engine_of(pod(conditions={"Ready": "True", "ContainersReady": "True", IN: "True"}))
    assert found == engine("a")
    assert found is not None
    assert not found.needs_a_look
    assert engine_of(pod(spec={}, phase="Pending", conditions={})) == engine(
        "a", node="", running=False, ready=False
    )
    leaving = pod(metadata={"deletionTimestamp": "2026-01-31T12:00:00Z"})
    other = pod(metadata={"labels": {"evenkeel.dev/component": "router"}})
    assert engines_of([leaving, other, pod(phase="Failed"), pod(phase="Succeeded")]) == ()
    assert [one.name for one in engines_of([pod("b"), pod("a")])] == ["a", "b"]


def test_a_replica_waits_at_the_gate_once_its_containers_are_ready() -> None:
    def waits(**conditions: str) -> bool:
        found = engine_of(pod(conditions=conditions))
        return found is not None and found.waits_since is not None

    assert waits(ContainersReady="True")
    assert waits(ContainersReady="True", **{IN: "False"})
    assert not waits(ContainersReady="False")
    assert not waits(ContainersReady="True", **{IN: "True"})
    bare = engine_of(pod(conditions={"ContainersReady": "True"}, spec={}))
    assert bare is not None
    assert bare.waits_since is None


def test_a_mark_is_read_back_and_a_foreign_mark_stays() -> None:
    def annotated(annotations: dict[str, str]) -> EnginePod:
        found = engine_of(pod(metadata={"annotations": annotations}, spec={}))
        assert found is not None
        return found

    assert annotated(marked(engine("a"), NOW)).mark == Mark(NOW)
    by_hand = annotated({"evenkeel.dev/drain": "please"})
    assert (by_hand.mark, by_hand.drained_by_hand) == (None, True)
    ours = marked(by_hand, NOW)
    assert "evenkeel.dev/drain" not in ours
    both = annotated({"evenkeel.dev/drain": "please", **ours})
    assert (both.mark, both.drained_by_hand) == (Mark(None), True)
    assert annotated({"evenkeel.dev/drain": "scale-down since dusk"}).mark == Mark(None)
    assert annotated({"controller.kubernetes.io/pod-deletion-cost": "-5"}).mark is None


# Gates.


def opened(waits_since: datetime, *answers: ReplicasState | None) -> list[tuple[str, str]]:
    engines = (engine("a", waits_since=waits_since), engine("b"))
    return [(engine.name, why.reason) for engine, why in openings(engines, answers, NOW)]


def test_a_gate_is_opened_once_a_router_sends_there() -> None:
    held = answer(replica("a", unschedulable_reason="draining"), replica("b"))
    assert opened(LATELY, held, answer(replica("a"))) == [("a", "InRotation")]
    assert opened(LATELY, held, None) == []


def test_a_gate_opens_where_no_router_answers_but_not_against_an_answer() -> None:
    long_ago = NOW - timedelta(minutes=1)
    assert opened(long_ago, None, None) == [("a", "NoRouter")]
    assert opened(long_ago) == [("a", "NoRouter")]
    assert opened(LATELY) == []
    assert opened(long_ago, None, answer(replica("b"))) == []


def test_routers_are_asked_ever_more_rarely_about_one_that_waits() -> None:
    def again_s(age_s: float) -> float | None:
        return look_again_s([engine("a", waits_since=NOW - timedelta(seconds=age_s))], NOW)

    assert [again_s(age_s) for age_s in (0, 10, 100, 86400)] == [1.0, 1.0, 10.0, 30.0]
    assert look_again_s([engine("a")], NOW) is None


def test_who_waits_for_five_minutes_is_named() -> None:
    young, old = (
        engine(n, waits_since=NOW - timedelta(minutes=m)) for n, m in (("a", 4), ("b", 5))
    )
    assert overdue([young, engine("c")], NOW) is None
    note = overdue([young, old], NOW)
    assert note is not None
    assert note.reason == "RolloutBlocked"
    assert "pods: b. GET" in note.message


def test_the_condition_says_why() -> None:
    ((_, why),) = openings([engine("a", waits_since=LATELY)], [answer(replica("a"))], NOW)
    assert condition(why, NOW) == {
        "type": "evenkeel.dev/InRotation",
        "status": "True",
        "reason": "InRotation",
        "message": "A router sends requests to this replica.",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
