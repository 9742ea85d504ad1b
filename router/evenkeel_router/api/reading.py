"""How a body is read: what the router needs of it, without the fields that may not reach an engine (`fields`).

The usual body has listed fields only, of the types that the APIs name. It is read in one pass, and sent on as it came; in two, if it
has rare ones: each field that a body may have costs time, whether or not it has it. Any other is read again: fields that are not listed are removed member by member, so that neither a duplicate nor an escaped spelling
(`"r\\u0069d"`) gets through. Numbers and booleans that are written as engines take them, too (`"5"`, `5.0`, `"true"`), are read, and
sent on as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import invalid
from evenkeel_router.api.fields import FREQUENT, NESTED

Fields = TypeVar("Fields")
MAX_MEMBERS: Final = 4096  # of an object that is encoded again


class Read(msgspec.Struct, Generic[Fields], frozen=True, gc=False):
    """A body as it was read."""

    fields: Fields
    body: bytes
    """What may be sent to an engine."""
    removed: tuple[str, ...]
    """Names of the fields that were removed."""


class Reader(Generic[Fields]):
    """Reads the bodies of one API."""

    def __init__(
        self,
        model: type[Fields],
        listed: frozenset[str],
        *,
        mend: Callable[[bytes], bytes] = bytes,
        **narrowed: Any,
    ) -> None:
        """`model`: what the router reads. `narrowed`: types of fields whose own members are listed (`closed`). `mend` rewrites
        rare shapes of a body as usual ones, for reading only."""
        self._listed = listed
        own = set(model.__struct_fields__)  # type: ignore[attr-defined]
        if not own <= listed:
            raise ValueError(f"{model.__name__} reads fields that are not listed: {own - listed}")
        self._usual = msgspec.json.Decoder(closed(model, listed & FREQUENT | own, narrowed))
        self._closed = msgspec.json.Decoder(closed(model, listed, narrowed))
        self._any = msgspec.json.Decoder(model, strict=False)
        self._mend = mend

    def read(self, body: bytes, allowed: frozenset[str]) -> Read[Fields]:
        """Raises `msgspec.DecodeError`, `Refusal`. `allowed`: fields that the configuration opens."""
        try:
            return Read(self._usual.decode(body), body, ())
        except msgspec.ValidationError:
            return self._read_again(body, allowed)

    def _read_again(self, body: bytes, allowed: frozenset[str]) -> Read[Fields]:
        try:
            return Read(self._closed.decode(body), body, ())
        except msgspec.ValidationError:
            body, removed = self._cleaned(body, allowed)
            return Read(self._any.decode(self._mend(body)), body, removed)

    def _cleaned(self, body: bytes, allowed: frozenset[str]) -> tuple[bytes, tuple[str, ...]]:
        members = members_of(body)
        removed = [name for name in members if name not in self._listed and name not in allowed]
        for name in removed:
            del members[name]
        for name, listed in NESTED.items():
            if name in members:
                below = _clean_nested(members, name, listed | allowed)
                removed += [f"{name}.{one}" for one in below]
        return (msgspec.json.encode(members), tuple(removed)) if removed else (body, ())


def closed(
    model: type[Fields], listed: frozenset[str], narrowed: Mapping[str, Any] | None = None
) -> type[Fields]:
    """A structure like `model` that takes the listed fields, and no others."""
    own = set(model.__struct_fields__)  # type: ignore[attr-defined]
    fields: list[Any] = [(name, Raw | UnsetType, UNSET) for name in sorted(listed - own)]
    fields += [(name, given | UnsetType | None, UNSET) for name, given in (narrowed or {}).items()]
    made: Any = msgspec.defstruct(
        model.__name__, fields, bases=(model,), forbid_unknown_fields=True, kw_only=True
    )
    return made  # type: ignore[no-any-return]


def _clean_nested(members: dict[str, Raw], name: str, listed: frozenset[str]) -> list[str]:
    """Remove what is not listed from an object, or from each of a list of objects; the names that were removed."""
    try:
        given = _NESTED.decode(members[name])
    except msgspec.ValidationError:
        return []  # no object: its reader says so, or the engine
    objects = given if isinstance(given, list) else [given]
    removed = sorted({one for inner in objects for one in inner if one not in listed})
    if removed:
        for inner in objects:
            for one in removed:
                inner.pop(one, None)
        members[name] = Raw(msgspec.json.encode(given))
    return removed


def members_of(of: bytes | Raw) -> dict[str, Raw]:
    """An object's members, still encoded; raises `Refusal` if there are too many to encode them again."""
    members = _MEMBERS.decode(of)
    if len(members) > MAX_MEMBERS:
        message = f"The body has {len(members)} fields; send at most {MAX_MEMBERS}."
        raise invalid(message, code="invalid_value")
    return members


_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_NESTED: Final = msgspec.json.Decoder(dict[str, Raw] | list[dict[str, Raw]])
