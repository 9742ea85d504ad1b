"""Following KV events through loss, restarts and short memories: never a wrong claim, and in sync in the end.

The world below is a replica's processes with what each held after every batch, a subscription that loses what
it likes and dies with its process, replays with holes that end when they like, and answers to what it holds that come
late, from another process, or before the last batch in them was sent. The follower is the real one, and so is who adds up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from evenkeel_contract.heldpages import HeldPages, PagesSnapshot
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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples

BLOCKS = st.lists(st.integers(-3, 8), min_size=1, max_size=4)


@dataclass
class Held:
    """A view that is a set, as a router's index is for one replica."""

    blocks: set[int] = field(default_factory=set)
    claims: bool = False

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None:
        self.blocks.update(hashes)

    def removed(self, hashes: Sequence[int]) -> None:
        self.blocks.difference_update(hashes)

    def cleared(self) -> None:
        self.blocks.clear()

    def synced(self, complete: bool) -> None:
        assert complete is not self.claims, "only changes are told"
        self.claims = complete


class Process:
    """One process of a replica: what it published, what it still keeps, what it held when."""

    def __init__(self, number: int, *, keeps: int) -> None:
        self.number = number
        self.blocks: set[int] = set()
        self.states: list[frozenset[int]] = []
        self.kept: deque[Numbered] = deque(maxlen=keeps)
        self.pages = HeldPages()
        self.unsent: list[Event] = []

    def add_up(self, events: list[Event]) -> None:
        """As the scheduler's thread does, whose next batch another thread has yet to send."""
        self.unsent = events
        # Two processes may do the very same things; only their clocks tell them apart.
        self.pages.published(1e6 * self.number + len(self.states) + 1, events)

    def publish(self, events: list[Event], *, readable: bool = True) -> Numbered:
        """What waits to be sent, or these."""
        if not self.unsent:
            self.add_up(events)
        events, self.unsent = self.unsent, []
        for event in events:
            if isinstance(event, BlockStored):
                self.blocks.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.blocks.difference_update(event.block_hashes)
            else:
                self.blocks.clear()
        self.states.append(frozenset(self.blocks))
        payload = encode_batch(EventBatch(1e6 * self.number + len(self.states), events))
        batch = Numbered(len(self.states) - 1, payload if readable else payload[:-1])
        self.kept.append(batch)
        return batch

    def state_before(self, sequence: int) -> frozenset[int]:
        return self.states[sequence - 1] if sequence else frozenset()


def stored(hashes: list[int]) -> BlockStored:
    return BlockStored(hashes, None, [], 16, None)


events = st.lists(
    BLOCKS.map(stored) | BLOCKS.map(BlockRemoved) | st.builds(AllBlocksCleared),
    min_size=1,
    max_size=3,
)


