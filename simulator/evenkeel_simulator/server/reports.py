"""The replica's totals per client, on request (contract `reportsport`, design R3).

An invalid request gets no answer and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
import zmq.asyncio
from evenkeel_contract.reports import ReportError
from evenkeel_contract.reportsport import MAX_QUESTION_BYTES, Answers

from evenkeel_simulator.server.kv_events import bind


class ReportServer:
    """The ROUTER socket. Open and close it on the event loop that uses it."""

    def __init__(
        self, answers: Answers, *, refused: Callable[[], None], host: str, port: int
    ) -> None:
        """Binds at once; port 0 lets the system choose. Raises `zmq.ZMQError` if the port is taken.

        `refused` is called for every invalid request.
        """
        self._answers = answers
        self._refused = refused
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        self.port = bind(self._socket, host, port)
        self._serving = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                answers = self._answers.to(frames[-1])
            except ReportError:
                self._refused()
                continue
            for answer in answers:
                # The frames before the request are the return path: the sender, and an empty frame from a REQ.
                await self._socket.send_multipart([*frames[:-1], answer])
