"""Logs: one JSON object a line, written by a thread of its own.

API keys, prompts and answers are never logged. Of what a client sent, only its request id and its identity are, after
they were checked.

Lines of requests bypass `logging`: a record, its formatting and its lock cost as much as the choice of a replica. A
request appends one tuple instead, and a writer encodes and writes the tuples in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import queue
import sys
import time
from collections import deque
from operator import attrgetter
from typing import IO, Any, Final, NamedTuple

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import Client
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.request.request_trace import RequestTrace

FLUSH_INTERVAL_S: Final = 1.0
MAX_PENDING: Final = 50_000
"""Lines in memory; further lines are dropped and counted."""


class RequestLine(msgspec.Struct, omit_defaults=True):
    """The line of one request."""

    time: float
    request_id: str
    path: str
    status: int
    duration_s: float
    level: str = ""
    message: str = ""
    client: str = ""
    outcome: str = ""
    replica: str = ""
    attempts: int = 0
    stream: bool = False
    ttft_s: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    trace_id: str = ""


class _Ended(NamedTuple):
    """A request that ended, as the writer gets it: after the first two, fields of `RequestState`."""

    time: float
    duration_s: float
    request_id: str
    path: str
    status: int
    started_s: float
    first_byte_s: float | None
    client: Client | None
    outcome: Outcome | None
    replica: str
    attempts: int
    stream: bool
    usage: Usage | None
    trace: RequestTrace | None

    def line(self) -> RequestLine:
        """Its line."""
        line = RequestLine(
            self.time, self.request_id, self.path, self.status, round(self.duration_s, 6)
        )
        line.level, line.message = "info", "request"
        line.attempts, line.replica, line.stream = self.attempts, self.replica, self.stream
        if self.client is not None:
            line.client = self.client.identity
        if self.outcome is not None:
            line.outcome = self.outcome.value
        if self.first_byte_s is not None:
            line.ttft_s = round(self.first_byte_s - self.started_s, 6)
        if self.usage is not None:
            line.input_tokens, line.cached_tokens, line.output_tokens = self.usage
        if self.trace is not None:
            line.trace_id = self.trace.log_id()
        return line


_fields_of = attrgetter(*_Ended._fields[2:])


class RequestLog:
    """The lines of requests that ended; a thread writes them in batches. Without an output there are none."""

    def __init__(self, output: IO[str] | None) -> None:
        self._output = output
        self._lines: deque[tuple[Any, ...]] = deque()
        self._encoder = msgspec.json.Encoder()
        self.dropped = 0

    def add(self, request_state: RequestState, duration_s: float) -> None:
        """A request ended."""
        if self._output is None:
            return
        if len(self._lines) >= MAX_PENDING:
            self.dropped += 1
            return
        self._lines.append((time.time(), duration_s, *_fields_of(request_state)))

    async def run(self) -> None:
        """Write lines every second until cancelled, then the lines that remain."""
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL_S)
                if self._lines:
                    await asyncio.to_thread(self.flush)
        finally:
            self.flush()

    def flush(self) -> None:
        """Write all lines collected so far."""
        batch = []
        with contextlib.suppress(IndexError):  # the loop's thread appends meanwhile
            while True:
                batch.append(self._lines.popleft())
        if batch and self._output is not None:
            lines = [self._encoder.encode(_Ended._make(ended).line()) for ended in batch]
            self._output.write(b"\n".join((*lines, b"")).decode())
            self._output.flush()


class JsonFormatter(logging.Formatter):
    """All other log records, in the same format."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **getattr(record, "fields", {}),  # of `extra`, for programs that read logs
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def start_logging(level: str, output: IO[str] | None = None) -> logging.handlers.QueueListener:
    """Send all records through a queue to one thread, which the caller stops at the end."""
    handler = logging.StreamHandler(output if output is not None else sys.stderr)
    handler.setFormatter(JsonFormatter())
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [_Queue(records)]
    listener = logging.handlers.QueueListener(records, handler)
    listener.start()
    return listener


class _Queue(logging.handlers.QueueHandler):
    """Keeps tracebacks: the formatter at the other end of the queue writes them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record