class Following(RuleBasedStateMachine):
    """Everything that may happen to one replica and one subscription, in any order."""

    @initialize(keeps=st.integers(1, 12))
    def start(self, keeps: int) -> None:
        self.keeps = keeps
        self.processes: list[Process] = []
        self.restart()
        self.held = Held()
        self.follower = Follower(self.held)
        self.follower.look_for(16)
        self.subscribed_to: Process | None = None
        self.asked = self.followed = self.now
        self.queue: list[Numbered] = []
        self.replay: list[Numbered] | None = None
        self.must_replay = True
        self.told: PagesSnapshot | None = None

    @property
    def now(self) -> Process:
        return self.processes[-1]

    # The replica

    @rule(events=events, lost=st.booleans(), readable=st.sampled_from([True] * 9 + [False]))
    def publishes(self, events: list[Event], lost: bool, readable: bool) -> None:
        batch = self.now.publish(events, readable=readable)
        if self.subscribed_to is self.now and not lost:
            self.queue.append(batch)

    @rule()
    def restart(self) -> None:
        self.processes.append(Process(len(self.processes), keeps=self.keeps))

    @rule(history=st.lists(events, min_size=1, max_size=6), more=st.integers(-1, 2))
    def restarts_and_catches_up(self, history: list[list[Event]], more: int) -> None:
        """Another process soon publishes the number that is waited for or was told, or one near it."""
        self.restart()
        wanted = (self.told.sequence if self.told else self.follower.sequence) + more
        for number in range(wanted):
            self.now.publish(history[number % len(history)])

    @precondition(lambda self: self.subscribed_to is self.now and self.replay is None)
    @rule(last=events, history=st.lists(events, min_size=1, max_size=4))
    def dies_between_a_subscription_and_its_replay(
        self, last: list[Event], history: list[list[Event]]
    ) -> None:
        """Its last batch waits to be read, and its successor, which answers, has got just as far."""
        self.connection_breaks()
        self.connects()
        self.publishes(events=last, lost=False, readable=True)
        self.restart()
        for number in range(self.queue[0].sequence):
            self.now.publish(history[number % len(history)])
        self.replays_without_loss()

    # The subscription

    @precondition(lambda self: self.subscribed_to is None)
    @rule()
    def connects(self) -> None:
        self.subscribed_to, self.queue = self.now, []
        self.follower.connected()
        self.must_replay = True

    @precondition(lambda self: self.subscribed_to is not None)
    @rule()
    def connection_breaks(self) -> None:
        self.subscribed_to, self.replay, self.told = None, None, None
        self.follower.disconnected("broken")

    @precondition(lambda self: self.subscribed_to and not self.must_replay and self.replay is None)
    @rule()
    def reads(self) -> None:
        if self.queue:
            self.must_replay = self.follower.live(self.queue.pop(0))

    # Replays

    @precondition(lambda self: self.subscribed_to is not None and self.replay is None)
    @rule(holes=st.sets(st.integers(1, 12), max_size=2))
    def asks(self, holes: set[int]) -> None:
        first = self.follower.ask()
        self.asked = self.now
        kept = [batch for batch in self.now.kept if batch.sequence >= first]
        self.replay = [batch for at, batch in enumerate(kept) if at not in holes]

    @precondition(lambda self: self.replay is not None)
    @rule()
    def replay_goes_on(self) -> None:
        assert self.replay is not None
        if not self.replay:
            self.must_replay = self.follower.ended()
            self.replay = None
            self.followed = self.asked
            return
        before = self.follower.sequence
        if not self.follower.replayed(self.replay.pop(0)):
            self.must_replay, self.replay = True, None
        elif self.follower.sequence > before:
            self.followed = self.asked

    @precondition(lambda self: self.subscribed_to is not None and self.replay is None)
    @rule()
    def replays_without_loss(self) -> None:
        self.catch_up()
        self.must_replay = False

    @precondition(lambda self: self.replay is not None)
    @rule()
    def replay_breaks_off(self) -> None:
        self.replay = None
        self.connection_breaks()

    # What it holds

    @precondition(lambda self: self.subscribed_to is not None)
    @rule(unsent=st.none() | events)
    def asks_for_pages(self, unsent: list[Event] | None) -> None:
        if unsent and not self.now.unsent:
            self.now.add_up(unsent)
        self.told = self.now.pages.take()

    @rule()
    def is_not_told(self) -> None:
        self.follower.not_reported("it sends no reports")

    @precondition(lambda self: self.told is not None and self.replay is None)
    @rule(to_the_end=st.sampled_from([True, True, False]))
    def takes_over(self, to_the_end: bool) -> None:
        assert self.told is not None
        self.follower.take_over(self.told.sequence, self.told.last_unix_s)
        for page in self.told.hashes:
            self.follower.holds([page], 16)
        self.told = None
        if to_the_end:
            self.follower.taken_over()
            self.must_replay = True
        else:
            self.connection_breaks()

    # What must hold

    @invariant()
    def a_claim_is_true(self) -> None:
        """In sync: what is held is what one process held after that very batch, to the block. Else no more than that."""
        in_sync = self.follower.sync_state is SyncState.IN_SYNC
        assert self.held.claims is in_sync
        assert bool(self.follower.reason) is not in_sync
        if self.follower.sync_state in (SyncState.IN_SYNC, SyncState.PARTIAL):
            held, sequence = self.held.blocks, self.follower.sequence
            truths = [
                process.state_before(sequence)
                for process in (self.subscribed_to, self.followed)
                if process is not None and len(process.states) >= sequence
            ]
            assert any(held == truth if in_sync else held <= truth for truth in truths)

    def teardown(self) -> None:
        """When all is quiet again, three replays are enough, and what the replica holds makes it exact."""
        if not hasattr(self, "processes"):
            return
        if self.subscribed_to is not self.now:
            if self.subscribed_to is not None:
                self.connection_breaks()
            self.connects()
        self.replay = None
        self.now.publish([stored([1])])
        self.catch_up()
        assert self.follower.sequence == len(self.now.states)
        assert self.held.blocks <= self.now.blocks
        in_sync = self.follower.sync_state is SyncState.IN_SYNC
        assert self.follower.wants_pages is not in_sync
        if not in_sync:
            self.told = self.now.pages.take()
            self.takes_over(to_the_end=True)
            self.catch_up()
        assert self.follower.sync_state is SyncState.IN_SYNC
        assert self.held.blocks == self.now.blocks

    def catch_up(self) -> None:
        """Replays without loss until nothing is missing."""
        self.asked = self.followed = self.now
        for _ in range(3):
            first = self.follower.ask()
            kept = [batch for batch in self.now.kept if batch.sequence >= first]
            if all(self.follower.replayed(batch) for batch in kept) and not self.follower.ended():
                return
        raise AssertionError("three replays were not enough")


