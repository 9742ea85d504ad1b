"""Reading a request's body: bounded in size and in time.

Place in the flow: head → **body** → parse. Most bodies have arrived with their head, and cost no wait.

The surprising thing: what all requests hold together is bounded too (`Budget`). Without that, as many
requests as may be in flight, each with the largest body allowed, would be 64 GiB.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from evenkeel_router.core.errors import Refusal, invalid
from evenkeel_router.core.outcomes import Outcome

BODY_TIMEOUT_S: Final = 60.0  # for the whole body, once its head is there


class Budget:
    """Bytes of bodies in memory."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Use some; raises `Refusal`."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            message = f"The router holds {self.used_bytes} bytes of requests, as many as it may."
            raise Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=1)
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Give some back."""
        self.used_bytes -= size_bytes


async def read_body(
    request: web.BaseRequest, budget: Budget, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, taken from the budget: give back its length. Raises `Refusal`."""
    content = request.content
    try:
        if content.is_eof():
            body: bytes = content.read_nowait()
            if len(body) > limit_bytes:
                raise _too_large(limit_bytes)
            budget.take(len(body))
            return body
        _check_announced(request, limit_bytes)
        _continue(request)
        async with asyncio.timeout(timeout_s):
            return await _collect(request, budget, limit_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise invalid(message, code="body_timeout") from error
    except (RequestPayloadError, HttpProcessingError) as error:
        raise invalid("The body is not framed as its head says.", code="invalid_body") from error


async def _collect(request: web.BaseRequest, budget: Budget, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    taken_bytes = 0
    try:
        while piece := await request.content.readany():
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            budget.take(len(piece))
            taken_bytes += len(piece)
            pieces.append(piece)
    except BaseException:  # the client going away (cancellation) included
        budget.give(taken_bytes)
        raise
    return b"".join(pieces)


def _check_announced(request: web.BaseRequest, limit_bytes: int) -> None:
    """Refuse before reading where the head says enough."""
    length = request.content_length
    if length is not None and length > limit_bytes:
        raise _too_large(limit_bytes)


def _continue(request: web.BaseRequest) -> None:
    """Some clients (curl above 1 MiB) send the head and wait to be told."""
    expected = request.headers.get("Expect", "").lower() == "100-continue"
    if expected and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit_bytes: int) -> Refusal:
    message = f"The body is larger than {limit_bytes} bytes."
    return Refusal(Outcome.TOO_LARGE, message, code="body_too_large")
