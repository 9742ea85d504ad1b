"""Logs: one JSON object a line."""

import asyncio
import errno
import io
import json
import logging

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api.errors import Outcome
from evenkeel_router.request import request_log
from evenkeel_router.request.request_log import RequestLog
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.logs import JsonFormatter, start_logging

from tests.support.replicas import until


def request_state() -> RequestState:
    return RequestState(request_id="id", path="/v1/completions", started_s=1.0)


def lines(output: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_line_says_what_became_of_a_request_and_leaves_out_what_did_not() -> None:
    output = io.StringIO()
    log = RequestLog(output)
    refused = request_state()
    refused.status, refused.outcome = 404, Outcome.NOT_FOUND
    served = request_state()
    served.status, served.first_byte_s, served.usage = 200, 1.5, Usage(9, 4, 2)
    served.gate_s, served.sent_s = 0.10000000000401633, 1.2  # as differences of clocks are
    log.add(refused, 0.25)
    log.add(served, 2.0)
    log.flush()
    first, second = lines(output)
    assert (first["outcome"], first["status"], first["duration_s"]) == ("not_found", 404, 0.25)
    assert first.keys().isdisjoint({"replica", "held_s", "gate_s", "engine_s"})
    assert (second["gate_s"], second["engine_s"]) == (0.1, 0.3)
    assert "held_s" not in second
    assert (second["ttft_s"], second["cached_tokens"], second["message"]) == (0.5, 4, "request")
    log.flush()
    assert len(lines(output)) == 2


def test_lines_of_several_batches_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "BATCH_LINES", 2)
    output = io.StringIO()
    log = RequestLog(output)
    for duration_s in range(5):
        log.add(request_state(), float(duration_s))
    log.flush()
    assert [line["duration_s"] for line in lines(output)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_lines_that_come_too_fast_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_PENDING", 1)
    output = io.StringIO()
    log = RequestLog(output)
    log.add(request_state(), 0.0)
    log.add(request_state(), 0.0)
    log.flush()
    assert (len(lines(output)), log.dropped) == (1, 1)


class FullDisk(io.StringIO):
    """Cannot be written to as long as `is_full`."""

    is_full = True

    def write(self, text: str, /) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


async def test_the_log_goes_on_after_lines_that_could_not_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_log, "FLUSH_INTERVAL_S", 0.001)
    output = FullDisk()
    log = RequestLog(output)
    log.add(request_state(), 0.0)
    task = asyncio.create_task(log.run())
    await until(lambda: log.dropped == 1)
    output.is_full = False
    log.add(request_state(), 0.0)
    await until(lambda: len(lines(output)) == 1)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), log.dropped) == (True, 1)


def test_without_an_output_nothing_is_collected() -> None:
    log = RequestLog(None)
    log.add(request_state(), 0.0)
    log.flush()
    assert log.dropped == 0


def test_everything_else_is_logged_in_the_same_shape() -> None:
    output = io.StringIO()
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    listener = start_logging("info", output)
    try:
        log = logging.getLogger("x")
        log.info("hello %s", "you", extra={"fields": {"port": 1}})
        log.debug("not this")
        try:
            raise LookupError("planted")
        except LookupError:
            log.exception("failed")
    finally:
        listener.stop()
        root.setLevel(level)
        root.handlers[:] = handlers
    first, second = lines(output)
    assert (first["message"], first["level"], first["port"]) == ("hello you", "info", 1)
    assert "LookupError: planted" in str(second["traceback"])


def test_a_record_is_one_line_whatever_it_says() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "two\nlines", None, None)
    assert "\n" not in JsonFormatter().format(record)
