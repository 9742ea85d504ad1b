"""The replica's totals per client, on request, from inside SGLang's scheduler process (design R3).

The same socket answers with which tokenizer the engine uses, and with what its cache holds. It has a thread of its own, since
the scheduler's loop sleeps when idle and must not wait for routers when busy. Answers are built when a router asks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from functools import cache
from time import monotonic

import zmq
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.promptfacts import PromptFacts
from evenkeel_contract.reportbook import News, ReportBook
from evenkeel_contract.reports import ReportError
from evenkeel_contract.reportsport import (
    MAX_QUESTION_BYTES,
    SNAPSHOT_INTERVAL_S,
    Answers,
    AtMostEvery,
)

logger = logging.getLogger(__name__)


class ReportServer:
    """Answers routers until the process ends."""

    def __init__(
        self,
        book: ReportBook,
        news: Callable[[Collection[str]], News],
        *,
        prompts: Callable[[], PromptFacts],
        pages: HeldPages,
        host: str,
        port: int,
    ) -> None:
        """Binds at once; port 0 lets the system choose. Raises `zmq.ZMQError` if the port is taken.

        `prompts` is called once, when a router first asks; `news`, with the clients whose rows are given back, at most every
        `SNAPSHOT_INTERVAL_S`, however many routers ask.
        """
        self._answers = Answers(
            book=book,
            refresh=AtMostEvery(
                SNAPSHOT_INTERVAL_S,
                lambda: book.take(news(book.idle(monotonic()))),
                clock=monotonic,
            ),
            prompts=cache(prompts),
            pages=pages,
        )
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        address = f"[{host}]" if ":" in host else host
        self._socket.bind(f"tcp://{address}:{port or '*'}")
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        threading.Thread(target=self._serve, name="evenkeel-reports", daemon=True).start()

    def _serve(self) -> None:
        while True:
            frames = self._socket.recv_multipart()
            try:
                answers = self._answers.to(frames[-1])
            except ReportError as error:
                logger.warning(
                    "evenkeel: refused an invalid question on the reports port: %s", error
                )
                continue
            for answer in answers:
                # Everything before the question is the way back: the asker, and an empty frame from a REQ.
                self._socket.send_multipart([*frames[:-1], answer])
