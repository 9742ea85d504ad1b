"""The interface to replicas: how requests are sent, and how they fail.

    UpstreamError
      ConnectError          not sent: refused, unreachable, or no connection in time
      ConnectionLimitError  not sent: this process cannot open another connection
      BrokenError           sent; the connection broke, or the answer was not HTTP
        UnansweredError     the connection broke before any part of an answer
      SilenceError          sent; no bytes arrived for too long
      RelocatedError        sent, and taken back before any part of an answer

The errors differ in what follows. A failed connection charges no client. A broken one is tried again as a retry of the
fleet (R11). Silence is never tried again, because the replica may still be working.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evenkeel_contract.routerconfig import ReplicaConfig
from msgspec import Struct


class UpstreamError(Exception):
    """A request could not be sent to a replica, or got no answer."""


class ConnectError(UpstreamError):
    """No connection: nothing was sent."""


class ConnectionLimitError(UpstreamError):
    """The limit of open connections is reached."""


class BrokenError(UpstreamError):
    """The connection broke after the request was sent."""


class UnansweredError(BrokenError):
    """The connection broke before any part of an answer. The request may only have waited there."""


class SilenceError(UpstreamError):
    """The replica accepted the request and sent nothing."""


class RelocatedError(UpstreamError):
    """The router took the request back from a draining replica."""


class Outgoing(Struct, frozen=True, gc=False):
    """A request to a replica."""

    path: str
    headers: str
    """Header lines, each with its end, in addition to those of every request: content type and length, host, the replica's own key."""
    body: bytes
    content_type: bytes = b"application/json"


Feed = Callable[[bytes, bool], None]
"""Takes the next bytes of a body as they arrive, and whether they are known to be its last."""

Passes = Callable[[bytes], bool]
"""Whether a chunk of a stream, with its framing, may go to the client as it is. It then counts as fed."""


class Sink(Protocol):
    """A client's connection."""

    def write(self, data: bytes) -> None:
        """Send; do nothing if the client disconnected."""


class Reply(Protocol):
    """A replica's answer."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def body(self) -> bytes | None:
        """The whole body; None for a stream of events, which `relay` hands over."""

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        """Hand over the stream's bytes as they arrive, until its end (True) or until `hold` (False).

        Raises `BrokenError`, `SilenceError`.
        """

    def splice(self, passes: Passes, client: Sink) -> None:
        """Chunks that `passes` accepts may go straight to the client from now on. A reply need not do it."""

    def hold(self) -> None:
        """End the running `relay`; the replica is not read until the next one."""


class Exchange(Protocol):
    """A connection held for one request."""

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        """Send it and wait for the whole answer, or for the first bytes of a stream.

        Raises `BrokenError`, `SilenceError`, `RelocatedError`.
        """

    def break_off(self) -> bool:
        """Take the request back: `ask` raises `RelocatedError`. Returns False, and does nothing, once an answer began."""

    def close(self) -> None:
        """The request is over. A replica that has not finished sees the connection close, and aborts."""


class Upstream(Protocol):
    """All replicas."""

    def pooled(self, replica: ReplicaConfig) -> Exchange | None:
        """An open connection to a replica; None if `connect` must open one."""

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A connection to a replica; raises `ConnectError`, `ConnectionLimitError`."""
