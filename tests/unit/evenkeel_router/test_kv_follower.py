"""The follower's transitions and its words, one at a time; any interleaving is in tests/property."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from evenkeel_contract.kvevents import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Numbered,
    encode_batch,
)
from evenkeel_router.prefix.kv_follower import Follower, SyncState


class HeldWork:
    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.cleared_times = 0

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None:
        self.blocks.update(hashes)

    def removed(self, hashes: Sequence[int]) -> None:
        self.blocks.difference_update(hashes)

    def cleared(self) -> None:
        self.cleared_times += 1
        self.blocks.clear()

    def synced(self, complete: bool) -> None:
        pass


def stored(*hashes: int, size: int = 16, medium: str | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, [], size, None, medium)


def batch(sequence: int, *events: Event, at_s: float = 0.0) -> Numbered:
    return Numbered(sequence, encode_batch(EventBatch(at_s + sequence, list(events))))


@pytest.fixture
def held() -> HeldWork:
    return HeldWork()


@pytest.fixture
def follower(held: HeldWork) -> Follower:
    """In sync with a replica that stored 1, 2 and 3 in three batches."""
    made = Follower(held)
    made.look_for(16)
    made.connected()
    assert made.ask() == 0
    for number in range(3):
        assert made.replayed(batch(number, stored(number + 1)))
    assert not made.ended()
    assert not made.live(batch(2, stored(3)))  # of the same process
    return made


def test_who_joins_replays_and_is_in_sync(held: HeldWork) -> None:
    follower = Follower(held)
    assert (follower.sync_state, follower.reason) == (SyncState.JOINING, "no subscription yet")
    follower.connected()
    assert follower.sync_state is SyncState.REPLAYING
    assert follower.reason == "waits for batches from number 0 on"
    follower.ask()
    assert not follower.ended(), "a replica that never stored anything replays nothing"
    assert (follower.sync_state, follower.reason) == (SyncState.IN_SYNC, "")


def test_what_comes_in_order_is_applied(follower: Follower, held: HeldWork) -> None:
    assert not follower.live(batch(3, BlockRemoved([1]), stored(4)))
    assert held.blocks == {2, 3, 4}
    assert (follower.sequence, follower.last_batch_unix_s) == (4, 3.0)
    assert (follower.counts.batches, follower.counts.replays) == (4, 1)


def test_what_a_replay_brought_already_is_no_gap_and_no_restart(
    follower: Follower, held: HeldWork
) -> None:
    for number in range(3):
        assert not follower.live(batch(number, stored(number + 1)))
    assert held.blocks == {1, 2, 3}
    assert (follower.counts.gaps, follower.counts.restarts) == (0, 0)


def joined(held: HeldWork, *, batches: int) -> Follower:
    """A subscription is there, and its replay brought so many."""
    follower = Follower(held)
    follower.connected()
    follower.ask()
    for number in range(batches):
        assert follower.replayed(batch(number, stored(number + 1)))
    assert not follower.ended()
    return follower


def test_the_first_batch_of_a_subscription_waits_for_a_replay_with_it(
    held: HeldWork,
) -> None:
    follower = joined(held, batches=3)
    assert follower.live(batch(3, stored(4)))
    assert (follower.sync_state, held.blocks) == (SyncState.REPLAYING, {1, 2, 3})
    assert follower.ask() == 2
    for number in (2, 3, 4):
        assert follower.replayed(batch(number, stored(number + 1)))
    assert not follower.ended()
    assert not follower.live(batch(4, stored(5)))
    assert not follower.live(batch(5, stored(6))), "once is enough"
    assert (held.blocks, follower.counts.restarts) == ({1, 2, 3, 4, 5, 6}, 0)


@pytest.mark.parametrize("successor_has_it", [True, False])
def test_a_dead_engine_s_last_batch_is_not_applied_to_its_successor_s_view(
    held: HeldWork, successor_has_it: bool
) -> None:
    """It died between the subscription and its replay, and its successor had got just as far."""
    follower = joined(held, batches=3)
    assert follower.live(batch(3, BlockRemoved([1]), at_s=-100.0))
    assert held.blocks == {1, 2, 3}
    follower.ask()
    assert follower.replayed(batch(2, stored(3)))
    if successor_has_it:
        assert not follower.replayed(batch(3, stored(4)))
    else:
        assert follower.ended()
    assert (follower.counts.restarts, held.blocks) == (1, set())
    assert follower.ask() == 0


def test_who_was_there_from_the_first_batch_on_needs_no_replay(held: HeldWork) -> None:
    follower = joined(held, batches=0)
    for number in range(3):
        assert not follower.live(batch(number, stored(number + 1)))
    assert (held.blocks, follower.sync_state) == ({1, 2, 3}, SyncState.IN_SYNC)


def test_a_gap_is_filled_from_the_last_batch_on(follower: Follower, held: HeldWork) -> None:
    assert follower.live(batch(5, stored(6)))
    assert follower.sync_state is SyncState.REPLAYING
    assert follower.reason == "waits for batches from number 3 on"
    assert follower.ask() == 2
    assert follower.replayed(batch(2, stored(3)))
    for number in (3, 4, 5):
        assert follower.replayed(batch(number, stored(number + 1)))
    assert not follower.ended()
    assert follower.sync_state is SyncState.IN_SYNC
    assert held.blocks == {1, 2, 3, 4, 5, 6}
    assert (follower.counts.gaps, follower.counts.restarts, held.cleared_times) == (1, 0, 0)


def test_a_question_that_only_makes_sure_finds_what_was_lost_at_the_end(
    follower: Follower, held: HeldWork
) -> None:
    assert follower.ask() == 2
    assert follower.sync_state is SyncState.IN_SYNC, "asking is no doubt"
    assert follower.replayed(batch(2, stored(3)))
    assert follower.replayed(batch(3, stored(4)))
    assert not follower.ended()
    assert held.blocks == {1, 2, 3, 4}


def test_a_hole_in_a_replay_is_asked_for_again(follower: Follower, held: HeldWork) -> None:
    follower.live(batch(6, stored(7)))
    follower.ask()
    assert follower.replayed(batch(2, stored(3)))
    assert follower.replayed(batch(3, stored(4)))
    assert not follower.replayed(batch(5, stored(6)))
    assert follower.sync_state is SyncState.REPLAYING
    assert follower.ask() == 3
    assert held.blocks == {1, 2, 3, 4}


def test_the_same_number_with_other_bytes_is_another_process(
    follower: Follower, held: HeldWork
) -> None:
    follower.disconnected("the connection broke")
    assert (follower.sync_state, follower.reason) == (SyncState.JOINING, "the connection broke")
    assert held.blocks == {1, 2, 3}, "it may be the same one"
    follower.connected()
    follower.ask()
    assert not follower.replayed(batch(2, stored(3), at_s=100.0))
    assert (held.blocks, follower.counts.restarts) == (set(), 1)
    assert follower.ask() == 0


def test_one_that_has_not_got_as_far_is_another_process(follower: Follower, held: HeldWork) -> None:
    follower.disconnected("the connection broke")
    follower.connected()
    follower.ask()
    assert follower.ended()
    assert (held.blocks, follower.counts.restarts) == (set(), 1)


def test_the_last_batch_with_other_bytes_is_another_process_though_live(
    follower: Follower, held: HeldWork
) -> None:
    assert follower.live(batch(2, stored(9), at_s=100.0))
    assert (held.blocks, follower.counts.restarts) == (set(), 1)
    assert follower.sync_state is SyncState.REPLAYING


def test_what_is_not_kept_any_more_leaves_a_partial_view(
    follower: Follower, held: HeldWork
) -> None:
    follower.live(batch(9, stored(10)))
    follower.ask()
    assert not follower.replayed(batch(7, stored(8)))
    assert follower.counts.overruns == 1
    assert follower.ask() == 0
    for number in (7, 8, 9):
        assert follower.replayed(batch(number, stored(number + 1)))
    assert not follower.ended()
    assert follower.sync_state is SyncState.PARTIAL
    assert follower.reason == "its batches before number 7 are not kept any more"
    assert held.blocks == {8, 9, 10}
    assert not follower.live(batch(9, stored(10)))  # what the gap was seen by, of the same process
    assert not follower.live(batch(10, BlockRemoved([9])))
    assert held.blocks == {8, 10}


def test_a_cleared_cache_makes_a_partial_view_whole(follower: Follower, held: HeldWork) -> None:
    test_what_is_not_kept_any_more_leaves_a_partial_view(follower, held)
    follower.live(batch(11, AllBlocksCleared(), stored(1)))
    assert (follower.sync_state, follower.reason) == (SyncState.IN_SYNC, "")
    assert held.blocks == {1}


@pytest.fixture
def late(follower: Follower, held: HeldWork) -> Follower:
    """A partial view that begins with batch 7, after batch 9."""
    test_what_is_not_kept_any_more_leaves_a_partial_view(follower, held)
    assert follower.sequence == 11
    return follower


def test_the_pages_of_the_replica_complete_a_late_view(late: Follower, held: HeldWork) -> None:
    assert late.wants_pages
    late.take_over(13, 12.0)
    late.holds([1, 2], 16)
    assert late.reason == "waits for batches from number 13 on"
    late.holds([3], 16)
    late.taken_over()
    assert late.sync_state is SyncState.REPLAYING, "it may be of another process"
    assert late.ask() == 12
    assert late.replayed(batch(12, stored(3)))
    assert late.replayed(batch(13, BlockRemoved([1]), stored(14)))
    assert not late.ended()
    assert (late.sync_state, late.reason, late.wants_pages) == (SyncState.IN_SYNC, "", False)
    assert held.blocks == {2, 3, 14}
    assert (late.counts.takeovers, late.counts.restarts) == (1, 0)
    assert not late.live(batch(13, BlockRemoved([1]), stored(14))), "its bytes are known by now"


def test_pages_of_another_process_are_dropped(late: Follower, held: HeldWork) -> None:
    late.take_over(13, 99.0)
    late.holds([1, 2], 16)
    late.taken_over()
    assert late.ask() == 12
    assert not late.replayed(batch(12, stored(3)))
    assert held.blocks == set()
    assert late.ask() == 0
    assert late.counts.restarts == 0, "nothing says that what is followed was restarted"


def test_pages_older_than_the_last_batch_are_requested_again(
    late: Follower, held: HeldWork
) -> None:
    late.take_over(13, 12.0)
    late.holds([1], 16)
    late.taken_over()
    late.ask()
    assert late.ended()
    assert (held.blocks, late.counts.restarts) == (set(), 0)
    late.ask()
    assert late.replayed(batch(11, stored(12)))
    assert not late.ended()
    assert late.wants_pages


def test_half_an_answer_is_none(late: Follower) -> None:
    late.take_over(13, 12.0)
    late.holds([1], 16)
    late.disconnected("the connection broke")
    late.connected()
    assert late.ask() == 12
    assert late.replayed(batch(12, stored(3)))
    assert not late.ended()
    assert late.sync_state is SyncState.PARTIAL
    assert late.reason == "its report of the pages that it holds broke off"
    assert late.wants_pages


def test_a_replica_that_does_not_tell_is_named(late: Follower) -> None:
    late.not_reported("it sends no reports")
    assert late.reason == (
        "its batches before number 7 are not kept any more, and it does not report the pages that it holds: it sends no reports"
    )
    late.live(batch(11, AllBlocksCleared()))
    assert late.reason == ""


def test_pages_do_not_help_without_room_or_readable_batches(
    late: Follower, follower: Follower
) -> None:
    late.live(Numbered(11, b"\xc1"))
    assert not late.wants_pages, "it speaks otherwise"
    late.live(batch(12, stored(13)))
    assert late.wants_pages
    late.forgot("no room")
    assert not late.wants_pages


def test_an_invalid_batch_makes_the_view_partial(follower: Follower, held: HeldWork) -> None:
    assert not follower.live(Numbered(3, b"\xc1"))
    assert follower.sync_state is SyncState.PARTIAL
    assert follower.reason.startswith("batch 3 is invalid: not a batch of KV events")
    assert (held.blocks, follower.counts.unreadable) == (set(), 1)
    assert not follower.live(batch(4, stored(5)))
    assert held.blocks == {5}


def test_blocks_of_another_size_are_of_no_use(held: HeldWork) -> None:
    follower = Follower(held)
    follower.look_for(16)
    follower.connected()
    follower.ask()
    follower.replayed(batch(0, stored(1, size=1)))
    follower.ended()
    assert follower.sync_state is SyncState.PARTIAL
    assert follower.reason == "its blocks have 1 tokens, not the 16 that prompts are cut into"


def test_only_device_memory_counts(follower: Follower, held: HeldWork) -> None:
    follower.live(batch(3, stored(8, medium="CPU_PINNED"), BlockRemoved([1], "CPU_PINNED")))
    assert held.blocks == {1, 2, 3}


def test_unsigned_hashes_are_read_and_vllms_blocks_may_be_copies() -> None:
    view = Copying()
    follower = Follower(view)
    follower.look_for(32)
    follower.connected()
    assert follower.ask() == 0
    big = 2**64 - 1
    first = BlockStored([big], None, [], 32, None, "GPU", group_idx=0)
    assert follower.replayed(batch(0, first, first, BlockRemoved([big], "GPU")))
    assert follower.replayed(batch(1, stored(7, size=32)))
    assert not follower.ended()
    assert view.seen == [(big, True), (big, True), (7, False)], "SGLang's are not"
    assert follower.sync_state is SyncState.IN_SYNC


class Copying(HeldWork):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool]] = []

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None:
        super().stored(hashes, copies=copies)
        self.seen += [(key, copies) for key in hashes]
