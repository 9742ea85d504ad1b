"""Replicas that are empty while requests wait at another (R2)."""

from __future__ import annotations

from evenkeel_fairshare.idle import NO_LOAD, IdleReplicas, ReplicaLoad

EMPTY = ReplicaLoad(100.0, waits=False, runs=False)
FULL = ReplicaLoad(100.0, waits=True, runs=True)


def idle_s(*loads: dict[str, ReplicaLoad], able: str = "ab") -> list[float]:
    """A report each two seconds."""
    watch = IdleReplicas()
    return [watch.observe(one, 2.0 * n, able=able) for n, one in enumerate(loads)]


def test_an_empty_replica_is_idle_once_others_waited_for_five_seconds():
    assert idle_s(*[{"a": FULL, "b": EMPTY}] * 5) == [0, 0, 0, 2, 2]


def test_a_wait_that_ends_begins_anew():
    busy = ReplicaLoad(100.0, waits=False, runs=True)
    pauses = (
        [{"a": FULL, "b": EMPTY}] * 3 + [{"a": busy, "b": EMPTY}] + [{"a": FULL, "b": EMPTY}] * 3
    )
    assert idle_s(*pauses) == [0] * 7


def test_a_replica_that_runs_or_served_something_is_not_idle():
    running = ReplicaLoad(100.0, waits=False, runs=True)
    assert idle_s(*[{"a": FULL, "b": running}] * 5) == [0] * 5
    served = [{"a": FULL, "b": EMPTY._replace(service=float(n))} for n in range(5)]
    assert idle_s(*served) == [0] * 5


def test_a_replica_that_may_get_no_requests_is_not_idle():
    assert idle_s(*[{"a": FULL, "b": EMPTY}] * 5, able="a") == [0] * 5


def test_a_wait_at_a_draining_replica_counts():
    assert idle_s(*[{"a": FULL, "b": EMPTY}] * 5, able="b") == [0, 0, 0, 2, 2]


def test_a_replica_that_is_new_is_idle_from_its_second_report():
    seen = [{"a": FULL}] * 4 + [{"a": FULL, "b": EMPTY}] * 2
    assert idle_s(*seen) == [0, 0, 0, 0, 0, 2]


def test_the_accounts_of_several_routers_at_one_replica_are_one_load():
    waits = ReplicaLoad(30.0, waits=True, runs=False)
    assert waits.beside(EMPTY) == ReplicaLoad(130.0, waits=True, runs=False)
    assert NO_LOAD.beside(FULL) == FULL
