"""The one seam to replicas: what the pipeline asks of them, how it fails, and a fake.

    UpstreamError
      ConnectError       nothing was sent: refused, unreachable, no connection in time
      NoRoomError        nothing was sent: this process has no room for another connection
      BrokenError        it was sent, and the connection broke or what came back was not HTTP
        UnansweredError  the connection broke before anything of an answer came
      SilenceError       it was sent, and nothing came for too long
      MovedError         it was sent, and taken back before anything of an answer came

Place in the flow: select → **connect → exchange → relay** → account. The errors differ in what may
follow: a connection that failed charges nobody, a broken one is retried as a retry of the fleet (R11), and
silence is never retried: the replica may still be working.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from evenkeel_contract.routerconfig import ReplicaConfig


class UpstreamError(Exception):
    """A replica could not be asked, or did not answer."""


class ConnectError(UpstreamError):
    """No connection: nothing was sent."""


class ConnectionLimitError(UpstreamError):
    """As many connections are open as may be."""


class BrokenError(UpstreamError):
    """The connection broke after the request was sent."""


class UnansweredError(BrokenError):
    """The connection broke before anything of an answer came: the request may only have waited there."""


class SilenceError(UpstreamError):
    """The replica took the request and stayed silent."""


class RelocatedError(UpstreamError):
    """The router took the request back from a replica that drains."""


class Outgoing(NamedTuple):
    """A request to a replica."""

    path: str
    headers: Sequence[tuple[str, str]]
    """Beyond those of every request: content type and length, host, the replica's own key."""
    body: bytes


Feed = Callable[[bytes, bool], None]
"""Takes the next bytes of a body as they come, and whether they are its last as far as is known."""

Passes = Callable[[bytes], bool]
"""Whether a chunk of a stream, with its framing, may go to the client as it is; it then counts as fed."""


class Sink(Protocol):
    """A client's connection."""

    def write(self, data: bytes) -> None:
        """Send. To one that is gone: nothing."""


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
        """Hand over the stream's bytes as they come, until its end (True) or until `hold` (False).

        Raises `BrokenError`, `SilenceError`.
        """

    def splice(self, passes: Passes, client: Sink) -> None:
        """Chunks that `passes` may go straight to the client from now on. A reply need not do it."""

    def hold(self) -> None:
        """End the `relay` under way; the replica is not read until the next one."""


class Exchange(Protocol):
    """A connection held for one request."""

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        """Send it and wait for the whole answer, or for the first bytes of a stream.

        Raises `BrokenError`, `SilenceError`, `RelocatedError`.
        """

    def break_off(self) -> bool:
        """Take the request back: `ask` raises `RelocatedError`. False, and nothing is done, once an answer began."""

    def close(self) -> None:
        """The request is over. A replica that is not finished sees the connection close, and aborts."""


class Upstream(Protocol):
    """All replicas."""

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A connection to a replica; raises `ConnectError`, `ConnectionLimitError`."""


@dataclass(slots=True)
class FakeReply:
    """A reply made of parts, for tests: each a piece of the body or an error to raise in its place."""

    parts: Sequence[bytes | UpstreamError]
    status: int = 200
    content_type: str = "application/json"
    _position: int = 0
    _held: bool = False

    @property
    def body(self) -> bytes | None:
        if self.content_type.startswith("text/event-stream"):
            return None
        return b"".join(part for part in self.parts if isinstance(part, bytes))

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        self._held = False
        while self._position < len(self.parts) and not self._held:
            part = self.parts[self._position]
            self._position += 1
            if isinstance(part, UpstreamError):
                raise part
            feed(part, self._position == len(self.parts))
        return not self._held

    def splice(self, passes: Passes, client: Sink) -> None:
        return None

    def hold(self) -> None:
        self._held = True


Answer = Callable[[ReplicaConfig, Outgoing], FakeReply | UpstreamError]


@dataclass(slots=True)
class FakeUpstream:
    """Replicas without sockets: `answer` decides what each request gets. `asked` remembers them all."""

    answer: Answer
    asked: list[tuple[str, Outgoing]] = field(default_factory=list)
    closed: int = 0

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        return _FakeExchange(self, replica)


@dataclass(slots=True)
class _FakeExchange:
    upstream: FakeUpstream
    replica: ReplicaConfig

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        self.upstream.asked.append((self.replica.name, request))
        answer = self.upstream.answer(self.replica, request)
        if isinstance(answer, UpstreamError):
            raise answer
        return answer

    def break_off(self) -> bool:
        return False

    def close(self) -> None:
        self.upstream.closed += 1
