"""The figures of a window of time, and how they follow from totals: at the console and in `evenkeel top`. Pure."""

from __future__ import annotations

import msgspec


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one window, of a client or of several together."""

    service_per_s: float = 0.0
    """Weighted tokens per second."""
    owed_per_s: float = 0.0
    """Owed service, weighted tokens per second; equal to the service while the client does not wait."""
    output_tokens_per_s: float = 0.0
    """Output tokens of requests that ended at this router."""
    ttft_s: float | None = None
    """Mean time to first token of requests that ended at this router; None without any."""
    itl_s: float | None = None
    """Mean time between two tokens of streams that ended at this router; None without any."""
    hit_rate: float | None = None
    """Cached part of the input tokens of requests that ended at this router, 0 to 1; None without any."""
    qoe: float | None = None
    """Mean quality of experience of streams that ended at this router, 0 to 1; None where none was measured (`router.qoe`)."""
    waiting: int = 0
    """Requests at this router whose answer has not begun, wherever they are."""
    running: int = 0
    """Requests at this router whose answer has begun."""


def grown(now: float, before: float) -> float:
    """The growth of a total. One below the earlier one belongs to a new process and counts from 0."""
    return now - before if now >= before else now


def mean(total: float, count: float) -> float | None:
    """A total over its count; None without any."""
    return total / count if count > 0 else None
