"""Messages of other processes, which may be malformed or of another version: either becomes one error."""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for malformed bytes. For bad UTF-8 and deep nesting it raises other errors than its own."""

_Message = TypeVar("_Message")
Decoder: TypeAlias = msgspec.json.Decoder[_Message] | msgspec.msgpack.Decoder[_Message]


def read(
    decoder: Decoder[_Message], data: bytes | memoryview, *, what: str, error: type[ValueError]
) -> _Message:
    """Decode a message; raises `error` if it is malformed."""
    try:
        return decoder.decode(data)
    except UNREADABLE as fault:
        raise error(f"not {what}: {fault}") from fault


def check_version(found: int | str, expected: int, error: type[ValueError]) -> None:
    """Raise `error` if a message is of another version."""
    if found != expected:
        raise error(f"version {found} is not supported; expected {expected}")


def pack(version: int, message: object) -> bytes:
    """One byte of version, and MessagePack."""
    return bytes([version]) + _encoder.encode(message)


def unpack(
    decoder: Decoder[_Message], data: bytes, version: int, *, what: str, error: type[ValueError]
) -> _Message:
    """Decode what `pack` made; raises `error`. The version comes first: a message of another one need not be readable."""
    check_version(data[0] if data else "missing", version, error)
    return read(decoder, memoryview(data)[1:], what=what, error=error)


_encoder = msgspec.msgpack.Encoder()
