"""Preble's E2: exploit, explore, the window, evictions, rebalancing."""

from __future__ import annotations

from evenkeel_fairshare.fleet.contract import Dispatch, Usage, replica_set
from evenkeel_laboratory.policies.preble import REBALANCE_REQUESTS, WINDOW_S, PrebleE2
from evenkeel_simulator.engine.profiles import PROFILES

PROFILE = PROFILES["a10g-llama3.2-3b"]
OUTSTANDING = [0, 0, 0]


def policy_of(replicas: int = 2, *, kv_tokens: int | None = None) -> PrebleE2:
    policy = PrebleE2(profile=PROFILE, kv_tokens=kv_tokens)
    for slot in range(replicas):
        policy.joined(slot)
    return policy


def prompt(*parts: tuple[int, int]) -> Dispatch:
    """A request whose prompt is these (block, tokens)."""
    blocks, sizes = [block for block, _ in parts], [tokens for _, tokens in parts]
    return Dispatch("a", sum(sizes), blocks=blocks, block_tokens=sizes)


def send(policy: PrebleE2, request: Dispatch, *, among: list[int]) -> int:
    slot = policy.select(request, replica_set(among), OUTSTANDING)
    assert slot is not None
    policy.dispatched(request, slot)
    return slot


def end(policy: PrebleE2, request: Dispatch, slot: int, *, ttft_s: float = 0.1) -> None:
    policy.timed(slot, ttft_s=ttft_s, itl_s=0.02)
    policy.finished(request, slot, Usage(request.input_tokens, 0, 10))


def test_mostly_cached_prompts_go_to_their_cache_and_others_to_least_load():
    policy = policy_of()
    article = prompt((1, 3000), (2, 50))
    assert send(policy, article, among=[0, 1]) == 0
    assert send(policy, prompt((1, 3000), (3, 50)), among=[0, 1]) == 0, "exploit"
    assert send(policy, prompt((1, 3000), (4, 4000)), among=[0, 1]) == 1, (
        "new part is longer: explore"
    )
    assert send(policy, prompt((1, 3000), (5, 50)), among=[1]) == 1, "the holder is not routable"


def test_of_several_holders_the_one_with_less_load_serves():
    policy = policy_of()
    for slot in (0, 1):
        end(policy, request := prompt((1, 3000)), send(policy, request, among=[slot]))
    for _ in range(3):
        send(policy, prompt((9, 10)), among=[0])
    assert send(policy, prompt((1, 3000), (2, 10)), among=[0, 1]) == 1


def test_a_prefix_that_has_left_the_window_is_forgotten():
    policy = policy_of()
    old = prompt((1, 3000))
    end(policy, old, send(policy, old, among=[1]))
    assert send(policy, prompt((1, 3000), (2, 50)), among=[0, 1]) == 1
    policy.facts.now_s = WINDOW_S + 1
    assert policy.select(prompt((1, 3000), (3, 50)), replica_set([0, 1]), OUTSTANDING) == 0
    assert policy._nodes == {}
    assert all(abs(cost) < 1e-6 for cost in policy._prefills_ms.values())


def test_a_replica_that_would_have_to_evict_a_used_prefix_is_dearer():
    policy = policy_of(kv_tokens=4000)
    for slot, tokens in ((0, 3500), (1, 900)):
        end(policy, request := prompt((slot, tokens)), send(policy, request, among=[slot]))
    for _ in range(2):  # the prefills of the window cost as much at both
        end(policy, request := prompt((9, 2600)), send(policy, request, among=[1]))
    assert policy._eviction_ms(0, prompt((7, 1000))) > 0
    assert policy._eviction_ms(1, prompt((7, 100))) == 0


def test_beyond_its_pool_a_replica_loses_the_least_recently_used_prefix():
    policy = policy_of(1, kv_tokens=5000)
    for block in (1, 2):
        send(policy, prompt((block, 2400)), among=[0])
    send(policy, prompt((1, 2400)), among=[0])
    send(policy, prompt((3, 2400)), among=[0])
    assert policy._nodes[2].slots == 0
    assert policy._nodes[1].slots and policy._nodes[3].slots


def test_large_prefixes_move_from_the_most_to_the_least_loaded_replica():
    policy = policy_of()
    for number in range(REBALANCE_REQUESTS * 2 - 1):
        request = prompt((number % 10, 3000), (100 + number, 10))
        end(policy, request, send(policy, request, among=[0]))
    assert all(node.slots == 1 for node in policy._nodes.values())
    request = prompt((0, 3000), (999, 10))
    send(policy, request, among=[0])
    moved = {key for key, node in policy._nodes.items() if node.slots >> 1 & 1}
    large = moved & set(range(10))
    assert 0 < len(large) < 10
    assert {number % 10 for number in range(99) if 100 + number in moved} == large, "with all below"
    loads = sorted(policy._prefills_ms.values())
    assert loads[1] < 1.5 * loads[0] or loads[1] - loads[0] < 3000


def test_the_only_large_prefix_of_a_replica_that_has_slowed_is_copied():
    policy = policy_of()
    for number in range(REBALANCE_REQUESTS * 2):
        policy.facts.now_s = number * WINDOW_S / 100
        request = prompt((1, 3000), (100 + number, 10))
        slot = send(policy, request, among=[0])
        if number < REBALANCE_REQUESTS * 2 - 1:
            end(policy, request, slot, ttft_s=0.1 if number < 50 else 0.5)
    assert policy._nodes[1].slots == 0b11


def test_a_departed_replica_holds_nothing():
    policy = policy_of()
    send(policy, prompt((1, 3000)), among=[1])
    policy.left(1)
    assert policy._nodes[1].slots == 0
    policy.joined(1)
    assert policy._prefills_ms[1] == 0.0
