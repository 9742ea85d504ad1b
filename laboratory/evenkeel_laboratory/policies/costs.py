"""Cost functions for experiments: the profiled one of the VTC paper (App. B.2)."""

from __future__ import annotations

from dataclasses import dataclass


def profiled(input_tokens: int, output_tokens: int) -> float:
    """h of Llama-2-7b on an A10G as the paper's tables use it, in milliseconds (VTC_ARTIFACT_FACTS §1.2)."""
    p, q = input_tokens, output_tokens
    return 0.21001891 * p + 0.10075395 * q + 0.0039868 * p * q + 0.00324733 * q * q + 1.14601454


@dataclass(frozen=True, slots=True)
class ProfiledCost:
    """`profiled`, by which a long answer to a long prompt costs more than its tokens (Algorithm 4)."""

    def input_cost(self, extend_tokens: int) -> float:
        return profiled(extend_tokens, 0) - profiled(0, 0)

    def output_cost(self, extend_tokens: int, before: int, after: int) -> float:
        return profiled(extend_tokens, after) - profiled(extend_tokens, before)


class ArtifactProfiledCost(ProfiledCost):
    """The artifact's charge: h(np, 0) at admission, h(0, 0) included."""

    __slots__ = ()

    def input_cost(self, extend_tokens: int) -> float:
        return profiled(extend_tokens, 0)
