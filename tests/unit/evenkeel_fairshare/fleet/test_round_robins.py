"""Round-robin, per-client round-robin and least-loaded."""

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import (
    Dispatch,
    FleetPolicy,
    least_outstanding,
    next_after,
    replica_set,
)
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.fleet.per_client_round_robin import PerClientRoundRobin
from evenkeel_fairshare.fleet.registry import POLICIES, FleetPolicyConfig, make_policy
from evenkeel_fairshare.fleet.round_robin import RoundRobin

IDLE = [0] * 8


def sequence(policy: FleetPolicy, clients: str, slots: list[int]) -> list[int | None]:
    return [
        policy.select(Dispatch(client=client, input_tokens=1), replica_set(slots), IDLE)
        for client in clients
    ]


def test_round_robin_goes_round() -> None:
    assert sequence(RoundRobin(), "aabba", [0, 2, 5]) == [0, 2, 5, 0, 2]


def test_round_robin_goes_on_after_a_replica_left() -> None:
    policy = RoundRobin()
    assert sequence(policy, "aa", [0, 1, 2]) == [0, 1]
    assert sequence(policy, "aa", [0, 2]) == [2, 0]


def test_each_client_goes_round_on_its_own() -> None:
    assert sequence(PerClientRoundRobin(), "aabba", [0, 1, 2]) == [0, 1, 1, 2, 2]


def test_newcomers_of_one_request_each_spread_over_the_fleet() -> None:
    assert sequence(PerClientRoundRobin(), "abcdef", [0, 1, 2]) == [0, 1, 2, 0, 1, 2]


def test_the_client_longest_unseen_is_forgotten_first() -> None:
    policy = PerClientRoundRobin(max_clients=2)
    assert sequence(policy, "aba", [0, 1, 2]) == [0, 1, 1]
    assert sequence(policy, "c", [0, 1, 2]) == [2]  # b is forgotten, a is not
    assert sequence(policy, "a", [0, 1, 2]) == [2]
    assert sequence(policy, "b", [0, 1, 2]) == [0]  # as a newcomer, after c


@pytest.mark.parametrize(
    ("outstanding", "want_slot"),
    [([3, 1, 2], 1), ([1, 1, 1], 0), ([2, 1, 1], 1), ([0, 0, 5], 0)],
)
def test_least_loaded_takes_the_lowest_of_the_least(outstanding: list[int], want_slot: int) -> None:
    request = Dispatch(client="a", input_tokens=1)
    assert LeastLoaded().select(request, replica_set([0, 1, 2]), outstanding) == want_slot


def test_least_loaded_looks_at_routable_replicas_only() -> None:
    request = Dispatch(client="a", input_tokens=1)
    assert LeastLoaded().select(request, replica_set([1, 3]), [0, 9, 0, 8]) == 3


def test_asking_for_one_of_none_is_an_error_and_not_a_slot() -> None:
    want = "^no replica to choose from; ask only with a routable one$"
    with pytest.raises(ValueError, match=want):
        least_outstanding(replica_set([]), IDLE)
    with pytest.raises(ValueError, match=want):
        next_after(replica_set([]), 1)


def test_a_registered_policy_carries_its_name() -> None:
    for name in POLICIES:
        assert make_policy(name).name == name


def test_an_unknown_policy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'Random' is not one of RoundRobin, .*D2LPM"):
        make_policy("Random")


def test_options_reach_d2lpm() -> None:
    config = FleetPolicyConfig(
        worker_quantum=70.0, cost=LinearCost(input_weight=3.0), max_clients=1
    )
    policy = make_policy("D2LPM", config)
    policy.joined(0)
    for client in "ab":
        request = Dispatch(client=client, input_tokens=10)
        assert policy.select(request, replica_set([0]), IDLE) == 0
        policy.dispatched(request, 0)
    assert (policy.credit("a"), policy.credit("b")) == ({}, {0: 40.0})


def test_options_reach_per_client_round_robin() -> None:
    policy = make_policy("PerClientRoundRobin", FleetPolicyConfig(max_clients=1))
    assert sequence(policy, "aba", [0, 1, 2]) == [0, 1, 2]  # each is a newcomer every time


def test_the_options_of_today_are_the_api_s_defaults() -> None:
    config = FleetPolicyConfig()
    assert (config.worker_quantum, config.max_clients) == (None, 10_000)
    assert config.cost == LinearCost(input_weight=1, output_weight=2)


def test_ten_thousand_pointers_are_remembered_by_default() -> None:
    policy = PerClientRoundRobin()
    first = [
        policy.select(Dispatch(str(n), 1), replica_set([0, 1, 2]), IDLE) for n in range(10_001)
    ]
    assert first[:4] == [0, 1, 2, 0]
    # the second client goes one further, and the first one, forgotten, starts where newcomers start
    assert sequence(policy, "1", [0, 1, 2]) == [2]
    assert sequence(policy, "0", [0, 1, 2]) == [2]


def test_one_pointer_can_be_remembered() -> None:
    assert sequence(PerClientRoundRobin(max_clients=1), "aab", [0, 1, 2]) == [0, 1, 1]


def test_per_client_round_robin_refuses_a_memory_of_zero() -> None:
    with pytest.raises(ValueError, match="max_clients is 0; it must be at least 1"):
        PerClientRoundRobin(max_clients=0)
