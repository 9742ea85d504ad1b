"""How much the kernel keeps for a client that does not read its stream.

By itself it would keep megabytes on each side: its buffers grow with the speed of a connection. A stream of tokens needs little of that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Final

UNSENT_BYTES: Final = 16 * 1024
"""Bytes that wait in a client's socket beyond those on their way, and up to one packet of 64 KiB. What is on its way is not bounded, so a
large answer has the speed of its path."""
UNREAD_BYTES: Final = 32 * 1024
"""Half of what the kernel keeps of a replica's stream that is not read, its own part included."""

LARGE_BYTES: Final = 256 * 1024
"""A whole answer from this size on arrives in a buffer that grows with its speed."""
FIRST_BYTES: Final = 1024 * 1024
"""Half of what that buffer has first, where the system allows as much (`net.core.rmem_max`)."""
_SO_BUF_LOCK: Final = 72


def bound_unsent(file: int) -> None:
    """Bound what waits in a TCP socket, or in those of all connections that a listening one accepts."""
    with socket.socket(fileno=os.dup(file)) as own:
        if own.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # a sandbox's own network may lack it
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def bound_unread(connection: asyncio.BaseTransport) -> None:
    """Bound what arrives and is not read; the kernel enlarges the buffer no more."""
    with _socket(connection) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)


def let_grow(connection: asyncio.BaseTransport) -> None:
    """Let the kernel enlarge the buffer again: for a large whole answer, which is read at once."""
    with _socket(connection) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, FIRST_BYTES)
        with suppress(OSError):  # Linux before 5.14: the buffer keeps that size
            own.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)


def _socket(connection: asyncio.BaseTransport) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.get_extra_info("socket").fileno()))
