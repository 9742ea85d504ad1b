"""Messages in which a router asks another one for places at engines (R12): `POST /v1/places` on the admin port.

The question is a `PlacesAsk`, the answer a `PlacesAnswer`. A message is the version, one byte, and MessagePack. Each question has all
that its router wants and holds, so one that is lost does no harm. The answer waits until there is a place, or a newer question.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from evenkeel_contract.messages import pack, unpack

PLACES_PATH: Final = "/v1/places"
PLACES_VERSION: Final = 1
MOST_WANTS: Final = 64
"""Clients that one router asks for at once."""
MOST_HELD: Final = 1024
"""Places of another router that one router holds at once."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class PlaceWant(msgspec.Struct, frozen=True, array_like=True):
    """A client whose requests wait at the asking router."""

    client: Name
    """Identity of the client."""
    input_tokens: Tokens
    """Tokens of the prompt of its oldest request."""
    max_output_tokens: Tokens


class PlacesAsk(msgspec.Struct, frozen=True, array_like=True):
    """What one router wants of another one."""

    router: Name
    """Incarnation of the asking router."""
    asked: Annotated[str, msgspec.Meta(max_length=1024)]
    """Incarnation of the other router, by its last answer; empty before."""
    sequence: Number
    """Grows with each question."""
    seen: Number
    """The largest number of a place that has arrived."""
    held: Annotated[tuple[Number, ...], msgspec.Meta(max_length=MOST_HELD)]
    """Numbers of the places in use. All others up to `seen` are given back."""
    wants: Annotated[tuple[PlaceWant, ...], msgspec.Meta(max_length=MOST_WANTS)]


class PlaceGrant(msgspec.Struct, frozen=True, array_like=True):
    """A place for one request."""

    number: Number
    client: Name
    replica: Name
    """The replica that takes the request, by its name in the fleet."""


class PlacesAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The places that the asking router has not seen yet."""

    router: Name
    """Incarnation of the answering router."""
    grants: tuple[PlaceGrant, ...]


class PlacesMessageError(ValueError):
    """A message that is malformed or of an unknown version."""


_ask = msgspec.msgpack.Decoder(PlacesAsk)
_answer = msgspec.msgpack.Decoder(PlacesAnswer)


def encode(message: PlacesAsk | PlacesAnswer) -> bytes:
    """Encode a question or an answer."""
    return pack(PLACES_VERSION, message)


def decode_ask(data: bytes) -> PlacesAsk:
    """Decode a question; raises `PlacesMessageError`."""
    return unpack(_ask, data, PLACES_VERSION, what="a PlacesAsk", error=PlacesMessageError)


def decode_answer(data: bytes) -> PlacesAnswer:
    """Decode an answer; raises `PlacesMessageError`."""
    return unpack(_answer, data, PLACES_VERSION, what="a PlacesAnswer", error=PlacesMessageError)
