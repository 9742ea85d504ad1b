"""The interface to replicas: how requests are sent, and how they fail.

    UpstreamError
      ConnectError          not sent: refused, unreachable, or no connection in time
      ConnectionLimitError  not sent: this process cannot open another connection
      BrokenError           sent; the connection broke, or the answer was not HTTP
        UnansweredError     the connection broke before any part of an answer
        TooLargeError       the answer is larger than the router holds
      SilenceError          sent; the answer did not begin, or did not go on, in time
        OverdueError        the answer did not begin, and the replica sent nothing to any client meanwhile
      RelocatedError        sent, and taken back before the answer began

The errors differ in what follows. A failed connection charges no client. A broken one is tried again as a retry of the
fleet (R11), and so is an overdue one, within the same time limit. `request.forward` has the table.

A stream begins with its first content (R19): only its reader knows which event that is, and says so with `begun`. Until
then comments, pings and empty events delay no time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

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
    """The connection broke before the answer began. The request may only have waited there."""


class TooLargeError(BrokenError):
    """The answer is larger than the router holds. It would be as large from another replica."""


class SilenceError(UpstreamError):
    """The replica accepted the request and did not answer in time."""


class OverdueError(SilenceError):
    """The replica accepted the request, and sent no content to any client for longer than it usually takes."""


class RelocatedError(UpstreamError):
    """The router took the request back from a draining replica."""


APART_BYTES: Final = 256 * 1024
"""A larger body is not copied behind its head, and is sent in pieces."""


class Outgoing(Struct, frozen=True, gc=False):
    """A request to a replica."""

    path: str
    headers: str
    """Header lines, each with its end, in addition to those of every request: content type and length, host, the replica's own key."""
    body: bytes
    content_type: bytes = b"application/json"
    rest: bytes | memoryview = b""
    """What follows of a large body."""


Feed = Callable[[bytes, bool], None]
"""Takes the next bytes of a body as they arrive, and whether they are known to be its last."""

IsOverdue = Callable[[float], bool]
"""Whether a request is overdue, after so many seconds in which its replica sent nothing to any client."""

Passes = Callable[[bytes], bool]
"""Whether a chunk of a stream, with its framing, may go to the client as it is. It then counts as fed."""


def never_overdue(silent_s: float) -> bool:
    """A request that may take its whole time."""
    return False


class Sink(Protocol):
    """A client's connection."""

    def write(self, data: bytes) -> None:
        """Send; do nothing if the client disconnected."""


class _NoClient:
    """Stands in for a client until a stream has one."""

    def write(self, data: bytes) -> None:
        """Do nothing."""


NO_CLIENT: Final = _NoClient()


def pass_nothing(_: bytes) -> bool:
    """Pass no chunk."""
    return False


class Reply(Protocol):
    """A replica's answer."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def retry_after(self) -> str:
        """The header `Retry-After`; empty if the answer has none."""

    @property
    def metadata(self) -> str:
        """vLLM's header of that name, which describes an answer of bytes; empty if the answer has none."""

    @property
    def body(self) -> bytes | None:
        """The whole body; None for a stream of events, which `relay` hands over."""

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        """Hand over the stream's bytes as they arrive, until its end (True) or until `hold` (False).

        Raises `BrokenError`, `SilenceError`.
        """

    def splice(self, passes: Passes, client: Sink) -> None:
        """Chunks that `passes` accepts may go straight to the client from now on. A reply need not do it."""

    def begun(self) -> None:
        """The stream has begun: from now on only silences between its bytes are limited."""

    def hold(self) -> None:
        """End the running `relay`; the replica is not read until the next one."""


class Exchange(Protocol):
    """A connection held for one request."""

    async def ask(
        self, request: Outgoing, *, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> Reply:
        """Send it and wait for the whole answer, or for the first bytes of a stream.

        `silence_s`: time in which the answer must begin. `is_overdue` decides on `OverdueError`, now and then. Both go on in
        `Reply.relay` until the stream has begun.
        Raises `BrokenError`, `SilenceError`, `RelocatedError`.
        """

    def break_off(self) -> bool:
        """Take the request back: `ask` or `relay` raises `RelocatedError`. Returns False, and does nothing, once the answer began."""

    def close(self) -> None:
        """The request is over. A replica that has not finished sees the connection close, and aborts."""


class Upstream(Protocol):
    """All replicas."""

    def pooled(self, replica: ReplicaConfig) -> Exchange | None:
        """An open connection to a replica; None if `connect` must open one."""

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A connection to a replica; raises `ConnectError`, `ConnectionLimitError`."""