Following.TestCase.settings = examples(100, stateful_step_count=40)
TestFollowing = Following.TestCase


@given(st.lists(events, max_size=8), st.integers(0, 8))
def test_a_late_subscriber_holds_what_an_early_one_does(
    history: list[list[Event]], late: int
) -> None:
    process = Process(0, keeps=100)
    early, view = Held(), Held()
    first, second = Follower(early), Follower(view)
    for follower in (first, second):
        follower.connected()
    first.ask()
    assert not first.ended()
    batches = [process.publish(batch) for batch in history]
    for batch in batches:
        assert not first.live(batch)
    second.ask()
    for batch in batches[:late]:
        assert second.replayed(batch)
    assert not second.ended()
    for batch in batches:  # those that came meanwhile come once more
        assert not second.live(batch)
    assert view == early == Held(process.blocks, claims=True)


@given(st.lists(events, min_size=1, max_size=8), st.integers(1, 3), st.lists(events, max_size=4))
def test_a_late_router_is_exact_once_it_has_the_pages(
    history: list[list[Event]], keeps: int, more: list[list[Event]]
) -> None:
    process, view = Process(0, keeps=keeps), Held()
    follower = Follower(view)
    for batch in history:
        process.publish(batch)
    follower.connected()
    follower.ask()
    for kept in list(process.kept):
        assert follower.replayed(kept)
    assert not follower.ended()
    told = process.pages.take()
    assert told.hashes == list(dict.fromkeys(told.hashes))
    for batch in more[:keeps]:  # before the answer is there
        process.publish(batch)
    follower.take_over(told.sequence, told.last_unix_s)
    follower.holds(told.hashes, told.page_tokens)
    follower.taken_over()
    assert not view.claims
    first = follower.ask()
    came = [follower.replayed(kept) for kept in list(process.kept) if kept.sequence >= first]
    if all(came):
        assert not follower.ended()
        assert view == Held(process.blocks, claims=True)
    else:  # so many came that the last one before is gone
        assert len(more[:keeps]) >= keeps
