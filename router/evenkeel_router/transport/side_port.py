"""Bounds for a port that another library serves: how many connections, by address, and how long a client may read nothing.

The library itself bounds the time for a head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from evenkeel_router.transport.connection_shares import NO_KEY, Closing, ConnectionShares, Yields

UNREAD_S: Final = 30.0
"""How long a client of such a port may read nothing while an answer waits for it."""


class SidePort:
    """Makes a protocol of the library for each connection."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        shares: ConnectionShares,
        *,
        unread_s: float = UNREAD_S,
        network_of: Callable[[str], str],
    ) -> None:
        """`network_of`: the holder that an address stands for."""
        self.make = make
        self.shares = shares
        self.unread_s = unread_s
        self.network_of = network_of

    def __call__(self) -> SideConnection:
        return SideConnection(self)


class SideConnection(asyncio.Protocol):
    """One connection; all that the library does passes through."""

    __slots__ = ("_port", "_protocol", "_transport", "_unread_timer", "holder", "yields")

    def __init__(self, port: SidePort) -> None:
        self._port = port
        self._protocol = port.make()
        self._transport: asyncio.Transport | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self.holder = ""
        self.yields: Yields = (False, asyncio.get_running_loop().time())
        """Since it was opened: whether a request is being answered is not known here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(transport)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.holder = f"{NO_KEY}/{self._port.network_of(address)}"
        self._port.shares.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume()
        self._port.shares.remove(self)
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        loop = asyncio.get_running_loop()
        self._unread_timer = loop.call_later(self._port.unread_s, self._unread)
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self.resume()
        self._protocol.resume_writing()

    def resume(self) -> None:
        """The client reads."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _unread(self) -> None:
        self._port.shares.closing(self, Closing.NOT_READING)
        self.make_room()

    def make_room(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
