"""Service over time: spans of service cut by windows.

Two bookings exist (ALGORITHMS A5): the
theorems book the input when a request is admitted, a span without length, and each output token when it
is made; the VTC tables spread the whole cost from the first token to the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Window = tuple[float, float]
"""Time from (included) and to (excluded), in seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """`amount` of service given to a client evenly over [start_s, end_s), or at once where they are equal."""

    client: str
    start_s: float
    end_s: float
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished request. Times are seconds from the start of the run."""

    client: str
    arrival_s: float
    first_token_s: float
    end_s: float
    input_tokens: int
    """All of them, cached or not."""
    output_tokens: int


def linear_price(input_tokens: int, output_tokens: int) -> float:
    """p + 2q, the price of both papers."""
    return input_tokens + 2.0 * output_tokens


def served(spans: Iterable[Span], windows: Sequence[Window]) -> dict[str, list[float]]:
    """W_i of each window for every client that has a span, in the order of first appearance.

    Windows may overlap; both their starts and their ends must ascend.
    """
    starts, ends = [start for start, _ in windows], [end for _, end in windows]
    if sorted(starts) != starts or sorted(ends) != ends:
        raise ValueError("the starts and the ends of windows must ascend")
    totals: dict[str, list[float]] = {}
    for span in spans:
        client = totals.setdefault(span.client, [0.0] * len(windows))
        first = bisect_right(ends, span.start_s)
        if span.start_s == span.end_s:
            for window in range(first, bisect_right(starts, span.start_s)):
                client[window] += span.amount
            continue
        per_second = span.amount / (span.end_s - span.start_s)
        for window in range(first, bisect_left(starts, span.end_s)):
            overlap_s = min(ends[window], span.end_s) - max(starts[window], span.start_s)
            client[window] += per_second * overlap_s
    return totals


def accumulated_difference(spans: Iterable[Span], times_s: Sequence[float]) -> list[float]:
    """max over pairs of |W_i(0, t) - W_j(0, t)| at each time, over all clients that have a span."""
    totals = served(spans, [(0.0, time_s) for time_s in times_s]).values()
    differences = []
    for tick in range(len(times_s)):
        amounts = [by_tick[tick] for by_tick in totals]
        differences.append(max(amounts, default=0.0) - min(amounts, default=0.0))
    return differences


def all_active(completions: Iterable[Completion]) -> Window | None:
    """Time in which all clients are active: from the latest first arrival to the earliest last end (ALGORITHMS A10).

    None if there is no such time. Jain's index of the D2LPM paper is taken over it.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for request in completions:
        first[request.client] = min(first.get(request.client, request.arrival_s), request.arrival_s)
        last[request.client] = max(last.get(request.client, request.end_s), request.end_s)
    if not first:
        return None
    window = (max(first.values()), min(last.values()))
    return window if window[0] < window[1] else None
