"""Preble's priority groups: which group has a turn, and how many requests it admits."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_laboratory.policies.preble_priority import PreblePriority, group_of
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replica import admit, arrive, request


def of_group(group: int, number: int) -> Request:
    hits = 100 * group + 50 if group else 0
    return request(f"g{group}.{number}", extend=1000 - hits, matched=hits)


@pytest.mark.parametrize(
    ("matched", "want"),
    [(0, 0), (1, 0), (100, 0), (101, 1), (300, 2), (899, 8), (901, 9), (999, 9)],
)
def test_the_group_is_the_hit_rate_in_tenths_rounded_up(matched: int, want: int) -> None:
    assert group_of(request("one", extend=1000 - matched, matched=matched)) == want


def test_groups_have_turns_from_the_highest_to_the_lowest_and_again() -> None:
    policy = PreblePriority()
    for group in (0, 4, 9):
        arrive(policy, *(of_group(group, number) for number in range(120)))
    turns = [admit(policy) for _ in range(5)]
    assert [{name.split(".")[0] for name in turn} for turn in turns] == [
        {"g9"},
        {"g4"},
        {"g0"},
        {"g9"},
        {"g4"},
    ]
    assert [len(turn) for turn in turns] == [100, 50, 10, 20, 50]
    assert turns[0][:2] == ["g9.0", "g9.1"]  # first come, first served
    assert turns[4][0] == "g4.50"


def test_a_turn_that_memory_ends_continues() -> None:
    policy = PreblePriority()
    arrive(policy, of_group(2, 0), of_group(2, 1), of_group(9, 0))
    assert admit(policy) == ["g9.0"]
    assert admit(policy, room=1) == ["g2.0"]
    arrive(policy, of_group(9, 1))
    assert admit(policy) == ["g2.1"]
    assert admit(policy) == ["g9.1"]


def test_a_match_that_is_lost_changes_the_group() -> None:
    policy = PreblePriority()
    cold, warm = of_group(0, 0), of_group(9, 0)
    arrive(policy, cold, warm)
    warm.matched_tokens = 0
    assert admit(policy) == ["g0.0", "g9.0"]


@given(
    others=st.lists(st.integers(1, 9), min_size=200, max_size=400),
    before=st.integers(0, 60),
    room=st.integers(1, 30),
)
def test_a_cold_request_waits_for_a_bounded_number_of_others(
    others: list[int], before: int, room: int
) -> None:
    """Between two turns of a group at most Σ 10·(g + 1) - 10 = 540 requests of other groups are admitted."""
    policy = PreblePriority()
    for number, group in enumerate(others):
        arrive(policy, of_group(group, number))
    for _ in range(before):
        admit(policy, room=room)
    arrive(policy, request("cold", extend=1000))
    admitted: list[str] = []
    count = len(others)
    while "cold" not in admitted:
        admitted += admit(policy, room=room)
        while len(policy) < 300:  # warm requests keep arriving
            count += 1
            arrive(policy, of_group(1 + count % 9, count))
    assert len(admitted) - 1 <= 540
