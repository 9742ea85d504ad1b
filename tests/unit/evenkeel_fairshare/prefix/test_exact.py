"""Facts and expectations, case by case."""

import pytest
from evenkeel_fairshare.fleet.contract import EMPTY, replica_set
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.matching import NO_MATCH, Match

ALL = replica_set(range(8))


def test_what_events_say_is_held() -> None:
    index = ExactIndex()
    index.stored([1, 2, 3], 0)
    index.stored([1], 1)
    assert index.match([1, 2, 3, 4], ALL) == Match(3, replica_set([0]))
    assert index.match([1, 9], ALL) == Match(1, replica_set([0, 1]))
    index.removed([3, 77], 0)
    assert index.match([1, 2, 3], ALL) == Match(2, replica_set([0]))


def test_an_inner_block_that_goes_ends_the_match_there() -> None:
    index = ExactIndex()
    index.stored([1, 2, 3], 0)
    index.removed([2], 0)
    assert index.match([1, 2, 3], ALL) == Match(1, replica_set([0]))
    index.stored([2], 0)
    assert index.match([1, 2, 3], ALL) == Match(3, replica_set([0]))


def test_a_match_goes_from_facts_over_into_expectations_and_back() -> None:
    index = ExactIndex()
    index.stored([1], 0)
    index.insert([1, 2], 0)
    index.stored([3], 0)
    assert index.match([1, 2, 3], ALL) == Match(3, replica_set([0]))
    assert index.held(0) == 3


def test_a_request_that_never_ran_takes_back_what_it_expected_and_no_fact() -> None:
    index = ExactIndex()
    index.insert([1, 2, 3], 0)
    index.stored([1, 2], 0)  # another request computed them meanwhile
    index.truncate([1, 2, 3], 0, 0)
    assert index.match([1, 2, 3], ALL) == Match(2, replica_set([0]))


def test_a_request_that_ran_in_part_leaves_what_it_computed() -> None:
    index = ExactIndex()
    index.insert([1, 2, 3], 0)
    index.truncate([1, 2, 3], 2, 0)
    assert index.match([1, 2, 3], ALL) == Match(2, replica_set([0]))


def test_a_block_that_is_removed_is_expected_no_more() -> None:
    index = ExactIndex()
    index.insert([1, 2], 0)
    index.removed([2], 0)
    assert index.match([1, 2], ALL) == Match(1, replica_set([0]))


def test_a_cleared_replica_holds_nothing_and_is_still_followed() -> None:
    index = ExactIndex()
    index.set_synced(0, complete=True)
    index.stored([1, 2], 0)
    index.stored([1], 1)
    index.insert([5], 0)
    index.cleared(0)
    assert index.match([1, 2], ALL) == Match(1, replica_set([1]))
    assert index.match([5], ALL) == NO_MATCH
    assert index.exact(0)
    index.stored([1, 2], 0)
    assert index.match([1, 2], ALL) == Match(2, replica_set([0]))


def test_a_replica_out_of_sync_keeps_what_it_held() -> None:
    index = ExactIndex()
    index.set_synced(3, complete=True)
    index.stored([1], 3)
    index.set_synced(3, complete=False)
    assert not index.exact(3)
    assert index.match([1], ALL) == Match(1, replica_set([3]))


def test_a_replica_that_is_gone_is_followed_no_more() -> None:
    index = ExactIndex()
    index.set_synced(3, complete=True)
    index.stored([1], 3)
    index.drop(3)
    assert index.synced == EMPTY
    assert index.match([1], ALL) == NO_MATCH
    index.insert([2], 3)  # another in its slot
    assert index.match([1], ALL) == NO_MATCH
    assert index.match([2], ALL) == Match(1, replica_set([3]))


def test_facts_and_expectations_share_one_bound() -> None:
    index = ExactIndex(max_blocks=4)
    index.stored(list(range(10)), 0)
    index.insert(list(range(100, 110)), 0)
    assert len(index) == 4


def test_a_replica_that_lost_blocks_for_room_is_exact_again_once_cleared() -> None:
    index = ExactIndex(max_blocks=4)  # two of them facts
    for slot in (0, 2, 3):
        index.set_synced(slot, complete=True)
    index.stored([1], 2)
    index.stored([2], 3)
    assert index.exact(2) and index.exact(3)
    index.stored([8, 9], 0)
    assert [slot for slot in range(8) if index.crowded(slot)] == [2, 3]
    assert [slot for slot in range(8) if index.exact(slot)] == [0]
    index.cleared(3)
    assert [slot for slot in range(8) if index.crowded(slot)] == [2]
    assert [slot for slot in range(8) if index.exact(slot)] == [0, 3]


def test_a_bound_below_two_is_refused() -> None:
    with pytest.raises(ValueError, match="max_blocks is 1; it must be at least 2"):
        ExactIndex(max_blocks=1)


def test_a_block_is_held_until_its_last_copy_is_removed() -> None:
    index = ExactIndex()
    index.stored([1, 2], 0, copies=True)
    index.stored([1, 2, 3], 0, copies=True)
    index.removed([1, 3], 0)
    assert index.match([1, 2, 3], ALL).blocks == 2
    index.removed([1], 0)
    assert index.match([1], ALL).blocks == 0
    index.removed([2], 0)
    index.cleared(0)
    index.stored([2], 0, copies=True)
    index.removed([2], 0)
    assert index.match([2], ALL).blocks == 0, "copies ended with the cache"


def test_copies_end_with_their_replica() -> None:
    index = ExactIndex()
    for _ in range(2):
        index.stored([1], 0, copies=True)
    index.drop(0)
    index.stored([1], 0, copies=True)  # the next replica in the slot
    index.removed([1], 0)
    assert index.match([1], ALL) == NO_MATCH
