"""Following one replica's KV events: which batches are applied, which are missing, and whether the view is complete.

A state machine without clock or socket:

    joining ── connected ─▶ replaying ── nothing is missing ─▶ in sync ── a gap ─▶ replaying
       ▲                        │ another process, or the missing batches are gone:
       └── connection lost      └ drop the view, replay from the beginning

Batches that are gone leave a partial view, unless the replica reports all pages that it holds. Numbers alone prove
nothing, since a restarted replica counts from 0 again: so each replay begins with the batch that was applied last, and
continues only if it has the same bytes. docs/design/kv-events.md has the cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from evenkeel_contract.kvevents import KvEventError, Numbered, ReadBatch, decode_batch

from evenkeel_router.prefix.tokenised import Untokenised


class View(Protocol):
    """Where the blocks of one replica are kept."""

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None:
        """The replica holds these, as signed or unsigned numbers, parents first. `copies`: each may be a further copy."""

    def removed(self, hashes: Sequence[int]) -> None:
        """The replica dropped these, or a copy of each."""

    def cleared(self) -> None:
        """The replica holds nothing, or nothing is known of it any more."""

    def synced(self, complete: bool) -> None:
        """Whether the kept blocks are all that the replica holds."""


class SyncState(Enum):
    """State of the view of a replica's cache."""

    JOINING = "Joining"  # no subscription
    REPLAYING = "Replaying"  # batches may be missing and were requested
    PARTIAL = "Partial"  # blocks stored before the first known batch are unknown
    IN_SYNC = "InSync"  # equals the replica's cache after the last applied batch


@dataclass(slots=True)
class Counts:
    """What happened while a replica was followed. Totals."""

    batches: int = 0
    """Batches that were applied."""
    stored: int = 0
    """Blocks that were stored."""
    removed: int = 0
    """Blocks that were removed."""
    gaps: int = 0
    """Live batches that did not come."""
    replays: int = 0
    """Replays that were asked for, those that only made sure included."""
    restarts: int = 0
    """Times that another process than before was found to publish."""
    overruns: int = 0
    """Times that the replica no longer kept the batches that were missing."""
    unreadable: int = 0
    """Invalid batches."""
    takeovers: int = 0
    """Times that the reported pages of the replica were taken over."""


NO_SUBSCRIPTION: Final = "no subscription yet"


