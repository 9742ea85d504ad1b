"""The rules of SGLang's router and of llm-d's scheduler."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, replica_set
from evenkeel_simulator.laboratory.routers import PrefixQueueScorer, SglangRouter

ALL = replica_set([0, 1, 2])


def joined(policy: FleetPolicy) -> FleetPolicy:
    for slot in range(3):
        policy.joined(slot)
    return policy


def prompt(matched_tokens: int = 0, *holders: int) -> Dispatch:
    return Dispatch("c", 1000, longest=replica_set(holders), matched_tokens=matched_tokens)


def send(policy: FleetPolicy, request: Dispatch, outstanding: list[int]) -> int:
    slot = policy.select(request, ALL, outstanding)
    assert slot is not None
    policy.dispatched(request, slot)
    return slot


def test_sglang_s_router_follows_a_match_of_more_than_three_tenths() -> None:
    policy = joined(SglangRouter())
    assert send(policy, prompt(), [9, 9, 9]) == 0
    # A shorter match counts as none: the smallest tree.
    assert send(policy, prompt(300, 0), [9, 9, 9]) == 1
    assert send(policy, prompt(301, 0), [9, 9, 9]) == 0
    assert send(policy, prompt(900, 0, 1), [9, 8, 9]) == 1


def test_sglang_s_router_chooses_the_smallest_tree_without_a_match() -> None:
    policy = joined(SglangRouter())
    assert [send(policy, prompt(), [0, 5, 9]) for _ in range(4)] == [0, 1, 2, 0]
    policy.left(0)
    policy.joined(0)  # a new replica has an empty tree
    assert send(policy, prompt(), [0, 5, 9]) == 0


@pytest.mark.parametrize(
    ("outstanding", "want"),
    [([100, 40, 36], 0), ([101, 40, 36], 2), ([200, 140, 134], 0)],
    ids=["differ by 64", "differ by 65", "less than 1.5 times"],
)
def test_sglang_s_router_balances_beyond_both_thresholds(outstanding: list[int], want: int) -> None:
    assert send(joined(SglangRouter()), prompt(900, 0), outstanding) == want


@pytest.mark.parametrize(
    ("matched_tokens", "outstanding", "want"),
    [
        (700, [10, 0, 5], 0),  # 3 · 0.7 against 2
        (600, [10, 0, 5], 1),  # 3 · 0.6 against 2
        (100, [4, 4, 4], 0),  # equal queues: the match decides
        (0, [3, 2, 1], 2),
    ],
)
def test_the_scorer_weighs_prefix_three_against_queue_two(
    matched_tokens: int, outstanding: list[int], want: int
) -> None:
    assert send(joined(PrefixQueueScorer()), prompt(matched_tokens, 0), outstanding) == want
