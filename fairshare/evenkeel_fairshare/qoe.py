"""Quality of experience of a streamed answer, as Andes defines it (ALGORITHMS §3).

A user expects the first token after `ttft_s` and then `tokens_per_s`. The client shows token k at

    d_1 = g_1,   d_k = max(g_k, d_{k-1} + 1/speed)

when the server makes it at g_k: faster tokens wait in the client's buffer, which bridges later pauses. With e_k = ttft + (k - 1)/speed
after the arrival and the time tau at which the last token is shown,

    QoE = Σ (tau - d_k) / Σ max(0, tau - e_k),   at most 1: the areas under the actual and the expected timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor, inf
from typing import Final

EXPECTED_TTFT_S: Final = 1.0
EXPECTED_TOKENS_PER_S: Final = 4.8
"""Reading speed. Both are of the public Andes paper, not of our sources: a default, not a result."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a user expects of a streamed answer. Raises `ValueError` unless the speed is above 0 and the time at least 0."""

    ttft_s: float = EXPECTED_TTFT_S
    tokens_per_s: float = EXPECTED_TOKENS_PER_S

    def __post_init__(self) -> None:
        if not 0 <= self.ttft_s < inf:
            raise ValueError(f"expected_ttft is {self.ttft_s}, must be at least 0 and finite")
        if not 0 < self.tokens_per_s < inf:
            raise ValueError(f"expected_speed is {self.tokens_per_s}, must be above 0 and finite")

    @property
    def gap_s(self) -> float:
        """Time between two tokens."""
        return 1 / self.tokens_per_s

    def area(self, arrival_s: float, until_s: float) -> float:
        """Area under the expected timeline, tokens · seconds. The timeline has no end: the length of an answer is not known
        before."""
        return area(arrival_s + self.ttft_s, self.gap_s, until_s)


def shown_times(made_s: Sequence[float], gap_s: float) -> list[float]:
    """d_k of tokens that the server made at `made_s` (ascending): the client shows one in `gap_s` at most."""
    starts = accumulate((time_s - k * gap_s for k, time_s in enumerate(made_s)), max)
    return [start_s + k * gap_s for k, start_s in enumerate(starts)]


def qoe(made_s: Sequence[float], *, arrival_s: float, expectation: Expectation) -> float:
    """Quality of experience, 0 to 1, of one finished answer of at least one token.

    1 if every token is shown in time. A late token can be made up for by earlier ones that came before they were due.
    """
    shown = shown_times(made_s, expectation.gap_s)
    late_s = shown[-1] - arrival_s - expectation.ttft_s
    return _finished(len(shown) * shown[-1] - sum(shown), len(shown), late_s, expectation.gap_s)


def _finished(actual: float, tokens: int, late_s: float, gap_s: float) -> float:
    """`actual`: area under the actual timeline; `late_s`: from when the first token is due until the last one is shown."""
    expected = area(0.0, gap_s, late_s, most_tokens=tokens)
    if expected <= 0:
        return 1.0  # also the only token of an answer, if it is in time
    return max(0.0, min(1.0, actual / expected))


def area(first_s: float, gap_s: float, until_s: float, *, most_tokens: float = inf) -> float:
    """Σ max(0, until - t) over the tokens at t = first, first + gap, …"""
    if first_s >= until_s:
        return 0.0
    count = min(most_tokens, floor((until_s - first_s) / gap_s) + 1)
    return count * (until_s - first_s) - gap_s * count * (count - 1) / 2


class AnswerTimeline:
    """The timeline of one answer so far, as its client shows it. Each call is O(1) per token or O(1)."""

    __slots__ = ("arrival_s", "expectation", "last_s", "shown_sum_s", "tokens")

    def __init__(self, arrival_s: float, expectation: Expectation) -> None:
        self.arrival_s = arrival_s
        self.expectation = expectation
        self.tokens = 0
        self.last_s = -inf
        """When the newest token is shown, perhaps in the future."""
        self.shown_sum_s = 0.0
        """Sum of the times at which tokens are shown, seconds after the arrival."""

    def add(self, tokens: int, now_s: float) -> None:
        """The server made so many more tokens at `now_s`."""
        for _ in range(tokens):
            self.last_s = self.next_s(now_s)
            self.shown_sum_s += self.last_s - self.arrival_s
        self.tokens += tokens

    def next_s(self, now_s: float) -> float:
        """When the client shows the next token, if the server makes it at `now_s`."""
        return max(now_s, self.last_s + self.expectation.gap_s)

    def qoe(self) -> float:
        """Quality of experience of the finished answer, which has at least one token; the same as the function `qoe`."""
        whole_s = self.last_s - self.arrival_s
        return _finished(
            self.tokens * whole_s - self.shown_sum_s,
            self.tokens,
            whole_s - self.expectation.ttft_s,
            self.expectation.gap_s,
        )

    def if_waiting(self, until_s: float) -> float:
        """QoE at `until_s`, not before the newest token was made, if the server makes no more by then."""
        return self._ratio(self._area(until_s), until_s)

    def if_served(self, start_s: float, tokens_per_s: float, until_s: float) -> float:
        """QoE at `until_s` if the server makes token k from now on at `start_s` + k / `tokens_per_s`."""
        gap_s, made_gap_s = self.expectation.gap_s, 1 / tokens_per_s
        if made_gap_s <= gap_s:
            first_s = max(start_s + made_gap_s, self.last_s + gap_s)
            return self._ratio(self._area(until_s) + area(first_s, gap_s, until_s), until_s)
        # Slower than the client shows: it shows from its buffer until that is empty, and then tokens as they come.
        buffered = (
            max(0, floor((self.last_s - start_s) / (made_gap_s - gap_s))) if self.tokens else 0
        )
        more = area(self.last_s + gap_s, gap_s, until_s, most_tokens=buffered) if buffered else 0.0
        more += area(start_s + (buffered + 1) * made_gap_s, made_gap_s, until_s)
        return self._ratio(self._area(until_s) + more, until_s)

    def _area(self, until_s: float) -> float:
        """Area under the tokens that are made. Those shown later are the last ones, one gap apart from each other."""
        if not self.tokens:
            return 0.0
        gap_s = self.expectation.gap_s
        whole = self.tokens * (until_s - self.arrival_s) - self.shown_sum_s
        late_s = self.last_s - until_s
        if late_s <= 0:
            return whole
        count = min(self.tokens, ceil(late_s / gap_s))
        return whole + count * late_s - gap_s * count * (count - 1) / 2

    def _ratio(self, actual: float, until_s: float) -> float:
        expected = self.expectation.area(self.arrival_s, until_s)
        return min(1.0, actual / expected) if expected > 0 else 1.0
