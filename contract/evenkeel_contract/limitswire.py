"""Messages in which routers share out the limits of tenants: `POST /v1/limits` on the admin port.

The question is a `LimitsAsk`, the answer a `LimitsAnswer`. A message is the version, one byte, and MessagePack.
A part is a fraction of a tenant's limit; a level is a fraction of its burst, or of its concurrent requests.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from evenkeel_contract.messages import pack, unpack

LIMITS_PATH: Final = "/v1/limits"
LIMITS_VERSION: Final = 1

_MOST: Final = 1e12
Fraction = Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Epoch = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**62)], str]
"""Number and author of a census. Parts move only between routers in the same epoch."""


class LimitWant(msgspec.Struct, frozen=True, array_like=True):
    """One limit that the asker has demand for."""

    limit: str
    size: Positive
    """Burst, or concurrent requests, of the whole limit."""
    fill_s: Amount
    """Seconds in which an empty bucket fills; 0 for a limit that does not refill."""
    demand: Amount
    part: Fraction
    need: Amount
    """Level that waiting requests lack."""


class LimitGift(msgspec.Struct, frozen=True, array_like=True):
    """A part that the answering router no longer has. Its level may be negative: a debt."""

    limit: str
    part: Fraction
    level: Fraction


class HeldParts(msgspec.Struct, frozen=True, array_like=True):
    """All parts of one router when it enters an epoch."""

    fresh: bool
    """Whether this is the first epoch of the router."""
    default: Fraction
    """Part that the router has of each limit that is not in `limits`."""
    limits: dict[str, Fraction]


class LimitsAsk(msgspec.Struct, frozen=True, array_like=True):
    """Asks another router for parts, or, in a census, which parts it has."""

    router: str
    epoch: Epoch
    census: bool
    wants: tuple[LimitWant, ...]


class LimitsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The parts that the answering router gives, or has."""

    router: str
    epoch: Epoch
    held: HeldParts | None
    """Parts of the router; set if this question made it enter the epoch of a census."""
    gifts: tuple[LimitGift, ...]


class LimitsMessageError(ValueError):
    """A message that is malformed or of an unknown version."""


_ask = msgspec.msgpack.Decoder(LimitsAsk)
_answer = msgspec.msgpack.Decoder(LimitsAnswer)


def encode(message: LimitsAsk | LimitsAnswer) -> bytes:
    """Encode a question or an answer."""
    return pack(LIMITS_VERSION, message)


def decode_ask(data: bytes) -> LimitsAsk:
    """Decode a question; raises `LimitsMessageError`."""
    return unpack(_ask, data, LIMITS_VERSION, what="a LimitsAsk", error=LimitsMessageError)


def decode_answer(data: bytes) -> LimitsAnswer:
    """Decode an answer; raises `LimitsMessageError`."""
    return unpack(_answer, data, LIMITS_VERSION, what="a LimitsAnswer", error=LimitsMessageError)
