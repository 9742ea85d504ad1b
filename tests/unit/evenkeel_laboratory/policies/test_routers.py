"""The rules of Dynamo's router, of SGLang's and of llm-d's scheduler."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, replica_set
from evenkeel_laboratory.policies.routers import CacheAware, PrefixQueueScorer, SglangRouter

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


BOTH = replica_set([0, 1])


def question(matched_tokens: int, holders: int = 0b01) -> Dispatch:
    return Dispatch("c", 1000, longest=ReplicaSet(holders), matched_tokens=matched_tokens)


def fleet() -> CacheAware:
    policy = CacheAware()
    for slot in (0, 1):
        policy.joined(slot)
    return policy


def test_a_request_follows_its_prefix_until_the_backlog_exceeds_the_overlap() -> None:
    policy, chosen = fleet(), []
    for _ in range(9):
        request = question(700)
        chosen.append(policy.select(request, BOTH, [0, 0]))
        policy.dispatched(request, chosen[-1])
    # Three at 300 tokens each are worth less than 1000 anew; the fourth would make them 1200.
    assert chosen[:4] == [0, 0, 0, 1]
    assert 2 < chosen.count(0) < 9


def test_the_end_of_a_request_takes_its_load_away() -> None:
    policy = fleet()
    first = question(0, holders=0)
    assert policy.select(first, BOTH, [0, 0]) == 0
    policy.dispatched(first, 0)
    assert policy.select(first, BOTH, [0, 0]) == 1
    policy.finished(first, 0, None)
    assert policy.select(first, BOTH, [0, 0]) == 0


def test_among_equals_the_replica_with_fewer_requests_is_chosen() -> None:
    assert fleet().select(question(0, holders=0), BOTH, [2, 1]) == 1
