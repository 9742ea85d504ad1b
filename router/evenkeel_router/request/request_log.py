"""The record of one request: its line in the log, what the console shows of it, and what `evenkeel why` explains.

API keys, prompts and answers are in no record. Of what a client sent, only its request id and its identity are, after
they were checked. Lines of requests bypass `logging`: a record, its formatting and its lock cost as much as the choice of
a replica. Instead, every 50 requests their lines are encoded in one step, and a thread writes them once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import IO, Final

import msgspec
from evenkeel_fairshare.fleet.contract import NOTHING

from evenkeel_router.request.request_state import NO_TIME_S, RequestState

FLUSH_INTERVAL_S: Final = 1.0
BATCH_LINES: Final = 50
"""Lines that are encoded together, in less than 0.1 ms of the event loop."""
MAX_PENDING: Final = 50_000
"""Lines in memory; further lines are dropped and counted, and so are lines that cannot be written."""


class RequestLogLine(msgspec.Struct, omit_defaults=True, gc=False):
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
    upstream_id: str = ""
    """The id that replicas got; absent: `request_id`."""
    held_s: float = NO_TIME_S
    """Time that the router held it because no replica took requests."""
    gate_s: float = NO_TIME_S
    """Time at gates."""
    engine_s: float = 0.0
    """Time from sending it to the last replica until the first content: its queue and the prefill; 0: it never was sent, or had none."""
    model: str = ""
    """The model that served it, behind a router of several."""


def _line(request_state: RequestState, duration_s: float) -> RequestLogLine:
    client, outcome, trace = request_state.client, request_state.outcome, request_state.trace
    started_s, first_byte_s = request_state.started_s, request_state.first_byte_s
    held_s, gate_s = request_state.held_s, request_state.gate_s
    usage = request_state.usage
    if usage is None or usage == NOTHING:
        usage = request_state.charged
    input_tokens, cached_tokens, output_tokens = usage
    return RequestLogLine(
        time.time(),
        request_state.request_id,
        request_state.path,
        request_state.status,
        round(duration_s * 1e6) / 1e6,  # in microseconds, in a fifth of the time of round(…, 6)
        "info",
        "request",
        "" if client is None else client.identity,
        "" if outcome is None else outcome.value,
        request_state.replica,
        request_state.attempts,
        request_state.stream,
        0.0 if first_byte_s is None else round((first_byte_s - started_s) * 1e6) / 1e6,
        input_tokens,
        cached_tokens,
        output_tokens,
        "" if trace is None else trace.log_id(),
        request_state.upstream_id,
        # The very default where there was no wait: the encoder omits it by identity.
        round(held_s * 1e6) / 1e6 if held_s else NO_TIME_S,
        round(gate_s * 1e6) / 1e6 if gate_s else NO_TIME_S,
        0.0 if first_byte_s is None else round((first_byte_s - request_state.sent_s) * 1e6) / 1e6,
    )


class RequestLog:
    """The records of requests that ended: the newest ones of each tenant are kept, and lines are encoded in batches, which a thread
    writes. Without an output there are no lines."""

    def __init__(self, output: IO[str] | None) -> None:
        self._output = output
        self._lines: list[RequestLogLine] = []
        self._batches: list[tuple[bytes, int]] = []
        """Encoded lines, and their number."""
        self._pending = 0
        self._encoder = msgspec.json.Encoder()
        self.dropped = 0

    def add(self, request_state: RequestState, duration_s: float) -> None:
        """A request ended. Its record is kept where its client is known: a flood without a key replaces no other record."""
        line, totals = _line(request_state, duration_s), request_state.totals
        if totals is not None:
            totals.distributions.recent.append(line)
        if self._output is None:
            return
        if self._pending >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending += 1
        self._lines.append(line)
        if len(self._lines) >= BATCH_LINES:
            self._encode()

    def of_model(self, model: str) -> Callable[[RequestState, float], None]:
        """`add`, for the requests of one of several models."""

        def add(request_state: RequestState, duration_s: float) -> None:
            if len(self._lines) == BATCH_LINES - 1:
                self._encode()  # before the line, which is not complete until it has the model
            count = len(self._lines)
            self.add(request_state, duration_s)
            if len(self._lines) > count:
                self._lines[-1].model = model

        return add

    async def run(self) -> None:
        """Write lines every second until cancelled, then the lines that remain."""
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL_S)
                if self._pending:
                    await asyncio.to_thread(self._write, self._taken())
        finally:
            self.flush()

    def flush(self) -> None:
        """Write all lines collected so far."""
        self._write(self._taken())

    def _encode(self) -> None:
        self._batches.append((self._encoder.encode_lines(self._lines), len(self._lines)))
        self._lines.clear()

    def _taken(self) -> list[tuple[bytes, int]]:
        """All batches; the log has none left."""
        if self._lines:
            self._encode()
        batches, self._batches, self._pending = self._batches, [], 0
        return batches

    def _write(self, batches: list[tuple[bytes, int]]) -> None:
        for lines, count in batches:
            assert self._output is not None  # without an output there are no lines
            try:
                self._output.write(lines.decode())
                self._output.flush()
            except OSError:  # as when the disk of the log is full
                self.dropped += count
