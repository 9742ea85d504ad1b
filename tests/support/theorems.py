"""The theorems as functions, so that tests and documents mean the same number.

All results are in weighted tokens, or in seconds where the name says so. Every bound holds for admission that
reserves input + max_output of each request (ALGORITHMS §7 A1); for another admission test, give as
`memory_tokens` the largest sum of final lengths that ever runs together.

No function takes the length of the interval: the bounds are the same for any.

Two levels (design R9): every DLPM bound holds for tenants with the tenants' weights, and for the clients of
one tenant with the clients' weights, with the same overshoot: what runs for a tenant is in one memory, however
many clients it has.

Bounds for fleets are sums over the replicas; `overshoots` are U of each of them (`evenkeel_fairshare.bounds.dlpm_overshoot`, `vtc_overshoot`). They
suppose that a backlogged client is backlogged *on every replica*. D2LPM brings that about with any finite Q^w, and
per-client round-robin always does; with an infinite Q^w there is no bound (D2LPM paper, Theorem A.5). So Q^w is in none.
`evenkeel_fairshare.bounds` has the bounds that the product shows, those of fleets whose replicas come and go included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenkeel_fairshare.cost import HELD_TOKENS, Cost, held_token_steps


def vtc_overshoot(
    *,
    max_input_tokens: int,
    memory_tokens: int,
    input_weight: float = 1.0,
    output_weight: float = 2.0,
    kv_time: float = 0.0,
) -> float:
    """U of VTC: what a client can receive from its last admission on. VTC, equation 2. With a price on KV held over time also its
    largest charge to one batch.

    The paper's max(wp·L, wq·M) supposes wp <= wq. Where input costs more, the request admitted last pays for
    its input out of memory that then holds no output: wp·L + wq·(M - L).
    """
    held = kv_time / HELD_TOKENS * held_token_steps(0, 0, memory_tokens)
    if input_weight > output_weight:
        rest = output_weight * (memory_tokens - max_input_tokens)
        return input_weight * max_input_tokens + rest + held
    return max(input_weight * max_input_tokens, output_weight * memory_tokens) + held


def general_overshoot(cost: Cost, batches: Iterable[Iterable[tuple[int, int]]]) -> float:
    """U for a general cost h: the most that the requests of one batch add up to. VTC §4.2.

    `batches`: every set of requests that can run together, each request as (input, output) tokens.
    """
    return max(
        sum(cost.input_cost(size) + cost.output_cost(size, 0, made) for size, made in batch)
        for batch in batches
    )


def vtc_counter_spread(overshoot: float, weights: Sequence[float] = (1.0,)) -> float:
    """Largest minus smallest counter of the clients that wait: U, over the smallest weight. VTC, Lemma 4.3."""
    return overshoot / min(weights)


def vtc_backlogged_gap(overshoot: float, weights: Sequence[float] = (1.0,)) -> float:
    """|W_f/w_f - W_g/w_g| of two backlogged clients: 2U, over the smallest weight of all clients.

    VTC, Theorem 4.4; with weights by the same proof (ALGORITHMS §1.5).
    """
    return 2 * vtc_counter_spread(overshoot, weights)


def vtc_shortfall(overshoot: float, weights: Sequence[float] = (1.0,)) -> float:
    """W_g/w_g - W_f/w_f of a backlogged client f and any client g: 4U, over the smallest weight of all.

    VTC, Theorem 4.9.
    """
    return 4 * vtc_counter_spread(overshoot, weights)


def vtc_dispatch_delay_s(overshoot: float, *, clients: int, service_per_s: float) -> float:
    """How long the next request of a client waits that has none waiting and none running.

    `clients`: all of them; `service_per_s`: the least that the server gives at any time. VTC, Theorem 4.11.
    """
    return 2 * (clients - 1) * overshoot / service_per_s


def least_gap_of_any_policy(*, memory_tokens: int, output_weight: float = 2.0) -> float:
    """wq·M: no policy that conserves work and never preempts can promise less. VTC, Theorem 4.8."""
    return output_weight * memory_tokens


def dlpm_deficit_range(
    overshoot: float, quantum: float, weight: float = 1.0, *, deferred_refills: int = 0
) -> tuple[float, float]:
    """(-U, Q·w): a deficit is above the first and at most the second. DLPM, equations 1 and 2.

    For clients that brought no debt along (`Request.seed`). Here and below, `deferred_refills` is for a replica that warms
    up (`replica.deficit.DEFERRED_REFILLS`; proofs in docs/design/0003): so many quanta more may a client owe.
    """
    return -overshoot - deferred_refills * quantum * weight, quantum * weight


def dlpm_service_error(
    overshoot: float, quantum: float, weight: float = 1.0, *, deferred_refills: int = 0
) -> float:
    """|K·Q·w - W| of a backlogged client over K refills that starts from 0. DLPM, Theorem A.1."""
    return max(quantum * weight, overshoot + deferred_refills * quantum * weight)


def dlpm_backlogged_gap(
    overshoot: float,
    quantum: float,
    weights: tuple[float, float] = (1.0, 1.0),
    *,
    deferred_refills: int = 0,
) -> float:
    """|W_f/w_f - W_g/w_g| of two backlogged clients: 2(U + Q) without weights. DLPM, Theorem 4.1.

    With weights (w_f, w_g): both deficits stay in their ranges and both got the same quanta, which leaves
    (U + Q·w_f)/w_f + (U + Q·w_g)/w_g. A client that comes to a replica that warms up makes up for `deferred_refills` quanta once.
    """
    return (
        sum((overshoot + quantum * weight) / weight for weight in weights)
        + deferred_refills * quantum
    )


def gated_backlogged_gap(
    overshoot: float,
    quantum: float,
    weights: tuple[float, float] = (1.0, 1.0),
    *,
    tokens_at_engine: int,
    input_weight: float = 1.0,
) -> float:
    """|W_f/w_f - W_g/w_g| of two clients backlogged at a gate, over any interval (docs/design/0008).

    `tokens_at_engine`: T, the largest sum of final lengths at the engine, its own queue included; U is that of a memory of T. For
    each client what the gate charges and what the engine computes differ by at most we·T, more or less, and a deficit may exceed
    its quantum by corrections of at most we·T: 3·we·T beyond Theorem 4.1, which needs we <= wq.
    """
    window = sum(3 * input_weight * tokens_at_engine / weight for weight in weights)
    return dlpm_backlogged_gap(overshoot, quantum, weights) + window


def dlpm_shortfall(
    overshoot: float,
    quantum: float,
    weights: tuple[float, float] = (1.0, 1.0),
    *,
    deferred_refills: int = 0,
) -> float:
    """W_g/w_g - W_f/w_f of a backlogged client f and any client g. DLPM, Theorem 4.2.

    The same figure as between backlogged clients, since g gets no more refills than f.
    """
    return dlpm_backlogged_gap(overshoot, quantum, weights, deferred_refills=deferred_refills)


def dlpm_dispatch_delay_s(
    overshoot: float,
    quantum: float,
    *,
    clients: int,
    service_per_s: float,
    tenants: int = 1,
    deferred_refills: int = 0,
) -> float:
    """How long the next request of a client waits that has none waiting and none running, weights equal.

    DLPM, Theorem A.2: 2(n - 1)(Q + U)/a. With several tenants, n is the number of clients of its own tenant:
    they get at most 2(n - 1)(Q + U) meanwhile, and every other tenant at most 2(Q + U) more than that, by
    Theorem 4.2 at each level; together 2(tenants·n - 1)(Q + U).
    """
    each = dlpm_shortfall(overshoot, quantum, deferred_refills=deferred_refills)
    return (tenants * clients - 1) * each / service_per_s


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
