"""The theorems for fleets as functions: what each replica promises by itself, added up.

Place: beside `bounds`, whose figures for one replica come in here; results are in weighted tokens, or in
seconds where the name says so. `overshoots` are U of each replica (`bounds.dlpm_overshoot`,
`bounds.vtc_overshoot`): with |W| equal ones these are the papers' figures.

All of them suppose that a client that is backlogged is so *on every replica*. The fleet policy has to bring
that about: D2LPM does with any finite Q^w, per-client round-robin always does, and with an infinite Q^w
there is no bound at all (D2LPM paper, Theorem A.5).

The surprising thing: Q^w appears nowhere. And a bound that is a sum over replicas grows with the fleet, but
so does the fleet's rate: in seconds of service it stays what it is on one replica.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.bounds import (
    dlpm_backlogged_gap,
    dlpm_service_error,
    dlpm_shortfall,
    vtc_backlogged_gap,
    vtc_shortfall,
)


def d2lpm_service_error(overshoots: Sequence[float], quantum: float, weight: float = 1.0) -> float:
    """|Σ_w k_w·Q^u·weight - W| of a client that is backlogged everywhere and starts from 0 everywhere.

    k_w: its refills at replica w. max(Q^u, U)·|W| (D2LPM paper, Theorem A.3).
    """
    return sum(dlpm_service_error(overshoot, quantum, weight) for overshoot in overshoots)


def d2lpm_backlogged_gap(
    overshoots: Sequence[float], quantum: float, weights: tuple[float, float] = (1.0, 1.0)
) -> float:
    """|W_f/w_f - W_g/w_g| of two clients backlogged everywhere: 2|W|(U + Q^u) without weights.

    D2LPM paper, Theorem 5.1. Weights are what the replicas divide by; those that scale Q^w do not matter.
    """
    return sum(dlpm_backlogged_gap(overshoot, quantum, weights) for overshoot in overshoots)


def d2lpm_shortfall(
    overshoots: Sequence[float], quantum: float, weights: tuple[float, float] = (1.0, 1.0)
) -> float:
    """W_g/w_g - W_f/w_f of a client f backlogged everywhere and any client g: 2|W|(U + Q^u).

    D2LPM paper, Theorem 5.2. Needs replicas that keep debts on rejoin (R4).
    """
    return sum(dlpm_shortfall(overshoot, quantum, weights) for overshoot in overshoots)


def d2lpm_dispatch_delay_s(
    overshoots: Sequence[float], quantum: float, *, clients: int, service_per_s: float
) -> float:
    """How long the next request of a client waits that has none waiting and none running anywhere.

    (n - 1)·|W|·2(U + Q^u)/a (D2LPM paper, Theorem A.4), with a, which the paper leaves open, read as the
    least that the *whole fleet* gives. With equal replicas that is Theorem A.2 at the replica to which the
    request goes.
    """
    return (clients - 1) * d2lpm_shortfall(overshoots, quantum) / service_per_s


def per_client_round_robin_backlogged_gap(
    overshoots: Sequence[float], weights: Sequence[float] = (1.0,)
) -> float:
    """|W_f/w_f - W_g/w_g| of two clients backlogged everywhere, VTC at every replica: |W|·2U.

    D2LPM paper, Theorem A.6, whose constant is the single replica's, |W| times (ALGORITHMS §2.2).
    """
    return sum(vtc_backlogged_gap(overshoot, weights) for overshoot in overshoots)


def per_client_round_robin_shortfall(
    overshoots: Sequence[float], weights: Sequence[float] = (1.0,)
) -> float:
    """W_g/w_g - W_f/w_f of a client f backlogged everywhere and any client g: |W|·4U (Theorem A.6)."""
    return sum(vtc_shortfall(overshoot, weights) for overshoot in overshoots)
