"""The prefix index against a naive model: a set of (block, slot) pairs and a scan."""

from __future__ import annotations

from evenkeel_fairshare.fleet.contract import ReplicaSet, replica_set, slots_of
from evenkeel_fairshare.prefix.index import PrefixIndex, token_blocks
from evenkeel_fairshare.prefix.matching import Match
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

SLOTS = 5
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(
    lambda tokens: token_blocks(tokens, block_tokens=1)
)
slots = st.integers(0, SLOTS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), prompts, slots),
        st.tuples(st.just("insert"), prompts, slots),
        st.tuples(st.just("evict"), prompts, slots),
        st.tuples(st.just("evict-last"), prompts, slots),
        st.tuples(st.just("truncate"), prompts, slots),
        st.tuples(st.just("drop"), st.just([]), slots),
    ),
    max_size=40,
)
among = st.sets(slots).map(lambda some: replica_set(sorted(some)))


class Naive:
    """Every pair ever inserted and not taken back; no bound."""

    def __init__(self) -> None:
        self.pairs: set[tuple[int, int]] = set()

    def depth(self, prompt: list[int], slot: int) -> int:
        depth = 0
        while depth < len(prompt) and (prompt[depth], slot) in self.pairs:
            depth += 1
        return depth

    def match(self, prompt: list[int], asked: ReplicaSet) -> Match:
        depths = {slot: self.depth(prompt, slot) for slot in slots_of(asked)}
        longest = max(depths.values(), default=0)
        holders = [slot for slot, depth in depths.items() if depth == longest]
        return Match(longest, replica_set(holders if longest else []))

    def evict(self, blocks: list[int], slot: int) -> None:
        self.pairs -= {(block, slot) for block in blocks}


def apply(index: PrefixIndex, naive: Naive, operation: tuple[str, list[int], int]) -> None:
    verb, prompt, slot = operation
    if verb == "insert":
        index.insert(prompt, slot)
        naive.pairs |= {(block, slot) for block in prompt}
    elif verb == "evict":
        index.evict(prompt, slot)
        naive.evict(prompt, slot)
    elif verb == "evict-last":
        index.evict(prompt[-1:], slot)
        naive.evict(prompt[-1:], slot)
    elif verb == "truncate":
        index.truncate(prompt, len(prompt) // 2, slot)
        naive.evict(prompt[len(prompt) // 2 :], slot)
    else:
        index.drop(slot)
        naive.pairs = {pair for pair in naive.pairs if pair[1] != slot}


@examples(100)
@given(operations, st.lists(st.tuples(prompts, among), min_size=1, max_size=5))
def test_an_index_with_room_answers_as_the_naive_model(
    steps: list[tuple[str, list[int], int]], asked: list[tuple[list[int], ReplicaSet]]
) -> None:
    index, naive = PrefixIndex(), Naive()
    for step in steps:
        apply(index, naive, step)
        for slot in range(SLOTS):
            assert index.held(slot) == sum(held_by == slot for _, held_by in naive.pairs)
        for prompt, replicas in asked:
            assert index.match(prompt, replicas) == naive.match(prompt, replicas)


@examples(100)
@given(operations, st.lists(prompts, min_size=1, max_size=5), st.integers(1, 9))
def test_a_full_index_keeps_its_bound_and_claims_only_inserted_blocks(
    steps: list[tuple[str, list[int], int]], asked: list[list[int]], max_blocks: int
) -> None:
    index, naive = PrefixIndex(max_blocks=max_blocks), Naive()
    everyone = replica_set(range(SLOTS))
    ever = {block for _, prompt, _ in steps for block in prompt}
    for step in steps:
        apply(index, naive, step)
        assert len(index) <= max_blocks
        assert [index.held(slot) for slot in range(SLOTS)] == [
            sum(index.match([block], replica_set([slot])).blocks for block in ever)
            for slot in range(SLOTS)
        ]
        for prompt in asked:
            match = index.match(prompt, everyone)
            for slot in slots_of(match.replicas):
                assert naive.depth(prompt, slot) >= match.blocks
