"""Objects of one kind, as lists, watches and own writes report them. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from evenkeel_operator.core.objects import KINDS, Object, without_bulk
from evenkeel_operator.core.ownership import foreign_fields
from evenkeel_operator.manifests.context import MANAGER

_Id = TypeVar("_Id", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A known object, in JSON where a cluster may have many of its kind: a tenth of the memory."""

    version: int
    item: Object | bytes
    like: bytes | None = None
    """JSON of another object of the kind: `item` is compressed, as what differs from that."""

    @property
    def object(self) -> Object:
        if not isinstance(self.item, bytes):
            return self.item
        text = self.item if self.like is None else _long(self.item, self.like)
        found: Object = msgspec.json.decode(text)
        return found


# As much as an object has, and what this takes while it is compressed: 64 KiB.
_WINDOW: Final = -13
_MEMORY: Final = 6
_GOOD: Final = 3
"""An object that is not this many times shorter when compressed is the one that later ones are compared with."""


def _short(text: bytes, like: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, like)
    return packer.compress(text) + packer.flush()


def _long(data: bytes, like: bytes) -> bytes:
    return zlib.decompressobj(_WINDOW, like).decompress(data)


Kept = dict[_Id, _Kept]


class ObjectTable(Generic[_Id]):
    """Objects by id."""

    def __init__(
        self, id_of: Callable[[Object], _Id], *, packed: bool = False, alike: bool = False
    ) -> None:
        """`packed`: keep objects in JSON. `alike`: compressed, too, since most differ little."""
        self._id_of = id_of
        self._packed = packed
        self._alike = alike
        self._like: bytes = b""
        """JSON of the object with which new ones are compared."""
        self._items: dict[_Id, _Kept] = {}
        self._meanwhile: list[tuple[bool, Object]] | None = None
        self._changed: set[_Id] = set()
        self.is_listed = False

    @property
    def items(self) -> Mapping[_Id, Object]:
        """The known objects; complete once `is_listed`."""
        return {id_: kept.object for id_, kept in self._items.items()}

    @property
    def ids(self) -> Collection[_Id]:
        """Ids of the known objects."""
        return self._items.keys()

    def get(self, id_: _Id) -> Object | None:
        """One known object."""
        kept = self._items.get(id_)
        return None if kept is None else kept.object

    def _keep(self, item: Object) -> _Kept:
        kept, version = slim(item), version_of(item)
        if not self._packed:
            return _Kept(version, kept)
        text = msgspec.json.encode(kept)
        if not self._alike:
            return _Kept(version, text)
        short = _short(text, self._like)
        if _GOOD * len(short) < len(text):
            return _Kept(version, short, self._like)
        self._like = text
        return _Kept(version, text)

    def take_changed(self) -> frozenset[_Id]:
        """Ids of objects that came, changed or went since the last call."""
        changed = frozenset(self._changed)
        self._changed.clear()
        return changed

    def begin(self) -> None:
        """A list was requested."""
        self._meanwhile = []

    def kept(self, page: Iterable[Object]) -> Kept[_Id]:
        """A page of a list, as `finish` takes it: a list of thousands of objects is never whole in memory."""
        return {self._id_of(item): self._keep(item) for item in page}

    def finish(self, listed: Iterable[Object], *, kept: Kept[_Id] | None = None) -> None:
        """The list has arrived. `kept`: pages of it."""
        before, self._items = self._items, {**(kept or {}), **self.kept(listed)}
        self._changed |= before.keys() ^ self._items.keys()
        self._changed |= {
            id_
            for id_, kept in self._items.items()
            if id_ in before and before[id_].version != kept.version
        }
        for gone, item in self._meanwhile or ():
            self._put(item, gone=gone)
        self._meanwhile = None
        self.is_listed = True

    def put(self, item: Object) -> None:
        """An object that the API server returned for a read or a write."""
        self.see(item, gone=False)

    def see(self, item: Object, *, gone: bool) -> tuple[bool, Object | None]:
        """Apply an event. Returns whether it is newer than the known object, and the object known before."""
        if self._meanwhile is not None:
            self._meanwhile.append((gone, item))
        known = self.get(self._id_of(item))
        return self._put(item, gone=gone), known

    def drop(self, id_: _Id) -> None:
        """The operator deleted the object."""
        if self._items.pop(id_, None) is not None:
            self._changed.add(id_)

    def _put(self, item: Object, *, gone: bool) -> bool:
        id_ = self._id_of(item)
        known = self._items.get(id_)
        if gone:
            # A newer object of the same name stays.
            if known is not None and known.version <= version_of(item):
                self.drop(id_)
            return True
        if known is not None and known.version >= version_of(item):
            return False  # the event of an own write, or an old event
        self._items[id_] = self._keep(item)
        self._changed.add(id_)
        return True


def slim(item: Object) -> dict[str, Any]:
    """The object without managed fields, which are half of it, and without tenants of Secrets. What managed fields say of others
    stays, in `FOREIGN`."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    found = foreign_fields(item, MANAGER) if item.get("kind") in KINDS else ()
    return {**without_bulk(item), "metadata": metadata | ({FOREIGN: found} if found else {})}


FOREIGN: Final = "foreignFields"
"""Entry of an object's metadata in the store: fields that others added."""


def version_of(item: Object) -> int:
    """Resource versions are decimal and grow (Kubernetes 1.35 says so; with etcd they always did)."""
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
