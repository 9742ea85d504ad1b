"""What the prefix index does in steps: alone it is the same as in one go; with other calls in between it is right for what they did."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest
from evenkeel_fairshare.fleet.contract import ReplicaSet, replica_set, slots_of
from evenkeel_fairshare.prefix import exact, index, matching
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex, token_blocks
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

SLOTS = 4
EVERYONE = replica_set(range(SLOTS))
Operation = tuple[str, list[int], int]
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(
    lambda tokens: token_blocks(tokens, block_tokens=1)
)
slots = st.integers(0, SLOTS - 1)
verbs = st.sampled_from(["insert", "insert", "insert", "truncate", "drop"])
operations = st.lists(st.tuples(verbs, prompts, slots), max_size=25)
kinds = st.sampled_from([PrefixIndex, ExactIndex])


@pytest.fixture(autouse=True, scope="module")
def steps_of_two_blocks() -> Iterator[None]:
    """So that short prompts take several steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (index, exact, matching):
            patch.setattr(module, "STEP_BLOCKS", 2)
        yield


def steps_of(of: PrefixIndex | ExactIndex, operation: Operation) -> Iterator[None]:
    verb, prompt, slot = operation
    if verb == "insert":
        return of.inserting(prompt, slot)
    if verb == "truncate":
        return of.truncating(prompt, len(prompt) // 2, slot)
    of.drop(slot)
    return iter(())


def at_once(of: PrefixIndex | ExactIndex, operation: Operation) -> None:
    verb, prompt, slot = operation
    if verb == "insert":
        of.insert(prompt, slot)
    elif verb == "truncate":
        of.truncate(prompt, len(prompt) // 2, slot)
    else:
        of.drop(slot)


def exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def depths_of(of: PrefixIndex | ExactIndex, prompt: list[int]) -> matching.Depths:
    steps = of.matching(prompt, EVERYONE)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: matching.Depths = end.value
            return found


def held(of: PrefixIndex | ExactIndex) -> list[int]:
    return [of.held(slot) for slot in range(SLOTS)]


@examples(100)
@given(kinds, operations, st.integers(2, 40), st.lists(prompts, min_size=1, max_size=4))
def test_steps_alone_do_the_same_as_one_go(
    kind: type[PrefixIndex | ExactIndex],
    given_: list[Operation],
    max_blocks: int,
    asked: list[list[int]],
) -> None:
    stepped, whole = kind(max_blocks=max_blocks), kind(max_blocks=max_blocks)
    for operation in given_:
        exhaust(steps_of(stepped, operation))
        at_once(whole, operation)
        assert held(stepped) == held(whole)
        for prompt in asked:
            found = depths_of(stepped, prompt)
            assert found.longest == stepped.match(prompt, EVERYONE) == whole.match(prompt, EVERYONE)
            assert [found.at(slot) for slot in range(SLOTS)] == [
                whole.match(prompt, ReplicaSet(1 << slot)).blocks for slot in range(SLOTS)
            ]


@examples(100)
@given(kinds, operations, st.data())
def test_what_comes_between_the_steps_of_an_insertion_is_not_lost(
    kind: type[PrefixIndex | ExactIndex], others: list[Operation], data: st.DataObject
) -> None:
    prompt, slot = data.draw(prompts), data.draw(slots)
    stepped, whole = kind(), kind()
    dropped, steps = False, stepped.inserting(prompt, slot)
    for verb, other, at in others:
        if at == slot and verb == "truncate":
            continue  # of two calls for the same blocks, the last one counts
        for _ in range(data.draw(st.integers(0, 2))):
            next(steps, None)
        at_once(stepped, (verb, other, at))
        at_once(whole, (verb, other, at))
        dropped = dropped or (verb, at) == ("drop", slot)
    exhaust(steps)
    if not dropped:
        whole.insert(prompt, slot)
    # The insertion's own blocks may have come before the drop, or end with it.
    assert held(stepped) == held(whole)
    for asked in (prompt, *(other for _, other, _ in others)):
        for one in range(SLOTS):
            alone = ReplicaSet(1 << one)
            assert stepped.match(asked, alone) == whole.match(asked, alone)


@examples(100)
@given(kinds, operations, operations, st.data())
def test_a_match_in_steps_is_right_for_replicas_that_did_not_change(
    kind: type[PrefixIndex | ExactIndex],
    before: list[Operation],
    between: list[Operation],
    data: st.DataObject,
) -> None:
    of, prompt = kind(), data.draw(prompts)
    for operation in before:
        at_once(of, operation)
    steps, changed, found = of.matching(prompt, EVERYONE), set[int](), None
    want = [of.match(prompt, ReplicaSet(1 << slot)).blocks for slot in range(SLOTS)]
    for operation in chain(between, [None] * (len(prompt) + 1)):
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        if operation is not None:
            at_once(of, operation)
            changed.add(operation[2])
    assert found is not None
    for slot in set(range(SLOTS)) - changed:
        assert found.at(slot) == want[slot]
    gone = {slot for slot in range(SLOTS) if not of.held(slot)} & changed
    if between and all(verb == "drop" for verb, _, _ in between):
        assert not gone & set(slots_of(found.longest.replicas))


@examples(100)
@given(kinds, operations, st.integers(2, 12))
def test_no_block_of_a_replica_that_left_is_found_for_its_successor(
    kind: type[PrefixIndex | ExactIndex], given_: list[Operation], max_blocks: int
) -> None:
    of = kind(max_blocks=max_blocks)
    since: dict[int, set[int]] = {slot: set() for slot in range(SLOTS)}
    for operation in given_:
        verb, prompt, slot = operation
        at_once(of, operation)
        if verb == "drop":
            since[slot] = set()
        elif verb == "insert":
            since[slot] |= set(prompt)
        for one in range(SLOTS):
            for block in {block for _, some, _ in given_ for block in some} - since[one]:
                assert not of.match([block], ReplicaSet(1 << one)).blocks