class Follower:
    """Follows one replica, over its restarts if need be."""

    def __init__(self, view: View) -> None:
        self.counts = Counts()
        self.last_batch_unix_s: float | None = None
        """When the replica sent what was applied last, by its own clock."""
        self.block_tokens: int | None = None
        """The size of the replica's blocks, once it stored some."""
        self._view = view
        self._wanted_tokens: int | None = None
        self._next = 0
        self._witness = b""  # of the batch before `_next`; nothing before the first
        self._takeover_unix_s: float | None = None  # its time stamp instead, after a takeover
        self._whole = True  # everything since the cache was empty is applied
        self._lacking = ""  # why it is not
        self._curable = False  # and whether knowing what the replica holds would help
        self._unreported_because = ""  # why that was not known when it was asked for last
        self._readable = True  # the last batch was
        self._trouble = NO_SUBSCRIPTION  # why there is no subscription
        self._missing = True
        self._proven = False  # in the replay under way: it is of the history that is followed
        self._reported_complete = False
        self._bound = False  # the subscription is to the process that is followed
        self._claim: Numbered | None = None  # its first batch, if a replay must show that

    # What is known

    @property
    def sequence(self) -> int:
        """Batches applied of the process that is followed, which is the number of the next one."""
        return self._next

    @property
    def sync_state(self) -> SyncState:
        """State of the view."""
        if self._trouble:
            return SyncState.JOINING
        if self._missing:
            return SyncState.REPLAYING
        if not self._whole or self._misfits():
            return SyncState.PARTIAL
        return SyncState.IN_SYNC

    @property
    def reason(self) -> str:
        """Why the view is not in sync; empty if it is."""
        if self._trouble:
            return self._trouble
        if self._missing:
            return f"waits for batches from number {self._next} on"
        if self._misfits():
            return (
                f"its blocks have {self.block_tokens} tokens, not the "
                f"{self._wanted_tokens} that prompts are cut into"
            )
        if self._curable and self._unreported_because:
            return f"{self._lacking}, and it does not report the pages that it holds: {self._unreported_because}"
        return self._lacking

    @property
    def wants_pages(self) -> bool:
        """Whether the view would be whole if the replica reported the pages that it holds."""
        is_partial = not (self._trouble or self._missing or self._whole)
        return is_partial and self._curable and self._readable

    def _misfits(self) -> bool:
        if self.block_tokens is None or self._wanted_tokens is None:
            return False
        return self.block_tokens != self._wanted_tokens

    def look_for(self, block_tokens: int) -> None:
        """The size of the blocks whose hashes are looked up: those of others are of no use."""
        self._wanted_tokens = block_tokens
        self._notify()

    def forgot(self, why: str) -> None:
        """The view lost blocks that the replica holds; it is whole again once the replica holds nothing."""
        self._lacks(why, curable=False)
        self._notify()

    def _lacks(self, why: str, *, curable: bool) -> None:
        self._whole, self._lacking, self._curable = False, why, curable

    def _lacks_nothing(self) -> None:
        self._whole, self._lacking, self._curable = True, "", False

    # The subscription

    def connected(self) -> None:
        """A subscription is there, to one process. A replay must follow: what was published before is missing."""
        self._trouble = ""
        self._missing = True
        self._bound, self._claim = False, None
        self._notify()

    def disconnected(self, why: str) -> None:
        """The subscription ended. The view stays: the next replay shows whether it is still valid."""
        self._trouble = why
        self._missing = True
        self._notify()

    def live(self, batch: Numbered) -> bool:
        """A published batch; whether a replay must follow before the next one."""
        if batch.sequence == self._next:
            self._bound = (
                self._bound or not self._next
            )  # the view is empty, so nothing in it can be of another process
            if self._bound:
                self._apply(batch)
            else:
                self._claim = batch
                self._missing = True
        elif batch.sequence > self._next:
            self.counts.gaps += 1
            self._missing = True
        elif batch.sequence == self._next - 1:
            self._bound = self._is_last(batch)
            if not self._bound:
                self._restarted()
        self._notify()
        return self._missing

    # A replay: `ask`, then `replayed` for all that comes, then `ended`

    def ask(self) -> int:
        """Begin a replay; the number of the first batch to ask for."""
        self.counts.replays += 1
        self._proven = self._next == 0
        return max(0, self._next - 1)  # one batch back: it shows whether the process is the same

    def replayed(self, batch: Numbered) -> bool:
        """A batch of a replay; False where the rest is of no use and must be asked for anew."""
        if not self._proven:
            return self._prove(batch)
        if batch.sequence == self._next:
            if self._claim is not None and self._claim.sequence == self._next:
                self._bound = self._claim == batch
                self._claim = None
                if not self._bound:  # the subscription is to a process that is no more
                    self._restarted()
                    return False
            self._apply(batch)
        elif batch.sequence > self._next:
            if self._next:  # a hole: its sender drops what is read too slowly
                return False
            self._begin_late(batch)
        self._notify()
        return True

    def ended(self) -> bool:
        """The replay is over; whether it must be made again."""
        if (
            not self._proven or self._claim is not None
        ):  # the process that answers has published fewer batches: it is another one
            self._restarted()
        else:
            self._missing = False
        self._notify()
        return self._missing

    def _prove(self, first: Numbered) -> bool:
        if first.sequence == self._next - 1 and self._is_last(first):
            self._witness, self._takeover_unix_s = _witness(first), None
            self._proven = True
            return True
        if first.sequence >= self._next:
            self.counts.overruns += 1
            self._start_over()
        else:
            self._restarted()
        return False

    def _is_last(self, batch: Numbered) -> bool:
        """Whether a batch of that number is the one that was applied last, or known to have been."""
        if self._takeover_unix_s is None:
            return _witness(batch) == self._witness
        try:
            return decode_batch(batch.payload).time_unix_s == self._takeover_unix_s
        except KvEventError:
            return False

    def _restarted(self) -> None:
        # What was taken over may be of a process that was never followed, or be reported before its last batch is sent.
        if self._takeover_unix_s is None:
            self.counts.restarts += 1
        self._start_over()

    def _start_over(self) -> None:
        """Clear the view: it belongs to another process, or may have changed since."""
        self._view.cleared()
        self._next, self._witness, self._takeover_unix_s = 0, b"", None
        self._bound, self._claim = False, None
        self._lacks_nothing()
        self._readable = True
        self._missing = True
        self._proven = False
        self.block_tokens = None
        self._notify()

    def _begin_late(self, first: Numbered) -> None:
        """The replica no longer keeps its first batches. The view has only the blocks that it stores from here on."""
        self._lacks(
            f"its batches before number {first.sequence} are not kept any more", curable=True
        )
        self._next = first.sequence
        self._apply(first)

    # A takeover, between replays: `take_over`, then `holds` for all pages, then `taken_over`, and a replay

    def take_over(self, sequence: int, last_unix_s: float) -> None:
        """The replica reports the pages that it held before batch `sequence`, after one with the time stamp `last_unix_s`."""
        self._start_over()
        self._unreported_because = ""
        self._next, self._takeover_unix_s = sequence, last_unix_s if sequence else None
        self._lacks("its report of the pages that it holds broke off", curable=True)
        self._notify()

    def holds(self, hashes: Sequence[int], page_tokens: int) -> None:
        """Add some of the replica's pages, parents first."""
        self.block_tokens = page_tokens
        self.counts.stored += len(hashes)
        self._view.stored(hashes, copies=True)

    def taken_over(self) -> None:
        """All reported pages were added. The replay that must follow shows whether they belong to the process that is
        followed."""
        self.counts.takeovers += 1
        self._lacks_nothing()
        self._notify()

    def not_reported(self, why: str) -> None:
        """The replica does not report the pages that it holds."""
        self._unreported_because = why

    # Batches

    def _apply(self, batch: Numbered) -> None:
        self._next = batch.sequence + 1
        self._witness = _witness(batch)
        try:
            read = decode_batch(batch.payload)
        except KvEventError as error:
            self.counts.unreadable += 1
            self._readable = False
            self._doubt(f"batch {batch.sequence} is invalid: {error}")
            return
        self._readable = True
        self.counts.batches += 1
        self.last_batch_unix_s = read.time_unix_s
        self._change(read)

    def _doubt(self, why: str) -> None:
        """Clear the view: too few blocks are better than one that the replica may have dropped."""
        self._view.cleared()
        self._lacks(why, curable=True)

    def _change(self, batch: ReadBatch) -> None:
        for change in batch.changes:
            if change.stores:
                self.block_tokens = change.block_size
                self.counts.stored += len(change.block_hashes)
                self._view.stored(change.block_hashes, copies=change.is_copy)
            elif change.removes:
                self.counts.removed += len(change.block_hashes)
                self._view.removed(change.block_hashes)
            elif change.clears:
                self._view.cleared()
                self._lacks_nothing()

    def _notify(self) -> None:
        complete = self.sync_state is SyncState.IN_SYNC
        if complete is not self._reported_complete:
            self._reported_complete = complete
            self._view.synced(complete)


def _witness(batch: Numbered) -> bytes:
    """A digest that distinguishes a batch from any other process's: time stamps are part of the batch."""
    return hashlib.blake2b(batch.payload, digest_size=16).digest()


@dataclass(slots=True)
class Prefixes:
    """One router's view."""

    untokenised: Untokenised = field(default_factory=Untokenised)
    """Requests that were matched by their text instead, and why."""
    followers: dict[str, Follower] = field(default_factory=dict)
    """The follower of each replica's KV events, by name."""
