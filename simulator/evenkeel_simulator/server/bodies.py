"""JSON bodies of requests, and the error for those that cannot be served."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Body = TypeVar("_Body")


class BadRequest(ValueError):
    """A request that cannot be served; the message names the field and is safe to show.

    SGLang refuses some bodies with 400 and the type `Bad Request` (its schema) and others with `BadRequestError` (its own
    checks); clients see both, so `by_schema` keeps them apart.
    """

    def __init__(self, message: str, *, by_schema: bool = False) -> None:
        super().__init__(message)
        self.by_schema = by_schema


def decode(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """A JSON body of the decoder's type; raises `BadRequest`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error), by_schema=True) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"JSON decode error: {error}", by_schema=True) from error
