"""Builds the engine's flags from the spec, for the operator's containers and the processes of `evenkeel up`.

Each flag must also be in OWNED_FLAGS (a test compares them). The caller adds ports, hosts and file paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from evenkeel_contract.enginesettings import EngineSettings, schedule_policy_flag
from evenkeel_contract.routerconfig import PAGE_TOKENS
from evenkeel_contract.spec import Model, ServiceSpec

# The module, not the `sglang` script: the module loads plug-ins before it parses its arguments.
SGLANG_MODULE: Final = "sglang.launch_server"

# Tokens of a page; routers hash whole pages.
PAGE_SIZE: Final = PAGE_TOKENS

COMMON_FLAGS: Final = (
    "--enable-metrics",
    "--enable-cache-report",
    "--sleep-on-idle",  # without it an idle scheduler burns a core
)
"""Flags that routers and the operator need with every runtime."""
CPU_FLAGS: Final = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--dtype=float32",
)
"""SGLang without a GPU. These settings need no kernels and serve models such as Llama."""
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compiler
    "OMP_NUM_THREADS": "1",  # two engines on two cores would compete for the cores
}
OFFLINE_ENVIRONMENT: Final[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For a model in a local folder: no requests go to Hugging Face."""


def sglang_flags(spec: ServiceSpec, *, model: str, tensor_parallel: int) -> Iterator[str]:
    """`model`: a repository name or a path that SGLang loads (`hub_name`); `tensor_parallel`: GPUs per replica."""
    yield f"--model-path={model}"
    revision = hub_revision(spec.model)
    if revision:
        yield f"--revision={revision}"
    yield f"--served-model-name={spec.model.name}"
    yield f"--tensor-parallel-size={tensor_parallel}"
    yield f"--schedule-policy={schedule_policy_flag(spec.scheduling.replica_policy.value)}"
    yield from COMMON_FLAGS


def kv_events_flag(
    *, host: str, port: int, replay_port: int, kept_batches: int | None = None
) -> str:
    """SGLang's flag for publishing and replaying KV events; host `*` means all interfaces.

    `kept_batches`: batches kept for replay; None means SGLang's default of 10 000.
    """
    events: dict[str, str | bool | int] = {
        "publisher": "zmq",
        "endpoint": f"tcp://{_to_bind(host)}:{port}",
        "replay_endpoint": f"tcp://{host}:{replay_port}",
    }
    if host != "*":  # otherwise SGLang connects instead of binding
        events["bind"] = True
    if kept_batches is not None:
        events["buffer_steps"] = kept_batches
    return f"--kv-events-config={msgspec.json.encode(events).decode()}"


def _to_bind(host: str) -> str:
    """The same IPv4 address, written with `::`: SGLang 0.5.21 has no `bind` and binds only if it sees `*` or `::`."""
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdigit()
    return f"[::ffff:{host}]" if is_ipv4 else host


def simulator_flags(spec: ServiceSpec) -> Iterator[str]:
    """The simulator's flags, without ports."""
    yield f"--model={spec.model.name}"
    yield f"--replica-policy={spec.scheduling.replica_policy.value}"
    yield f"--client-quantum={spec.scheduling.client_quantum}"
    yield f"--input-token-weight={spec.scheduling.input_token_weight}"
    yield f"--output-token-weight={spec.scheduling.output_token_weight}"
    yield f"--rejoin={spec.scheduling.rejoin.value}"


def engine_environment(spec: ServiceSpec, *, reports_port: int | None) -> dict[str, str]:
    """Environment of the SGLang plug-in. The simulator has flags for the same settings."""
    scheduling = spec.scheduling
    return EngineSettings(
        client_quantum=scheduling.client_quantum,
        input_token_weight=scheduling.input_token_weight,
        output_token_weight=scheduling.output_token_weight,
        rejoin=scheduling.rejoin.value,
        reports_port=reports_port,
    ).to_environment()


def hub_name(model: Model) -> str | None:
    """The repository of an `hf://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest.partition("@")[0] if scheme == "hf" else None


def hub_revision(model: Model) -> str | None:
    """Its branch, tag or commit, if the source names one."""
    return (model.source.partition("@")[2] or None) if hub_name(model) else None


def file_path(model: Model) -> str | None:
    """The path of a `file://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest if scheme == "file" else None
