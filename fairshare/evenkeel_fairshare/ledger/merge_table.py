"""Tables of rows by name that merge in any order, also with repeated or lost messages (design R3).

A row is (version, numbers…), and of two rows the later one counts: by version, among equal versions by value. That is a chain, so the
join of rows is commutative, associative and idempotent.

Cells are in one flat array of doubles, because a fleet may have millions of rows. The dictionary of slots is in the order of change,
so that the latest changes come first. The cells of removed rows are used again, and once there are more of them than rows, the array is
made anew: so removing rows takes time in proportion to their number.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from sys import byteorder, intern
from typing import Final, NamedTuple

DOUBLE_BYTES: Final = 8


class Rows(NamedTuple):
    """Rows in a message: names, and their cells row by row as little-endian doubles."""

    names: tuple[str, ...] = ()
    cells: bytes = b""

    def only(self, wanted: Callable[[str], bool]) -> Rows:
        """The rows with certain names."""
        size = len(self.cells) // len(self.names) if self.names else 0
        places = [at for at, name in enumerate(self.names) if wanted(name)]
        cells = b"".join(self.cells[at * size : (at + 1) * size] for at in places)
        return Rows(tuple(self.names[at] for at in places), cells)

    def widened(self, size: int) -> Rows:
        """The rows with one more number each, 0. `size`: bytes of a row here."""
        pieces = (self.cells[at : at + size] for at in range(0, len(self.cells), size))
        return Rows(self.names, b"".join(piece + bytes(DOUBLE_BYTES) for piece in pieces))

    def split(self, rows: int) -> list[Rows]:
        """Pieces of at most `rows` rows; at least one piece, which may be empty."""
        if len(self.names) <= rows:
            return [self]
        size = len(self.cells) // len(self.names)
        return [
            Rows(self.names[at : at + rows], self.cells[at * size : (at + rows) * size])
            for at in range(0, len(self.names), rows)
        ]


class MergeTable:
    """Rows of doubles by name: a version, then `columns` numbers."""

    __slots__ = (
        "_cells",
        "_forgotten",
        "_free",
        "_in_order",
        "_newest",
        "_nothing",
        "_slots",
        "width",
    )

    def __init__(self, *, columns: int) -> None:
        self.width = 1 + columns
        self._slots: dict[str, int] = {}
        self._cells = array("d")
        self._nothing = (0.0,) * self.width
        self._newest = 0.0
        self._in_order = True
        """Whether `_slots` runs from the oldest version to the newest."""
        self._free: list[int] = []
        """Where cells of removed rows begin."""
        self._forgotten = -math.inf
        """Rows up to this version were all here once, and are not taken again: some of them were forgotten."""

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __getitem__(self, name: str) -> array[float]:
        """A copy of the row; raises `KeyError`."""
        start = self._slots[name]
        return self._cells[start : start + self.width]

    def get(self, name: str) -> array[float] | None:
        """A copy of the row, or None."""
        start = self._slots.get(name)
        return None if start is None else self._cells[start : start + self.width]

    def cell(self, name: str, column: int, default: float = 0.0) -> float:
        """One number of a row."""
        start = self._slots.get(name)
        return default if start is None else self._cells[start + column]

    def pair(self, name: str, first: int, second: int) -> tuple[float, float] | None:
        """Two numbers of a row, or None."""
        start = self._slots.get(name)
        return None if start is None else (self._cells[start + first], self._cells[start + second])

    def copy(self) -> MergeTable:
        """A copy, much faster than `put` of every row."""
        other = MergeTable(columns=self.width - 1)
        other._slots, other._cells = self._slots.copy(), self._cells[:]
        other._newest, other._in_order = self._newest, self._in_order
        other._forgotten, other._free = self._forgotten, self._free[:]
        return other

    def put(self, name: str, row: Sequence[float]) -> bool:
        """Join one row; returns whether it changed. Raises `ValueError` if a number is not finite."""
        cells = array("d", row)
        _check_finite(cells)
        return self._join(name, cells, 0)

    def add(self, name: str, version: float, column: int, amount: float) -> None:
        """Add an amount to a column of a row, which may be new. Only for rows with a single writer: there is no join.

        Raises `ValueError`, and adds nothing, if the amount is not finite.
        """
        if not math.isfinite(amount):
            raise ValueError("an amount is not finite, or absurdly large")
        cells = self._cells
        start = self._slots.pop(name, None)
        if start is None:
            start, name = self._room(), intern(name)
        cells[start + column] += amount
        cells[start] = version
        self._slots[name] = start  # the newest
        if version < self._newest:
            self._in_order = False
        else:
            self._newest = version

    def merge(self, rows: Rows) -> list[str]:
        """Join rows; returns the names of changed rows.

        Raises `ValueError`, and joins nothing, if cells do not fit the names or are not finite.
        """
        if len(rows.cells) != len(rows.names) * self.width * DOUBLE_BYTES:
            raise ValueError(
                f"{len(rows.cells)} bytes of cells for {len(rows.names)} rows of {self.width} doubles"
            )
        cells = array("d")
        cells.frombytes(rows.cells)
        if byteorder == "big":
            cells.byteswap()
        _check_finite(cells)
        width = self.width
        return [name for i, name in enumerate(rows.names) if self._join(name, cells, i * width)]

    def since(self, version: float) -> Rows:
        """The rows with a version above `version`, newest first."""
        self._sort()
        cells = self._cells
        names = []
        for name in reversed(self._slots):
            if cells[self._slots[name]] <= version:
                break
            names.append(name)
        return self.rows(names)

    def until(self, version: float) -> list[str]:
        """The names of the rows with a version up to `version`, oldest first."""
        self._sort()
        cells = self._cells
        older = takewhile(lambda item: cells[item[1]] <= version, self._slots.items())
        return [name for name, _ in older]

    def between(self, above: float, version: float) -> list[str]:
        """The names of the rows with a version above `above`, up to `version`, newest first. It passes over the newer rows."""
        self._sort()
        cells = self._cells
        newer = takewhile(lambda item: cells[item[1]] > above, reversed(self._slots.items()))
        return [name for name, start in newer if cells[start] <= version]

    def _sort(self) -> None:
        if not self._in_order:
            self._slots = dict(sorted(self._slots.items(), key=lambda item: self._cells[item[1]]))
            self._in_order = True

    def rows(self, names: Iterable[str]) -> Rows:
        """The rows of the given names. Each must exist."""
        out = array("d")
        picked = tuple(names)
        for name in picked:
            start = self._slots[name]
            out.extend(self._cells[start : start + self.width])
        if byteorder == "big":
            out.byteswap()
        return Rows(picked, out.tobytes())

    def replace(self, name: str, numbers: Mapping[int, float]) -> None:
        """Replace numbers of a row, by column. The row is not taken again in that version: only where all versions up to it have been
        here."""
        start = self._slots[name]
        for column, number in numbers.items():
            self._cells[start + column] = number
        self._forgotten = max(self._forgotten, self._cells[start])

    def complete_to(self, version: float) -> None:
        """All rows up to a version are here: none is taken that is not."""
        self._forgotten = max(self._forgotten, version)

    def forget(self, names: Iterable[str]) -> None:
        """Remove rows, which are not taken again in that version. Only where all versions up to theirs have been here."""
        gone = set(names) & self._slots.keys()
        versions = (self._cells[self._slots[name]] for name in gone)
        self._forgotten = max(self._forgotten, *versions, -math.inf)
        self.drop(gone)

    def drop(self, names: Iterable[str]) -> None:
        """Remove rows. This is not a merge: only for rows that no peer sends again."""
        for name in names:
            start = self._slots.pop(name, None)
            if start is not None:
                self._free.append(start)
        if len(self._free) > len(self._slots):
            self._close_holes()

    def _close_holes(self) -> None:
        kept = array("d")
        slots: dict[str, int] = {}
        for name, start in self._slots.items():
            slots[name] = len(kept)
            kept.extend(self._cells[start : start + self.width])
        self._slots, self._cells, self._free = slots, kept, []

    def _room(self) -> int:
        """Where the cells of a new row begin; they are zeros."""
        if not self._free:
            start = len(self._cells)
            self._cells.extend(self._nothing)
            return start
        start = self._free.pop()
        for column in range(self.width):
            self._cells[start + column] = 0.0
        return start

    def _join(self, name: str, cells: array[float], at: int) -> bool:
        new = cells[at : at + self.width]
        if new[0] <= self._forgotten:
            return False
        start = self._slots.get(name)
        if start is None:
            # One string per name over all tables: a client is in the table of every incarnation.
            start = self._slots[intern(name)] = self._room()
            self._cells[start : start + self.width] = new
        else:
            if new <= self._cells[start : start + self.width]:
                return False  # messages repeat, and come late
            self._cells[start : start + self.width] = new
            del self._slots[name]
            self._slots[intern(name)] = start  # the newest
        self._note_order(new[0])
        return True

    def _note_order(self, version: float) -> None:
        if version < self._newest:
            self._in_order = False
        else:
            self._newest = version


def _check_finite(cells: array[float]) -> None:
    # A sum is finite only if all of its terms are: one pass in C.
    if not math.isfinite(sum(cells)):
        raise ValueError("a row holds a number that is not finite, or absurdly large")
