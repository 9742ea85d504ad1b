"""The index of facts and expectations against a naive model: two sets of (block, slot) pairs and a scan."""

from __future__ import annotations

from evenkeel_fairshare.fleet.contract import ReplicaSet, replica_set, slots_of
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import token_blocks
from evenkeel_fairshare.prefix.matching import Match
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

SLOTS = 4
EVERYONE = replica_set(range(SLOTS))
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(
    lambda tokens: token_blocks(tokens, block_tokens=1)
)
slots = st.integers(0, SLOTS - 1)
verbs = st.sampled_from(
    ["insert", "insert", "truncate", "stored", "stored", "removed", "removed-inner", "cleared",
     "drop", "synced", "not-synced"]
)  # fmt: skip
operations = st.lists(st.tuples(verbs, prompts, slots), min_size=5, max_size=50)
among = st.sets(slots).map(lambda some: replica_set(sorted(some)))
Pairs = set[tuple[int, int]]


class Naive:
    """What was said of every pair; no bound."""

    def __init__(self) -> None:
        self.facts: Pairs = set()
        self.expected: Pairs = set()
        self.synced: set[int] = set()

    def insert(self, prompt: list[int], slot: int) -> None:
        self.expected |= pairs(prompt, slot) - self.facts

    def truncate(self, prompt: list[int], slot: int) -> None:
        self.expected -= pairs(prompt[len(prompt) // 2 :], slot)

    def stored(self, prompt: list[int], slot: int) -> None:
        self.facts |= pairs(prompt, slot)
        self.expected -= pairs(prompt, slot)

    def removed(self, prompt: list[int], slot: int) -> None:
        self.facts -= pairs(prompt, slot)
        self.expected -= pairs(prompt, slot)

    def cleared(self, slot: int) -> None:
        self.facts = {pair for pair in self.facts if pair[1] != slot}
        self.expected = {pair for pair in self.expected if pair[1] != slot}

    def match(self, prompt: list[int], asked: ReplicaSet) -> Match:
        depths = {slot: self.depth(prompt, slot) for slot in slots_of(asked)}
        longest = max(depths.values(), default=0)
        holders = [slot for slot, depth in depths.items() if depth == longest]
        return Match(longest, replica_set(holders if longest else []))

    def depth(self, prompt: list[int], slot: int) -> int:
        depth = 0
        while depth < len(prompt) and (prompt[depth], slot) in self.facts | self.expected:
            depth += 1
        return depth


def pairs(blocks: list[int], slot: int) -> Pairs:
    return {(block, slot) for block in blocks}


def apply(index: ExactIndex, naive: Naive, operation: tuple[str, list[int], int]) -> None:
    verb, prompt, slot = operation
    if verb in ("insert", "stored", "removed"):
        getattr(index, verb)(prompt, slot)
        getattr(naive, verb)(prompt, slot)
    elif verb == "removed-inner":
        index.removed(prompt[:1], slot)
        naive.removed(prompt[:1], slot)
    elif verb == "truncate":
        index.truncate(prompt, len(prompt) // 2, slot)
        naive.truncate(prompt, slot)
    elif verb == "cleared":
        index.cleared(slot)
        naive.cleared(slot)
    elif verb == "drop":
        index.drop(slot)
        naive.cleared(slot)
        naive.synced.discard(slot)
    else:
        index.set_synced(slot, complete=verb == "synced")
        (naive.synced.add if verb == "synced" else naive.synced.discard)(slot)


@examples(100)
@given(operations, st.lists(st.tuples(prompts, among), min_size=1, max_size=5))
def test_an_index_with_room_answers_as_the_naive_model(
    steps: list[tuple[str, list[int], int]], asked: list[tuple[list[int], ReplicaSet]]
) -> None:
    index, naive = ExactIndex(), Naive()
    for step in steps:
        apply(index, naive, step)
        everything = naive.facts | naive.expected
        for slot in range(SLOTS):
            assert index.held(slot) == sum(holder == slot for _, holder in everything)
            assert index.exact(slot) == (slot in naive.synced)
        for prompt, replicas in asked:
            assert index.match(prompt, replicas) == naive.match(prompt, replicas)


@examples(100)
@given(operations, st.lists(prompts, min_size=1, max_size=5))
def test_no_request_that_ends_uncomputed_takes_back_what_events_said(
    steps: list[tuple[str, list[int], int]], asked: list[list[int]]
) -> None:
    index, naive = ExactIndex(), Naive()
    for step in steps:
        apply(index, naive, step)
    for prompt in asked:
        for slot in range(SLOTS):
            index.insert(prompt, slot)
            index.truncate(prompt, 0, slot)
    naive.expected -= {
        (block, slot) for prompt in asked for block in prompt for slot in range(SLOTS)
    }
    for prompt in asked:
        assert index.match(prompt, EVERYONE) == naive.match(prompt, EVERYONE)


@examples(100)
@given(operations, st.lists(prompts, min_size=1, max_size=5), st.integers(2, 12))
def test_a_full_index_stays_within_its_bound_and_claims_only_what_was_said(
    steps: list[tuple[str, list[int], int]], asked: list[list[int]], max_blocks: int
) -> None:
    index, naive = ExactIndex(max_blocks=max_blocks), Naive()
    ever: Pairs = set()  # a forgotten fact that is expected later lives longer than in the model
    for verb, prompt, slot in steps:
        apply(index, naive, (verb, prompt, slot))
        if verb in ("insert", "stored"):
            ever |= pairs(prompt, slot)
        elif verb == "removed":
            ever -= pairs(prompt, slot)
        elif verb in ("cleared", "drop"):
            ever = {pair for pair in ever if pair[1] != slot}
        assert len(index) <= max_blocks
        for one in asked:
            match = index.match(one, EVERYONE)
            assert all(
                (block, holder) in ever
                for block in one[: match.blocks]
                for holder in slots_of(match.replicas)
            )
