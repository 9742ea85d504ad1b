"""Duration of an iteration on a given GPU and model (COST_MODEL.md).

    prefill(batch) = P0 + P1·Σ extend + P2·Σ extend·context + Q0·waiting
    decode step = D0 + D1·batch + D2·KV tokens read + Q0·waiting

KV tokens are the logical sum over requests: SGLang's attention reads a shared prefix once per request.
Those of the two `a10g-llama2-7b` are measured (waiting_ms is fitted); the others are fitted or derived
(±25 %), so only ratios between schedulers may be claimed from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class ProfileError(ValueError):
    """A cost profile that cannot be used; the message names the field."""


class CostProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's speed and memory. Every duration is in milliseconds and not negative."""

    prefill_ms: float
    """P0: each prefill iteration."""
    prefill_token_ms: float
    """P1: each token computed."""
    prefill_attention_ms: float = 0.0
    """P2: each pair of a token computed and a token of its context (the context ends with the chunk)."""
    decode_ms: float
    """D0: each decode step."""
    decode_request_ms: float
    """D1: each request in the batch."""
    decode_kv_token_ms: float
    """D2: each KV token read."""
    waiting_ms: float = 0.0
    """Q0: each waiting request, in every iteration. What the server's own loops take beside the GPU."""
    first_prefill_ms: float = 0.0
    """What the first prefill of a new server takes beyond P0 and P1: the GPU's kernels are compiled."""
    swap_token_ms: float | None = None
    """Moving a KV token of a preempted request to host memory and back; None: it is dropped, and computed again."""
    kv_tokens: int
    """Size of the KV pool in tokens."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}, must be at least 0 and finite")
        if self.kv_tokens < 1:
            raise ValueError(f"kv_tokens is {self.kv_tokens}, must be at least 1")
        if self.prefill_token_ms == 0 or self.decode_ms == 0:
            raise ValueError(
                "prefill_token_ms and decode_ms must be above 0: time would stand still"
            )


PROFILES: Mapping[str, CostProfile] = MappingProxyType(
    {
        # Measured, VTC artifact; what every experiment of [V] uses.
        "a10g-llama2-7b": CostProfile(
            prefill_ms=10,
            prefill_token_ms=0.2131,
            decode_ms=19.1,
            decode_request_ms=0.244,
            decode_kv_token_ms=0.00202,
            waiting_ms=0.0019,  # fitted to the throughputs of Tables 2, 4 and 6: docs/design/0004
            kv_tokens=10_000,
        ),
        # Fitted to seven logs of [V] §6.4; P1 assumed. The other pool used there is 65000.
        "a100-llama2-13b": CostProfile(
            prefill_ms=10,
            prefill_token_ms=0.13,
            decode_ms=18.3,
            decode_request_ms=0.13,
            decode_kv_token_ms=0.000587,
            kv_tokens=35_000,
        ),
        # Derived: the main figure of [D].
        "a100-llama3.1-8b": CostProfile(
            prefill_ms=8,
            prefill_token_ms=0.063,
            prefill_attention_ms=1.6e-6,
            decode_ms=11.5,
            decode_request_ms=0.033,
            decode_kv_token_ms=9e-5,
            kv_tokens=445_000,
        ),
        # Derived: the ablations of [D], Figs. 1 and 8 to 12.
        "a10g-llama3.2-3b": CostProfile(
            prefill_ms=6,
            prefill_token_ms=0.091,
            prefill_attention_ms=4e-6,
            decode_ms=14.5,
            decode_request_ms=0.05,
            decode_kv_token_ms=2.6e-4,
            kv_tokens=124_000,
        ),
        # The server of the VTC paper, measured in one of its logs (docs/design/0004). For batches of up to 52 requests.
        "a10g-llama2-7b-slora": CostProfile(
            prefill_ms=60.5,
            prefill_token_ms=0.208,
            decode_ms=29.3,
            decode_request_ms=0.0,
            decode_kv_token_ms=0.00132,
            kv_tokens=10_000,
        ),
    }
)


def decode_profile(text: bytes | str) -> CostProfile:
    """Read a custom profile from JSON; raises `ProfileError` naming the field."""
    try:
        return msgspec.json.decode(text, type=CostProfile)
    except msgspec.MsgspecError as error:
        raise ProfileError(f"not a cost profile: {error}") from error


def slower(profile: CostProfile, factor: float) -> CostProfile:
    """The profile with every duration multiplied by `factor`."""
    durations = {
        name: value * factor
        for name, value in msgspec.structs.asdict(profile).items()
        if name.endswith("_ms") and value is not None
    }
    return msgspec.structs.replace(profile, **durations)
