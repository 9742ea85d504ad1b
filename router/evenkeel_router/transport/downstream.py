"""The interface to one client's connection: what its requests and their answers need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from evenkeel_router.transport.upstream import Sink


class Downstream(Sink, Protocol):
    """A client's connection."""

    peer: str
    """The client's address; empty if its socket has none."""
    opened_s: float
    holder: str
    """Who holds the connection: the client of its last request, or an address (`connection_shares`)."""
    task: asyncio.Task[None] | None
    """Task that answers the current request."""
    on_full: Callable[[], None] | None
    """Callback for a client that reads more slowly than the router writes; None: no stream waits for it."""
    writing_paused: bool
    """Whether the client must read before more is written."""

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""

    async def drain(self) -> None:
        """Wait until the client has read enough."""

    @property
    def known(self) -> bool:
        """Whether the last request had a valid identity."""

    def may_yield(self, yields: bool) -> None:
        """Whether the connection may be closed for others from now on, although it has a request: it waits for its sender, or is not admitted."""

    def abort(self) -> None:
        """Close at once and drop what the client has not read."""

    def pause_body(self) -> None:
        """Stop reading until the handler has read the body."""

    def resume_body(self) -> None:
        """The handler has read the body."""


@contextmanager
def yielding(connection: Downstream) -> Iterator[None]:
    """While the block runs, the connection may be closed for others, although it has a request."""
    connection.may_yield(True)
    try:
        yield
    finally:
        connection.may_yield(False)
