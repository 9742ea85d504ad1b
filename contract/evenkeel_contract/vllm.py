"""The command line and the environment of vLLM (0.32): what `render` has for SGLang.

`vllm serve` gets the model as its first argument. Each flag must also be in OWNED_FLAGS or be one of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from evenkeel_contract.enginesettings import POLICY_VARIABLE, REPORTS_HOST_VARIABLE
from evenkeel_contract.render import engine_environment, hub_revision, to_bind
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.resources import ServiceSpec

VLLM_MODULE: Final = "vllm.entrypoints.cli.main"
"""What the command `vllm` runs."""
SCHEDULER_FLAG: Final = "--scheduler-cls=evenkeel_vllm.scheduler.FairScheduler"
"""Flag that loads the plug-in."""
COMMON_FLAGS: Final = (
    SCHEDULER_FLAG,
    "--enable-prompt-tokens-details",  # usage with cached tokens
    "--prefix-caching-hash-algo=sha256_cbor",  # which routers in tokens mode compute too
)
COMMON_ENVIRONMENT: Final[Mapping[str, str]] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""No requests go to vLLM's makers."""
CPU_PAGE_TOKENS: Final = 32
"""Tokens of a page without a GPU, where it must be a multiple of 32. With a GPU, vLLM chooses a length that its kernels have."""
CPU_FLAGS: Final = (
    f"--block-size={CPU_PAGE_TOKENS}",
    "--dtype=float32",
    "--enforce-eager",  # otherwise the first start compiles for a minute
    "--distributed-executor-backend=uni",  # otherwise a second process spins, and streams stall
)
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the backend `uni` needs it
    "OMP_NUM_THREADS": "1",  # two engines on two cores would compete for the cores
}


def vllm_arguments(
    spec: ServiceSpec, *, model: str, tensor_parallel: int, drain_s: int
) -> Iterator[str]:
    """The arguments of `vllm`, without ports. `model`: a repository name or a path; `drain_s`: how long SIGTERM waits for requests."""
    yield "serve"
    yield model
    revision = hub_revision(spec.model)
    if revision:
        yield f"--revision={revision}"
    yield f"--served-model-name={spec.model.name}"
    yield f"--tensor-parallel-size={tensor_parallel}"
    yield f"--shutdown-timeout={drain_s}"
    yield from COMMON_FLAGS


def vllm_environment(
    spec: ServiceSpec, *, reports_port: int | None, reports_host: str
) -> dict[str, str]:
    """Environment of vLLM and of the plug-in."""
    return {
        **COMMON_ENVIRONMENT,
        POLICY_VARIABLE: spec.scheduling.replica_policy.value,
        REPORTS_HOST_VARIABLE: reports_host,
        **engine_environment(spec, reports_port=reports_port),
    }


def vllm_adapter_flags(model: Model, *, paths: Mapping[str, str]) -> Iterator[str]:
    """The flags of LoRA adapters; none without adapters. `paths`: as for `render.adapter_flags`."""
    if model.adapters:
        yield "--enable-lora"
        yield f"--max-loras={model.adapters_per_batch}"
        yield "--lora-modules"  # one flag with many values
        for adapter in model.adapters:
            # With the name that routers send (`api/inference.with_adapter`).
            yield f"{model.name}:{adapter.name}={paths[adapter.name]}"


def vllm_kv_events_flag(*, host: str, port: int, replay_port: int) -> str:
    """vLLM's flag for publishing and replaying KV events; host `*` means all interfaces."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{to_bind(host)}:{port}",
        "replay_endpoint": f"tcp://{to_bind(host)}:{replay_port}",
    }
    return f"--kv-events-config={msgspec.json.encode(events).decode()}"
