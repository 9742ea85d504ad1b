"""A mapping of which a changed copy costs what changed, however many entries it has.

Entries are in parts by their hash. A copy shares all parts, and copies a part before the first change in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, Generic, Self, TypeVar, cast

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Default = TypeVar("_Default")
PARTS: Final = 512


class Buckets(Mapping[_Key, _Value], Generic[_Key, _Value]):
    """Entries in parts. Only who made it may change it."""

    __slots__ = ("_own", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[dict[_Key, _Value]] = [{} for _ in range(PARTS)]
        self._own = set(range(PARTS))
        self._size = 0

    def fork(self) -> Self:
        """A copy that may be changed. This mapping must not be changed from now on."""
        found = type(self).__new__(type(self))
        found._parts, found._own, found._size = self._parts.copy(), set(), self._size
        return found

    def get(  # type: ignore[override]
        self, key: _Key, default: _Default | None = None
    ) -> _Value | _Default | None:
        return self._parts[hash(key) % PARTS].get(key, default)

    def put(self, key: _Key, value: _Value) -> None:
        """Add or replace an entry."""
        self._size += key not in self
        self._part(key)[key] = value

    def drop(self, key: _Key) -> None:
        """Remove an entry, if there is one."""
        if key in self:
            del self._part(key)[key]
            self._size -= 1

    def _part(self, key: _Key) -> dict[_Key, _Value]:
        number = hash(key) % PARTS
        if number not in self._own:
            self._parts[number] = self._parts[number].copy()
            self._own.add(number)
        return self._parts[number]

    def __getitem__(self, key: _Key) -> _Value:
        return self._parts[hash(key) % PARTS][key]

    def __contains__(self, key: object) -> bool:
        return key in self._parts[hash(key) % PARTS]

    def __iter__(self) -> Iterator[_Key]:
        return cast(Iterator[_Key], chain.from_iterable(self._parts))

    def __len__(self) -> int:
        return self._size
