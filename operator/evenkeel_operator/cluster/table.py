"""Objects of one kind of question ("all tenants of a namespace"): listed once, kept fresh by events.

The surprising thing: a list takes time, and what happens meanwhile comes as events before the list does. They are kept
and applied to it, so that it never brings back what is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from evenkeel_operator.core.objects import Object

_Id = TypeVar("_Id", bound=Hashable)


class Table(Generic[_Id]):
    """Objects by id."""

    def __init__(self, id_of: Callable[[Object], _Id]) -> None:
        self._id_of = id_of
        self._items: dict[_Id, Object] = {}
        self._meanwhile: list[tuple[bool, Object]] | None = None
        self.is_listed = False

    @property
    def items(self) -> Mapping[_Id, Object]:
        """All of them, as far as is known: all that there are once `is_listed`."""
        return dict(self._items)

    def begin(self) -> None:
        """A list was asked for."""
        self._meanwhile = []

    def finish(self, listed: Iterable[Object]) -> None:
        """The list is there."""
        self._items = {self._id_of(item): slim(item) for item in listed}
        for gone, item in self._meanwhile or ():
            self._put(item, gone=gone)
        self._meanwhile = None
        self.is_listed = True

    def put(self, item: Object) -> None:
        """An answer of the API server to our own write, or to a question."""
        self.see(item, gone=False)

    def see(self, item: Object, *, gone: bool) -> tuple[bool, Object | None]:
        """An event: whether it is news, and what was known before."""
        if self._meanwhile is not None:
            self._meanwhile.append((gone, item))
        known = self._items.get(self._id_of(item))
        return self._put(item, gone=gone), known

    def drop(self, id_: _Id) -> None:
        """We deleted it ourselves."""
        self._items.pop(id_, None)

    def _put(self, item: Object, *, gone: bool) -> bool:
        id_ = self._id_of(item)
        known = self._items.get(id_)
        if gone:
            # A namesake that was made since stays.
            if known is not None and version_of(known) <= version_of(item):
                del self._items[id_]
            return True
        if known is not None and version_of(known) >= version_of(item):
            return False  # the echo of our own write, or an old tale
        self._items[id_] = slim(item)
        return True


def slim(item: Object) -> dict[str, Any]:
    """Without what is never read here and makes up half of an object."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "metadata": metadata}


def version_of(item: Object) -> int:
    """Resource versions are decimal and grow (Kubernetes 1.35 says so; with etcd they always did)."""
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
