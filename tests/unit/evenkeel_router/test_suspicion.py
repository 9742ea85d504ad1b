"""What outcomes of requests show of a replica (R20)."""

from __future__ import annotations

import random

import pytest
from evenkeel_router.fleet.suspicion import (
    LONGEST_S,
    RETURNED,
    Evidence,
    FirstTokenTimes,
    Standing,
    most_suspects,
)

FAILS = Evidence("lost", "it fails")


def failures_until_suspect(standing: Standing, share_of_others: float, most: int = 1000) -> int:
    """How many failures in a row make it suspect; `most` if none do."""
    return next((n for n in range(1, most) if standing.failed(share_of_others)), most)


@pytest.mark.parametrize(
    ("share_of_others", "failures"), [(0.0, 2), (0.05, 2), (0.1, 3), (0.3, 9), (0.5, 1000), (1.0, 1000)]
)  # fmt: skip
def test_failures_are_measured_against_those_of_other_replicas(
    share_of_others: float, failures: int
) -> None:
    assert failures_until_suspect(Standing(), share_of_others) == failures


@pytest.mark.parametrize(("share", "is_suspect"), [(0.002, False), (0.01, False), (0.4, True), (0.7, True)])  # fmt: skip
def test_a_share_of_failures_shows_in_the_long_run(share: float, is_suspect: bool) -> None:
    rng, standing, found = random.Random(7), Standing(), False
    for _ in range(300):
        if rng.random() < share:
            found = found or standing.failed(0.0)
        else:
            standing.answers += 1
    assert found is is_suspect


def test_good_answers_of_long_ago_excuse_no_failure() -> None:
    standing = Standing()
    standing.answers = 1_000_000
    assert failures_until_suspect(standing, 0.0) == 2


def test_rests_double_up_to_a_bound_and_end_with_a_probe() -> None:
    standing, now_s = Standing(1.0), 100.0
    for want_s in (1, 2, 4, 5, 5):
        assert standing.suspect(FAILS, now_s) == want_s
        assert not standing.wants_probe(now_s + want_s - 0.1)
        now_s += want_s
        assert standing.wants_probe(now_s)
    standing.probing = True
    assert not standing.wants_probe(now_s)


def test_a_replica_that_failed_for_days_is_probed_as_often() -> None:
    standing = Standing(1.0)
    assert all(standing.suspect(FAILS, n * LONGEST_S) <= LONGEST_S for n in range(2000))


def test_a_replica_that_answers_its_probe_returns_slowly() -> None:
    standing = Standing()
    standing.suspect(FAILS, 0.0)
    allowed = []
    while standing.allowed is not None:
        standing.begun()
        allowed.append(standing.allowed)
    assert allowed == [*range(2, RETURNED), None]
    assert standing.evidence is None


def test_one_failure_on_its_way_back_makes_a_replica_suspect_again() -> None:
    standing = Standing()
    standing.suspect(FAILS, 0.0)
    standing.begun()
    assert standing.failed(0.9)


def test_half_of_a_fleet_may_be_suspect_and_never_all_of_it() -> None:
    assert [most_suspects(replicas) for replicas in range(1, 9)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_first_tokens_are_learnt_alike_together_and_one_by_one() -> None:
    seen = [(0.1, 10), (0.5, 900), (0.2, 40), (3.0, 10)]
    together, one_by_one = FirstTokenTimes(), FirstTokenTimes()
    together.learn(seen)
    for one in seen:
        one_by_one.learn([one])
    assert together == one_by_one
    assert together.count == len(seen)


def test_first_tokens_are_overdue_by_their_own_distribution() -> None:
    times = FirstTokenTimes()
    times.learn([(1.0, 1000)] * 50)
    assert times.overdue_s(1000) == pytest.approx(1.0, abs=0.01)
    assert times.overdue_s(5000) == pytest.approx(5.0, abs=0.05)  # a longer prompt takes longer
    times.learn([(0.5, 1000), (1.5, 1000)] * 50)
    assert times.overdue_s(1000) == pytest.approx(1.0 + 4 * 0.5, abs=0.4)
