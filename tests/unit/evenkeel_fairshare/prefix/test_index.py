"""The index from prefixes to the replicas that hold them, case by case."""

import pytest
from evenkeel_fairshare.fleet.contract import EMPTY, replica_set
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_fairshare.prefix.matching import NO_MATCH, Match

ALL = replica_set(range(8))


def test_an_empty_index_matches_nothing() -> None:
    assert PrefixIndex().match([1, 2, 3], ALL) == NO_MATCH == Match(0, EMPTY)


def test_the_longest_match_names_only_its_holders() -> None:
    index = PrefixIndex()
    index.insert([1, 2], 0)
    index.insert([1, 2, 3], 5)
    assert index.match([1, 2, 3, 4], ALL) == Match(3, replica_set([5]))
    assert index.match([1, 2, 9], ALL) == Match(2, replica_set([0, 5]))
    assert index.match([], ALL) == NO_MATCH


def test_replicas_that_are_not_asked_for_do_not_hide_a_shorter_match() -> None:
    index = PrefixIndex()
    index.insert([1, 2], 0)
    index.insert([1, 2, 3], 5)
    assert index.match([1, 2, 3], replica_set([0, 1])) == Match(2, replica_set([0]))
    assert index.match([1, 2, 3], replica_set([1])) == NO_MATCH


def test_slots_beyond_a_machine_word_work() -> None:
    index = PrefixIndex()
    index.insert([1], 200)
    assert index.match([1], replica_set([3, 200])) == Match(1, replica_set([200]))


def test_a_hole_ends_the_match_until_it_is_filled() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 3], 0)
    index.evict([2], 0)
    assert index.match([1, 2, 3], ALL) == Match(1, replica_set([0]))
    index.insert([1, 2], 0)
    assert index.match([1, 2, 3], ALL) == Match(3, replica_set([0]))


def test_eviction_at_one_replica_leaves_the_others() -> None:
    index = PrefixIndex()
    index.insert([1, 2], 0)
    index.insert([1, 2], 1)
    index.evict([2, 77], 0)
    assert index.match([1, 2], ALL) == Match(2, replica_set([1]))


def test_a_used_block_that_lost_all_holders_can_be_held_again() -> None:
    index = PrefixIndex()
    for _ in range(2):
        index.insert([1], 0)
    index.evict([1], 0)
    index.insert([1], 0)
    assert index.match([1], ALL) == Match(1, replica_set([0]))


def test_truncating_keeps_the_blocks_that_were_found() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 3], 0)
    index.truncate([1, 2, 3], 1, 0)
    assert index.match([1, 2, 3], ALL) == Match(1, replica_set([0]))


def test_a_dropped_replica_is_gone_at_once() -> None:
    index = PrefixIndex()
    index.insert([1, 2], 0)
    index.insert([1], 1)
    index.drop(0)
    assert index.match([1, 2], ALL) == Match(1, replica_set([1]))


def test_two_replicas_dropped_one_after_the_other_are_both_gone() -> None:
    index = PrefixIndex()
    for slot in range(3):
        index.insert([1], slot)
    index.drop(0)
    index.drop(1)
    assert index.match([1], ALL) == Match(1, replica_set([2]))


def test_a_reused_slot_inherits_nothing() -> None:
    index = PrefixIndex()
    index.insert(list(range(100)), 3)
    index.drop(3)
    index.insert([500], 3)
    assert index.match(range(100), ALL) == NO_MATCH
    assert index.match([500], ALL) == Match(1, replica_set([3]))


def test_an_insert_sweeps_four_entries_per_block_for_a_reused_slot_too() -> None:
    index = PrefixIndex()
    assert index.unswept == 0
    index.insert(list(range(100)), 3)
    index.drop(3)
    assert index.unswept == 100
    index.insert([200, 201], 1)
    assert index.unswept == 94  # a turn of the ring, which grew by two
    index.insert([300], 3)
    assert index.unswept == 91
    assert index.match([0], ALL) == NO_MATCH
    assert index.match([300], ALL) == Match(1, replica_set([3]))


def test_a_sweep_reaches_all_that_was_there_though_the_index_grows() -> None:
    index = PrefixIndex()
    index.insert(list(range(100)), 3)
    index.drop(3)
    for key in range(1000, 1200):
        index.insert([key], 1)
    assert index.unswept == 0
    index.insert([7777], 3)
    assert [key for key in range(100) if index.match([key], ALL).blocks] == []


