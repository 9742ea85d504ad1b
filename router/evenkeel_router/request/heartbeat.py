"""Signs of life for the client of a stream that waits (`limits.heartbeat`): its answer begins with status 200, and comments or pings
follow until the first content. From then on an error is the last event of the stream.

Comments are part of server-sent events (WHATWG HTML, section 9.2.6), and clients ignore them. Anthropic's API has an event `ping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from evenkeel_router.api.errors import Dialect, Refusal
from evenkeel_router.api.streams import SCANS
from evenkeel_router.transport.client_request import Stream

_COMMENT: Final = b": waiting\n\n"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class Heartbeat:
    """The heartbeat of one request, from its admission to its first content or its end."""

    __slots__ = ("_dialect", "_has_begun", "_interval_s", "_loop", "_timer", "stream")

    def __init__(
        self, stream: Stream, dialect: Dialect, interval_s: float, has_begun: Callable[[], bool]
    ) -> None:
        """`stream`: the answer, of which nothing is sent yet. `has_begun`: whether its first content was sent."""
        self.stream = stream
        self._has_begun = has_begun
        self._dialect = dialect
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(interval_s, self._beat)

    def _beat(self) -> None:
        if self.stream.gone or self._has_begun():
            return
        self.stream.send(_PING if self._dialect is Dialect.ANTHROPIC else _COMMENT)
        self._timer = self._loop.call_later(self._interval_s, self._beat)

    def end(self, refusal: Refusal) -> Stream | None:
        """The stream with the error as its last event; None if nothing was sent, so that the error has a status."""
        self._timer.cancel()
        if not self.stream.started:
            return None
        scan = SCANS[self._dialect](drops_usage=False)
        self.stream.send(scan.error_event(refusal))
        self.stream.finish()
        return self.stream
