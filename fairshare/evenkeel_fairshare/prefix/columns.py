"""Columns of an index: which bit of its entries stands for which replica.

A replica that leaves gives up its column, and its slot gets another one with the next replica there. So its entries need not be found
before the slot is used again. They are cleaned in small steps, and then the column is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evenkeel_fairshare.fleet.contract import ReplicaSet, slots_of

_REMEMBERED: Final = 1024


class Columns:
    """Slot → column. Bit c + 1 of an entry is column c. Several indexes may share it."""

    __slots__ = (
        "_assigned",
        "_dirty",
        "_masks",
        "_replica",
        "_sets",
        "_slot_of",
        "are_slots",
        "of",
        "retired",
    )

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        """Slot → its column, for slots that a block was noted for."""
        self._slot_of: dict[int, int] = {}
        self._replica: dict[int, int] = {}
        self._assigned = 0
        self._dirty: dict[int, int] = {}
        """Column of a replica that left → indexes whose entries may have it."""
        self.are_slots = True
        """Whether each column has the number of its slot, and none is dirty."""
        self.retired = 0
        """Replicas that left so far."""
        self._masks: dict[int, int] = {}
        self._sets: dict[int, ReplicaSet] = {}

    def replica(self, column: int) -> int:
        """A number of the replica that has the column, which no other replica ever has; 0 where none has it."""
        return self._replica.get(column, 0)

    def assign(self, slot: int) -> int:
        """The column of a slot, from now on if it has none: its own number, or the lowest that is free."""
        column = self.of.get(slot)
        if column is None:
            column = slot
            if column in self._slot_of or column in self._dirty:
                column = 0
                while column in self._slot_of or column in self._dirty:
                    column += 1
            self.of[slot], self._slot_of[column] = column, slot
            self._assigned += 1
            self._replica[column] = self._assigned
            self._changed()
        return column

    def retire(self, slot: int, indexes: int = 1) -> int | None:
        """The replica in a slot left: its column, which each of so many indexes calls `cleaned` for; None: it had none."""
        column = self.of.pop(slot, None)
        if column is not None:
            del self._slot_of[column], self._replica[column]
            self._dirty[column] = indexes
            self.retired += 1
            self._changed()
        return column

    def cleaned(self, column: int) -> None:
        """No entry of one index has the column any more."""
        self._dirty[column] -= 1
        if not self._dirty[column]:
            del self._dirty[column]
            self._changed()

    def bits(self, slots: ReplicaSet) -> int:
        """The bits of entries for these slots."""
        if self.are_slots:
            return slots << 1
        bits = self._masks.get(slots)
        if bits is None:
            columns = map(self.of.get, slots_of(slots))
            bits = sum(2 << column for column in columns if column is not None)
            if len(self._masks) >= _REMEMBERED:
                self._masks.clear()
            self._masks[slots] = bits
        return bits

    def slots(self, bits: int) -> ReplicaSet:
        """The slots for these bits of an entry; replicas that left have none."""
        if self.are_slots:
            return ReplicaSet(bits >> 1)
        slots = self._sets.get(bits)
        if slots is None:
            found: Iterable[int | None] = map(self._slot_of.get, slots_of(ReplicaSet(bits >> 1)))
            slots = ReplicaSet(sum(1 << slot for slot in found if slot is not None))
            if len(self._sets) >= _REMEMBERED:
                self._sets.clear()
            self._sets[bits] = slots
        return slots

    def _changed(self) -> None:
        self._masks.clear()
        self._sets.clear()
        self.are_slots = not self._dirty and all(slot == column for slot, column in self.of.items())
