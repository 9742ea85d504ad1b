"""What serving costs: h(extend, output), in weighted tokens (VTC §4.2; design §4).

A policy charges `input_cost` when it admits and `output_cost` for every output token, so that a finished
request has paid h(extend, output) exactly (telescoping).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

HELD_TOKENS: Final = 1000
"""Tokens to which `LinearCost.kv_time` applies, so that it can be a whole number."""
FIRST_COST: Final = 1000.0
"""Assumed weighted tokens of a request of a client while no cost of its requests is known."""


class Cost(Protocol):
    """A cost function that never falls in either argument, in weighted tokens."""

    def input_cost(self, extend_tokens: int) -> float:
        """h(extend, 0) - h(0, 0)."""

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        """h(extend, after) - h(extend, before) for 0 <= before <= after."""


@dataclass(frozen=True, slots=True)
class LinearCost:
    """h = we·extend + wq·output, the cost of both papers (defaults 1 and 2), and optionally kv·(KV tokens held over time) (R14).

    Time counts in output tokens, so ranks, reports and routers need no common clock. While its output token number k is made, a
    request holds extend + k tokens of its own: it pays for them as it makes the token.
    """

    input_weight: float = 1.0
    output_weight: float = 2.0
    kv_time: float = 0.0
    """Price of `HELD_TOKENS` tokens held during one output token, weighted tokens. 0: holding memory costs nothing."""

    def input_cost(self, extend_tokens: int) -> float:
        return self.input_weight * extend_tokens

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        cost = self.output_weight * (after - before)
        if self.kv_time:
            cost += self.kv_time / HELD_TOKENS * held_token_steps(extend_tokens, before, after)
        return cost


def held_token_steps(extend_tokens: int, before: int, after: int) -> float:
    """Tokens held, summed over the output tokens `before` + 1 to `after`."""
    return (after - before) * (extend_tokens + (before + after + 1) / 2)


def flat_output_price(cost: Cost) -> float | None:
    """What every output token costs, whatever came before it; None where that depends on the request."""
    return cost.output_weight if isinstance(cost, LinearCost) and not cost.kv_time else None
