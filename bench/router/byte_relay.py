"""Copies bytes without parsing HTTP: `python -m bench.router.byte_relay --worker URL --worker URL`.

It is the least cost in the comparison: the kernel and uvloop for one read and one write of each event. No router in Python over
uvloop can cost less. Each client connection has its own connection to a worker, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

import uvloop


class _End(asyncio.Protocol):
    """One of two connections that belong together."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._fd = -1
        self.other: _End | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end, too."""
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        """Write at once, as the router does; the transport keeps the bytes that the kernel does not take."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._fd >= 0:
            try:
                sent = os.write(self._fd, data)
            except OSError:
                sent = 0
            if sent == len(data):
                return
            self._fd, data = -1, data[sent:]
        self.transport.write(data)

    def join(self, other: _End) -> None:
        """Connect both ends."""
        self.other, other.other = other, self
        for data in self._early:
            self.data_received(data)
        self._early.clear()


class _Client(_End):
    """A client's connection; it connects to a worker at once."""

    def __init__(self, turn: Iterator[tuple[str, int]], tasks: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._turn = turn
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        super().connection_made(transport)
        task = asyncio.get_running_loop().create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        _, worker = await asyncio.get_running_loop().create_connection(_End, *next(self._turn))
        self.join(worker)


async def serve(port: int, workers: list[str]) -> None:
    """Serve on loopback until cancelled."""
    places = [(url.hostname or "", url.port or 80) for url in map(urlsplit, workers)]
    turn, tasks = itertools.cycle(places), set[asyncio.Task[None]]()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(turn, tasks), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await server.serve_forever()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker", action="append", required=True)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.worker))


if __name__ == "__main__":
    main()
