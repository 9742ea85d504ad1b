"""How one engine batches; the defaults are SGLang's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from evenkeel_contract.enginesettings import ISOLATION

from evenkeel_simulator.engine.admission import Admission


class AdmissionRule(Enum):
    """How the KV pool is reserved; see `admission`."""

    RESERVATION = "reservation"
    SGLANG = "sglang"
    HISTORY = "history"


AdmissionMaker = Callable[[int], Admission]
"""Creates a rule for a KV pool of this size, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine. The defaults are those of SGLang on a GPU of 80 GB."""

    kv_tokens: int | None = None
    """The KV pool; None: the profile's."""
    admission: AdmissionRule | AdmissionMaker = AdmissionRule.SGLANG
    """The default is SGLang's own, as all defaults here: experiments and the simulated replica begin with the engine without the
    plug-in, and name what they change. `setup.engine_config`, which `evenkeel simulate` uses, has the plug-in's default, `HISTORY`.
    A maker is a rule of its own for experiments (`evenkeel_laboratory.policies.vtc_artifact`)."""
    max_running: int = 4096
    """Most requests in the batch (`--max-running-requests`)."""
    prefill_tokens: int | None = 8192
    """Most tokens that one iteration prefills; longer prompts are chunked. None: no limit and no chunks."""
    mixed: bool = False
    """Decode in the same iteration as a prefill (`--enable-mixed-chunk`), instead of waiting for it."""
    prefix_cache: bool = True
    share_in_batch: bool = True
    """Whether a request waits for a pass if one in prefill computes more than 32 tokens that it lacks too. Only under a policy
    that matches prefixes. SGLang (0.4 and newer) moves such a request to the end of the queue instead, and only if it has no more
    than 32 tokens cached."""
    decode_steps_between_passes: int = 0
    """Decode steps between a prefill and the next pass over the queue. SGLang: 0; the VTC artifact: 10."""
    isolation: float | None = ISOLATION
    """Divide engine time among clients (R13, `replica.engine_time`) under a policy that wants it; not negative. None: prefill always
    goes first, as in SGLang without Evenkeel's plug-in."""
    share_memory: bool = True
    """Share the KV pool among clients too (R16, `replica.memory_shares`), where engine time is divided. False: in experiments only."""
    adapters_per_batch: int | None = None
    """Slots for LoRA adapters (`--max-loras-per-batch`); None: no limit, and no adapter is ever loaded."""
    adapter_load_ms: float = 20.0
    """Time to load an adapter into a slot, during which nothing is computed. The default is assumed: 150 MB (rank 32 of a model
    of 8 billion parameters) at 8 GB/s."""
    token_times: bool = False
    """Keep when each output token was made (`Engine.token_times`)."""
    retry_when_full: bool = False
    """Make a pass before every step even if memory did not suffice. SGLang waits until a request ends
    (`batch_is_full`); the VTC artifact does not."""

    @property
    def shares_memory(self) -> bool:
        return self.share_memory and self.isolation is not None

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "max_running", "prefill_tokens", "adapters_per_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")
        if not 0 <= self.adapter_load_ms < float("inf"):
            raise ValueError(f"adapter_load_ms is {self.adapter_load_ms}, must be at least 0")
        if self.decode_steps_between_passes < 0:
            raise ValueError(
                f"decode_steps_between_passes is {self.decode_steps_between_passes}, "
                "must be at least 0"
            )
