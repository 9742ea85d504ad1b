"""The replica's totals per client, on request (contract `reports` and `reportbook`, design R3).

Place in the flow: router's DEALER → **ROUTER socket** → the book → answer. A question that is none gets no
answer; it is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract import promptfacts
from evenkeel_contract.promptfacts import PromptFacts, PromptQuestion
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reports import ReportError, encode

from evenkeel_simulator.server.kv_events import bind

MAX_QUESTION_BYTES: Final = 4096


class ReportServer:
    """The ROUTER socket. Open and close it on the event loop that uses it."""

    def __init__(
        self,
        book: ReportBook,
        *,
        refresh: Callable[[], None],
        refused: Callable[[], None],
        prompts: PromptFacts,
        host: str,
        port: int,
    ) -> None:
        """Binds at once; port 0 lets the system choose. Raises `zmq.ZMQError` if the port is taken.

        `refresh` brings the book up to date and is called before every answer, `refused` for every question
        that is none. `prompts` is what tokens are made with.
        """
        self._book = book
        self._prompts = prompts
        self._refresh = refresh
        self._refused = refused
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        self.port = bind(self._socket, host, port)
        self._answers = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering."""
        self._answers.cancel()
        await asyncio.gather(self._answers, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                question = promptfacts.decode_question(frames[-1])
            except ReportError:
                self._refused()
                continue
            if isinstance(question, PromptQuestion):
                answer = promptfacts.answer(self._prompts, question)
            else:
                self._refresh()
                answer = encode(self._book.answer(question))
            # Everything before the question is the way back: the asker, and an empty frame from a REQ.
            await self._socket.send_multipart([*frames[:-1], answer])
