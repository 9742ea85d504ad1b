"""How far apart two clients can get in a fleet whose replicas come and go (design R7).

Proven in docs/design/0003-hierarchical-counters.md; metrics and tests call these functions. Weighted tokens; over
the weight where it says normalised. No function takes a number of scale events. Without crashes that lose work and
routers that know different things, the bound is that of a fleet which never changes (DLPM, Theorem 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from evenkeel_fairshare.cost import HELD_TOKENS, held_token_steps


def dlpm_overshoot(
    *,
    max_input_tokens: int,
    memory_tokens: int,
    input_weight: float = 1.0,
    output_weight: float = 2.0,
    kv_time: float = 0.0,
) -> float:
    """U of DLPM: we·L + wq·M. DLPM §4.2. With a price on KV held over time (R14) also its largest charge to one batch: a single
    request that fills the memory."""
    held = kv_time / HELD_TOKENS * held_token_steps(0, 0, memory_tokens)
    return input_weight * max_input_tokens + output_weight * memory_tokens + held


@dataclass(frozen=True, slots=True, kw_only=True)
class DeficitRange:
    """How far deficits go at replicas, and so what they hand down and are started from (D3). Weighted tokens."""

    overshoot: float
    """U: how far one batch may take a deficit (`dlpm_overshoot`)."""
    quantum: float
    """Q^u: what one refill gives for weight 1, weighted tokens."""
    crash_loss: float = 0.0
    """G: the most of one client's charges that a crash destroys unreported."""
    deferred_refills: int = 0
    """Refills that a replica defers while it warms up (`replica.deficit.DEFERRED_REFILLS`): so much lower may a deficit be."""

    def max_credit(self, weight: float = 1.0) -> float:
        """A: the largest credit. Seeds are whole tokens, so is this."""
        return ceil(self.quantum * weight) + self.crash_loss

    def max_debt(self, weight: float = 1.0) -> float:
        """D: the largest debt, U where no refill is deferred."""
        return self.overshoot + ceil(self.deferred_refills * self.quantum * weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn(DeficitRange):
    """A fleet whose replicas come and go. The same values hold at both levels of the tree."""

    replicas: int
    """W: the most incarnations that live at the same time, those that surge included."""
    unsettled: int = 0
    """A: the most joins and departures that a router does not know of yet when it promises a seed."""

    def seed_error(self, weight: float = 1.0) -> float:
        """How far a promised seed may be off: every event that is not known yet by one range of a deficit.

        Seeds are whole tokens, hence at least one.
        """
        return 1.0 + self.unsettled * (self.max_debt(weight) + self.max_credit(weight))


def position_range(churn: Churn, weight: float = 1.0) -> tuple[float, float]:
    """The least and the most standing that a client can ever have, normalised (theorem 1)."""
    error = churn.seed_error(weight)
    return (
        -(churn.replicas * churn.max_credit(weight) + error) / weight,
        (churn.replicas * churn.max_debt(weight) + error) / weight,
    )


def churn_gap(churn: Churn, weights: tuple[float, float] = (1.0, 1.0)) -> float:
    """|W_f/w_f - W_g/w_g| of two clients backlogged on every live replica, over any interval (theorem 2).

    Without weights and errors 2·W·(U + Q), as in a fleet that never changes.
    """
    return sum(high - low for low, high in (position_range(churn, weight) for weight in weights))


def churn_gap_from_level(churn: Churn, weights: tuple[float, float] = (1.0, 1.0)) -> float:
    """`churn_gap` for an interval that begins when both clients are new: half as much, if the weights are equal."""
    (low_f, high_f), (low_g, high_g) = (position_range(churn, weight) for weight in weights)
    return max(high_f - low_g, high_g - low_f)
