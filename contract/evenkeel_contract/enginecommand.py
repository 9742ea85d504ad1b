"""The engine's flags, from the spec: what the operator puts into a container, and `evenkeel up` into a process.

Place in the flow: spec → **flags** → `manifests/command.py` of the operator, `up/plan.py` of the command line. A new
flag belongs into OWNED_FLAGS too (a test compares). Ports, hosts and where files lie are the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from evenkeel_contract.enginesettings import EngineSettings, schedule_policy_flag
from evenkeel_contract.routerconfig import PAGE_TOKENS
from evenkeel_contract.spec import Model, ServiceSpec

# The module, not the `sglang` script: it loads plug-ins before it parses its arguments.
SGLANG_MODULE: Final = "sglang.launch_server"

# Routers hash whole pages.
PAGE_SIZE: Final = PAGE_TOKENS

COMMON_FLAGS: Final = (
    "--enable-metrics",
    "--enable-cache-report",
    "--sleep-on-idle",  # without it an idle scheduler burns a core
)
"""What routers and operators count on, whatever runs."""
CPU_FLAGS: Final = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--dtype=float32",
)
"""SGLang without a GPU: no kernels are needed, Llama and its like are served."""
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compiler
    "OMP_NUM_THREADS": "1",  # two engines on two cores would fight over them
}
OFFLINE_ENVIRONMENT: Final[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For a model from a folder: nothing is asked of Hugging Face."""


def sglang_flags(spec: ServiceSpec, *, model: str, tensor_parallel: int) -> Iterator[str]:
    """`model`: what SGLang loads, a repository's name or a path (`hub_name`); `tensor_parallel`: GPUs per replica."""
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
    """What SGLang is told of where it publishes and replays KV events; host `*`: everywhere.

    `kept_batches`: how many can be replayed, where that is not to be SGLang's 10 000.
    """
    events: dict[str, str | bool | int] = {
        "publisher": "zmq",
        "endpoint": f"tcp://{_to_bind(host)}:{port}",
        "replay_endpoint": f"tcp://{host}:{replay_port}",
    }
    if host != "*":  # SGLang would connect to it
        events["bind"] = True
    if kept_batches is not None:
        events["buffer_steps"] = kept_batches
    return f"--kv-events-config={msgspec.json.encode(events).decode()}"


def _to_bind(host: str) -> str:
    """0.5.21 knows no `bind`: it binds where it sees `*` or `::`. This is the same IPv4 address, to the socket as well."""
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdigit()
    return f"[::ffff:{host}]" if is_ipv4 else host


def simulator_flags(spec: ServiceSpec) -> Iterator[str]:
    """The simulator's flags, but for ports."""
    yield f"--model={spec.model.name}"
    yield f"--replica-policy={spec.scheduling.replica_policy.value}"
    yield f"--client-quantum={spec.scheduling.client_quantum}"
    yield f"--input-token-weight={spec.scheduling.input_token_weight}"
    yield f"--output-token-weight={spec.scheduling.output_token_weight}"
    yield f"--rejoin={spec.scheduling.rejoin.value}"


def engine_environment(spec: ServiceSpec, *, reports_port: int | None) -> dict[str, str]:
    """What the plug-in inside SGLang is told; the simulator has flags for it."""
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
    """Its branch, tag or commit, where the source names one."""
    return (model.source.partition("@")[2] or None) if hub_name(model) else None


def file_path(model: Model) -> str | None:
    """The path of a `file://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest if scheme == "file" else None
