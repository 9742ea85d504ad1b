"""A cost that is not linear, to test policies and theorems with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuadraticCost:
    """h = a·e + b·o + c·e·o + d·o², the shape profiled in VTC App. B.2 (its constant cancels)."""

    extend: float
    output: float
    product: float
    output_squared: float

    def input_cost(self, extend_tokens: int) -> float:
        return self.extend * extend_tokens

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        linear = (self.output + self.product * extend_tokens) * (after - before)
        return linear + self.output_squared * (after * after - before * before)
