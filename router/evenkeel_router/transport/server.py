"""The traffic port: aiohttp's low-level server, told what to answer when a request is not even HTTP.

Place in the flow: socket → **HTTP parser** → pipeline. No `web.Application`: its routing and signals cost
more than everything this router decides about a request.

The surprising thing: a request that the parser refuses (a control character in a header, a header of 10 KiB)
never reaches the pipeline; `refuse` is its whole way, so that it too gets an OpenAI error body and a count.

Connections are bounded, as opening one costs nobody anything: beyond `connections_for`, the one makes room that
was silent for longest among those without a request. Half a request head is none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

"""Idle connections, and heads that come in too slowly. Longer than the 60 s of the usual load balancers."""

Refuse = Callable[[web.BaseRequest, BaseException | None], web.StreamResponse]
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def connections_for(max_concurrent: int) -> int:
    """Of clients: as many without a request as there may be requests, and a few for small routers."""
    return 2 * max_concurrent + 16


class TrafficServer(web.Server):
    """Makes a protocol for each connection. A client that goes away cancels its handler."""

    def __init__(
        self,
        handle: Handle,
        refuse: Refuse,
        *,
        keep_alive_s: float,
        max_connections: Callable[[], int],
    ) -> None:
        super().__init__(handle, handler_cancellation=True)
        self._refuse = refuse
        self._keep_alive_s = keep_alive_s
        self._max_connections = max_connections
        self._heard: dict[RequestHandler, None] = {}
        """All connections, those that were silent for longest first."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._heard[handler] = None
        if len(self._heard) > self._max_connections():
            self._make_room()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._heard.pop(handler, None)

    def heard_of(self, connection: ClientConnection) -> None:
        """Something came."""
        if connection in self._heard:  # it is not, once it made room
            del self._heard[connection]
            self._heard[connection] = None

    def _make_room(self) -> None:
        idle = (one for one in self._heard if isinstance(one, ClientConnection) and one.idle)
        closing = next(idle, None)
        if closing is not None:
            self._heard.pop(closing)
            closing.force_close()

    def __call__(self) -> RequestHandler:
        return ClientConnection(self, self._refuse, keep_alive_s=self._keep_alive_s)


class ClientConnection(RequestHandler):
    """One client's connection."""

    __slots__ = ("_fd", "_refuse", "_server", "on_full")

    def __init__(self, server: TrafficServer, refuse: Refuse, *, keep_alive_s: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp turns it off
            keepalive_timeout=keep_alive_s,
            auto_decompress=False,  # `bodies` unpacks, within bounds
        )
        self._refuse = refuse
        self._server = server
        self._fd: int | None = None
        """Its socket, while all that was written went there whole."""
        self.on_full: Callable[[], None] | None = None
        """Called when the client reads too slowly for what is written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        if own is not None and transport.get_extra_info("sslcontext") is None:
            self._fd = own.fileno()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._fd = None  # soon it is somebody else's
        super().connection_lost(exc)

    def write(self, data: bytes) -> None:
        """Send to the client; to one that is gone: nothing. All that is sent goes through here, or it is overtaken.

        At once, while the kernel takes all of it: uvloop's transport collects what is written until the end of its
        turn, which is 0.6 µs for each event of each stream. From the first time that something is left over it is
        the transport's: it waits, and says when the client reads too slowly.
        """
        if self._fd is not None:
            try:
                sent = os.write(self._fd, data)
            except OSError:  # full, or gone, which the transport finds out too
                sent = 0
            if sent == len(data):
                return
            self._fd, data = None, data[sent:]
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.transport is None or self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """What arrives. Where a body stops being one, aiohttp tells the next request, not the one it is of."""
        super().data_received(data)
        self._server.heard_of(self)
        request = self._current_request
        if request is None or request.content.is_eof() or not self._messages:
            return
        message, _ = self._messages[-1]
        if isinstance(message, _ErrInfo):
            request.content.set_exception(RequestPayloadError(message.message))

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Only what was paused: aiohttp asks for every body, and would go through its parser with nothing each time."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    @property
    def idle(self) -> bool:
        """Whether there is no request on it, nor a whole head of one."""
        return self._current_request is None and not self._messages

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.on_full is not None:
            self.on_full()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is not HTTP. The pipeline handles its own failures."""
        return self._refuse(request, exc)


def connection_of(request: web.BaseRequest) -> ClientConnection:
    """The connection that a request came on; there are no others on the traffic port."""
    return cast(ClientConnection, request.protocol)
