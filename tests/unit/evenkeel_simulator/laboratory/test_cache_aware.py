from evenkeel_fairshare.fleet.contract import Dispatch, ReplicaSet, replica_set
from evenkeel_simulator.laboratory.cache_aware import CacheAware

BOTH = replica_set([0, 1])


def question(matched_tokens: int, holders: int = 0b01) -> Dispatch:
    return Dispatch("c", 1000, longest=ReplicaSet(holders), matched_tokens=matched_tokens)


def fleet() -> CacheAware:
    policy = CacheAware()
    for slot in (0, 1):
        policy.joined(slot)
    return policy


def test_a_request_goes_where_its_prefix_is_until_the_backlog_there_exceeds_the_overlap() -> None:
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
