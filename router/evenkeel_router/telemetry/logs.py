"""The router's log: one JSON object a line, written by a thread of its own. `request.request_state` has the lines of requests."""

from __future__ import annotations

import logging
import logging.handlers
import queue
from typing import IO, Any

import msgspec


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
    """Send all records through a queue to one thread, which the caller stops at the end. By default to standard error."""
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter())
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [_RecordQueue(records)]
    listener = logging.handlers.QueueListener(records, handler)
    listener.start()
    return listener


class _RecordQueue(logging.handlers.QueueHandler):
    """Keeps tracebacks: the formatter at the other end of the queue writes them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record
