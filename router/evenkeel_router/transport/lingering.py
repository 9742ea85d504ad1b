"""The rest of a body whose request was answered. It is read and dropped: many clients read the answer only after they have sent all.

The kernel resets a connection that is closed with unread bytes. Then the client may lose its answer (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from typing import Final

from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.request_head import HttpSyntaxError

LINGER_S: Final = 30.0
"""How long a connection stays open in all for such a rest, as in nginx (`lingering_time`)."""
LINGER_IDLE_S: Final = 5.0
"""Longest pause in the rest of a body, and the part of `LINGER_S` that is left for the end of the connection."""


async def read_rest(request: Request) -> bool:
    """Whether the rest arrived in time."""
    arrived = True
    try:
        async with asyncio.timeout(LINGER_S - LINGER_IDLE_S):
            while arrived:
                async with asyncio.timeout(LINGER_IDLE_S):
                    arrived = bool(await request.body.read())
    except (TimeoutError, HttpSyntaxError):
        return False
    return True
