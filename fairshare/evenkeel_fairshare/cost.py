"""What serving costs: h(extend, output), in weighted tokens (VTC §4.2; design §4).

A policy charges `input_cost` when it admits and `output_cost` for every output token, so that a finished
request has paid h(extend, output) exactly (telescoping).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Cost(Protocol):
    """A cost function that never falls in either argument, in weighted tokens."""

    def input_cost(self, extend_tokens: int) -> float:
        """h(extend, 0) - h(0, 0)."""

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        """h(extend, after) - h(extend, before) for 0 <= before <= after."""


@dataclass(frozen=True, slots=True)
class LinearCost:
    """h = we·extend + wq·output, the cost of both papers (defaults 1 and 2)."""

    input_weight: float = 1.0
    output_weight: float = 2.0

    def input_cost(self, extend_tokens: int) -> float:
        return self.input_weight * extend_tokens

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        return self.output_weight * (after - before)


def flat_output_price(cost: Cost) -> float | None:
    """What every output token costs, whatever came before it; None where that depends on the request."""
    return cost.output_weight if isinstance(cost, LinearCost) else None
