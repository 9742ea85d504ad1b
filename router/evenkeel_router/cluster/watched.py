"""What the Kubernetes API says in a list and in a watch, as a cache of objects of one kind. Pure.

Place in the flow: bytes of a watch → lines → **events** → cache → `cluster.endpoints`. Only the fields that a
router reads are decoded; everything else of an object is skipped over.

The surprising thing: a DELETED event and a bookmark carry a resource version too. A watch that is taken up
again has to start from the last one of any kind, or what was deleted meanwhile comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

import msgspec

MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""One event. The API server keeps objects below 1.5 MiB."""
EXPIRED: Final = 410
"""HTTP status Gone: the resource version is too old to go on from."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of an object's metadata that are read."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Named(Protocol):
    """An object of the API."""

    @property
    def metadata(self) -> Metadata: ...


Object = TypeVar("Object", bound=Named)


class _Bare(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class _List(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


_event = msgspec.json.Decoder(_Event)
_list = msgspec.json.Decoder(_List)


class WatchError(Exception):
    """The API server ended a watch with an error, or said what nobody understands."""


class Expired(WatchError):
    """The resource version is too old: list again."""


def status_error(code: int, message: str) -> WatchError:
    """What an error object of the API means for a watch."""
    kind = Expired if code == EXPIRED else WatchError
    return kind(f"{code}: {message.strip() or 'no reason given'}")


class Cache(Generic[Object]):
    """All objects of one kind that a selector takes, by name."""

    def __init__(self, kind: type[Object]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self.objects: dict[str, Object] = {}
        self.resource_version = ""
        """Where a watch goes on; empty: list first."""

    def take_list(self, body: bytes) -> None:
        """The whole, anew. What is not in it is gone."""
        listed = _decoded(_list, body)
        objects = (_decoded(self._decoder, item) for item in listed.items or ())
        self.objects = {one.metadata.name: one for one in objects}
        self.resource_version = listed.metadata.resource_version

    def take_event(self, line: bytes) -> bool:
        """One line of a watch. Whether an object changed; raises `WatchError`."""
        event = _decoded(_event, line)
        if event.type == "ERROR":
            status = _decoded(_status, event.object)
            raise status_error(status.code, status.message)
        if event.type == "BOOKMARK":
            self.resource_version = _decoded(_bare, event.object).metadata.resource_version
            return False
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise WatchError(f"an event of type {event.type!r}")
        one = _decoded(self._decoder, event.object)
        self.resource_version = one.metadata.resource_version
        if event.type == "DELETED":
            return self.objects.pop(one.metadata.name, None) is not None
        self.objects[one.metadata.name] = one
        return True

    def expire(self) -> None:
        """What is here stays, until a list replaces it."""
        self.resource_version = ""


class Lines:
    """Bytes as they come, cut at newlines. An event may span many reads, and a read many events."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The lines that end in `data`; raises `WatchError` for one without an end."""
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise WatchError(f"an event is longer than {MAX_LINE_BYTES} bytes")
        self._rest = rest
        return [bytes(line) for line in lines if line.strip()]


_bare = msgspec.json.Decoder(_Bare)
_status = msgspec.json.Decoder(_Status)
_Decoded = TypeVar("_Decoded")


def _decoded(decoder: msgspec.json.Decoder[_Decoded], data: bytes | msgspec.Raw) -> _Decoded:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WatchError(f"not what the API says in a watch: {error}") from error
