"""How many requests are at one engine, and how many more this router may send there, by the engine's own figures (R12). Pure.

The engine's limit counts requests of all routers. A router has its part of it. At a small batch parts are whole places (`portion`), and
a router also counts what others have there: by the engine's last reading, and by what these routers published. Both may be old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evenkeel_router.gate.engine_load import EngineLimit, EngineLoad
from evenkeel_router.gate.sharing import Sharing
from evenkeel_router.gate.window import GatedRequest

STARVES: Final = 2
"""Readings after which requests that wait get the router's spare place: at least the time between two."""


@dataclass(slots=True, eq=False)
class Spare:
    """The one request that a router may have at engines beyond its portions of small batches, so that each one is served."""

    used_by: GatedRequest | None = None


class EngineRoom:
    """The room of one engine, as one router sees it."""

    def __init__(self, sharing: Sharing, spare: Spare) -> None:
        self._sharing = sharing
        self._spare = spare
        self.engine = EngineLimit()
        self.count = 0
        """Sequences of the requests that this router knows there: its own, and those that it lent a place."""
        self.borrowed = 0
        """Sequences of its requests there on places of other routers."""
        self.lent = 0
        """Sequences of requests of other routers there on places of this one."""
        self.published_elsewhere = 0.0
        """Requests at the engine that other routers published."""
        self.starved = 0
        """Readings since which requests wait and none went to the replica."""
        self._read_own = 0
        """Places of this router at the engine, at the last reading. If the engine had too many requests, those that it may keep."""
        self._read_elsewhere = 0.0
        """Places of others at the engine, at the last reading; those that this router had borrowed are among them."""

    def went(self, request: GatedRequest) -> None:
        """A request goes to the engine."""
        if self.uses_spare(request.sequences) and not request.is_outside:
            self._spare.used_by = request
        self.starved = 0
        self.count += request.sequences
        if request.lent:
            self.lent += request.sequences
        elif request.is_outside:
            self.borrowed += request.sequences

    def left(self, request: GatedRequest) -> None:
        """A request is over at the engine."""
        if self._spare.used_by is request:
            self._spare.used_by = None
        self.count -= request.sequences
        if request.lent:
            self.lent -= request.sequences
        elif request.is_outside:
            self.borrowed -= request.sequences

    def read(
        self,
        load: EngineLoad,
        *,
        unanswered: int,
        held_up: bool,
        streams_held_up: bool,
        waits: bool,
    ) -> None:
        """Take a reading. `unanswered`: sequences there that have not begun. `waits`: whether requests wait at the gate; the others as in
        `EngineLimit.read`."""
        total, own = load.running + load.waiting, self.count - self.borrowed
        if self.engine.is_small and self._sharing.others_wait and total < int(self.engine.limit):
            held_up = False  # by the parts of routers, not by the limit
        self.engine.read(
            load,
            begun=own - self.lent - unanswered,
            held_up=held_up,
            streams_held_up=streams_held_up,
            others_wait=self._sharing.others_wait,
        )
        if total > self.engine.limit:  # each router keeps its portion
            limit = int(self.engine.limit)
            part = limit * own / (own + self.published_elsewhere) if own else 0
            keeps = self._sharing.portion(limit) if self._sharing.others_wait else round(part)
            own = min(own, keeps)
        self._read_own = own
        self._read_elsewhere = max(0.0, total - (self.count - self.borrowed))
        self.starved = self.starved + 1 if waits else 0

    def takes(self, sequences: int) -> bool:
        """Whether the engine takes so many more; a request that is larger than its limit goes alone."""
        if self.engine.load is None or self._is_within_portion(sequences):
            return True
        if self.engine.is_small and (self._elsewhere or self._sharing.others_wait):
            return self.starved >= STARVES and self._spare.used_by is None
        return not self.count

    def uses_spare(self, sequences: int) -> bool:
        """Whether so many more go there only because requests starve."""
        starves = self.starved >= STARVES and self.engine.load is not None
        return starves and not self._is_within_portion(sequences)

    def is_known(self, sequences: int) -> bool:
        """Whether the engine is known to have places for so many more, as far as this router sees."""
        if self.engine.load is None or not self.engine.is_small:
            return True
        if not self.count and not self._elsewhere:
            return True
        return self._all_with(sequences) <= max(1.0, self.engine.known)

    def _is_within_portion(self, sequences: int) -> bool:
        """Whether so many more are within this router's part of the engine's limit."""
        limit, count = int(self.engine.limit), self.count + sequences
        if not self.engine.is_small:
            return count <= max(1, int(self.engine.limit * self._sharing.part))
        return count <= self._sharing.portion(limit) and self._all_with(sequences) <= limit

    def _all_with(self, sequences: int) -> float:
        """Requests of all routers at the engine, if so many more go there. One that takes the place of another one of this router, which
        left since the last reading, adds none."""
        count = self.count + sequences
        own = count - self.borrowed
        return count if own <= self._read_own else own + self._elsewhere

    @property
    def owes_place(self) -> bool:
        """Whether the engine has a place that is not this router's: others wait for it, and have less than their portions."""
        if self.engine.load is None or not self.engine.is_small or not self._sharing.others_wait:
            return False
        limit, count = int(self.engine.limit), self.count + 1
        return count > self._sharing.portion(limit) and self._all_with(1) <= limit

    @property
    def _elsewhere(self) -> float:
        """Places of other routers at the engine, those that this one borrows among them: when such a request ends, its router has the
        place. Both figures may be old: while requests wait there, a place that became free was taken since; otherwise a request may
        have ended since."""
        if not self.published_elsewhere and not self.borrowed:
            return 0.0
        both = self._read_elsewhere, max(0.0, self.published_elsewhere - self.lent) + self.borrowed
        return max(both) if self._sharing.others_wait else min(both)