def test_a_replica_that_held_nothing_leaves_nothing_to_sweep() -> None:
    index = PrefixIndex()
    index.insert(list(range(100)), 1)
    for _ in range(1000):
        index.insert([7], 3)
        index.evict([7], 3)
        index.drop(3)
    assert index.unswept == 0


def test_the_sweep_ends_and_later_drops_begin_it_anew() -> None:
    index = PrefixIndex()
    index.insert(list(range(40)), 3)
    index.drop(3)
    for key in range(100, 140):  # each insert sweeps a few entries; more than one turn in all
        index.insert([key], 1)
    index.insert([7], 3)
    assert index.match([0], ALL) == NO_MATCH
    assert index.match([7], ALL) == Match(1, replica_set([3]))
    index.drop(1)
    assert index.match([100], ALL) == NO_MATCH


def test_the_index_never_grows_beyond_its_bound() -> None:
    index = PrefixIndex(max_blocks=4)
    for start in range(0, 100, 3):
        index.insert([start, start + 1, start + 2], 0)
        assert len(index) <= 4
    assert index.match([99, 100, 101], ALL).blocks == 3


def test_a_prompt_longer_than_the_index_keeps_its_beginning() -> None:
    index = PrefixIndex(max_blocks=3)
    index.insert([1, 2, 3, 4, 5], 0)
    assert index.match([1, 2, 3, 4, 5], ALL) == Match(3, replica_set([0]))


def test_what_is_used_again_outlives_what_is_not() -> None:
    index = PrefixIndex(max_blocks=4)
    index.insert([1, 2], 0)
    index.insert([11, 12], 0)
    index.insert([1, 2], 1)
    index.insert([21, 22], 0)  # has to make room: 11, 12 were never used again
    assert index.match([1, 2], ALL).blocks == 2
    assert index.match([11], ALL) == NO_MATCH
    assert index.match([21, 22], ALL).blocks == 2


def test_leaves_go_before_their_roots() -> None:
    index = PrefixIndex(max_blocks=4)
    index.insert([1, 2, 3, 4], 0)
    index.insert([9], 0)
    assert index.match([1, 2, 3, 4], ALL).blocks == 3


def test_matching_is_not_use() -> None:
    index = PrefixIndex(max_blocks=2)
    index.insert([1], 0)
    index.insert([2], 0)
    for _ in range(5):
        index.match([1], ALL)
    index.insert([3], 0)
    assert index.match([1], ALL) == NO_MATCH
    assert index.match([2], ALL).blocks == 1


def test_room_is_found_in_bounded_time_even_where_everything_was_used() -> None:
    index = PrefixIndex(max_blocks=100)
    for _ in range(2):
        for key in range(100):
            index.insert([key], 0)
    index.insert([1000], 0)
    held = [key for key in range(100) if index.match([key], ALL).blocks]
    assert len(held) == 99  # the hand spared 32 and took the next
    assert 32 not in held


def test_a_hash_that_comes_twice_in_one_prompt_counts_once() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 1], 0)  # new
    index.insert([1, 2, 1], 1)  # in one run of blocks that are known
    index.insert([1, 3, 1], 2)  # and in two of them
    assert [index.held(slot) for slot in range(3)] == [2, 2, 2]


def test_a_hash_that_comes_twice_in_one_prompt_does_no_harm() -> None:
    index = PrefixIndex(max_blocks=2)
    index.insert([1, 1], 0)
    assert index.match([1, 1], ALL) == Match(2, replica_set([0]))
    for key in range(10, 20):
        index.insert([key], 0)
    assert len(index) == 2


def test_what_is_taken_back_or_has_left_is_held_no_more() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 3], 0)
    index.insert([1, 2, 3, 4], 1)
    index.truncate([1, 2, 3, 4], 1, 1)
    index.evict([3, 77], 0)
    index.evict([3], 0)  # news may come twice
    assert [index.held(slot) for slot in range(3)] == [2, 1, 0]
    index.drop(1)
    index.evict([1], 1)
    assert [index.held(slot) for slot in range(3)] == [2, 0, 0]
    assert len(index) == 4  # in memory, until there is need of the room


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_blocks is 0; it must be at least 1"):
        PrefixIndex(max_blocks=0)
