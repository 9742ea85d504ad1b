"""Objects of one kind, kept up to date by a list and the events of a watch. Pure.

Only the declared fields of an object are kept. Every event carries a resource version, including bookmarks and
DELETED. A resumed watch starts from the last version, so no deletion is delivered twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of an object's metadata that are read."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Named(msgspec.Struct, frozen=True):
    """An object of the API. A kind adds the fields of it that are read."""

    metadata: Metadata = Metadata()


Object = TypeVar("Object", bound=Named)


class _List(Named, frozen=True):
    items: list[Any] | None = None


class WatchError(Exception):
    """A list or an event that cannot be understood."""


class Cache(Generic[Object]):
    """All objects of one kind that a selector matches, by name."""

    def __init__(self, kind: type[Object]) -> None:
        self._kind = kind
        self.objects: dict[str, Object] = {}
        self.resource_version = ""
        """Where a watch resumes; empty: list first."""

    def replace(self, listed: Mapping[str, Any]) -> None:
        """Replace all objects by those of a list. Raises `WatchError`."""
        found = _converted(listed, _List)
        objects = (_converted(item, self._kind) for item in found.items or ())
        self.objects = {one.metadata.name: one for one in objects}
        self.resource_version = found.metadata.resource_version

    def take(self, event: Any) -> bool:
        """Apply an event of a watch. Returns whether an object changed; raises `WatchError`."""
        if not isinstance(event, dict):
            raise WatchError(f"not an event: {str(event)[:100]!r}")
        kind, item = event.get("type"), event.get("raw_object")
        if kind == "BOOKMARK":
            self.resource_version = _converted(item, Named).metadata.resource_version
            return False
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise WatchError(f"an event of unknown type {kind!r}")
        one = _converted(item, self._kind)
        self.resource_version = one.metadata.resource_version
        if kind == "DELETED":
            return self.objects.pop(one.metadata.name, None) is not None
        self.objects[one.metadata.name] = one
        return True

    def expire(self) -> None:
        """List again; the objects stay until then."""
        self.resource_version = ""


_Converted = TypeVar("_Converted")


def _converted(plain: Any, kind: type[_Converted]) -> _Converted:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise WatchError(f"unexpected content of an object: {error}") from error
