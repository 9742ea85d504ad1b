"""The engine's command line, from the spec. Every flag here is one that `spec.engine.args` may not hold.

Place in the flow: spec → **arguments** → container. A new flag belongs into OWNED_FLAGS too (a test compares).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from evenkeel_contract.enginesettings import EngineSettings, schedule_policy_flag
from evenkeel_contract.names import (
    ENGINE_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    REPORTS_PORT,
)
from evenkeel_contract.spec import Model, Runtime, ServiceSpec

# The module, not the `sglang` script: it loads plug-ins before it parses its arguments.
SGLANG_COMMAND: Final = ("python3", "-m", "sglang.launch_server")
CACHE_PATH: Final = "/models/cache"
"""Where files that are fetched go: `spec.model.cache`, or a directory of the pod."""
CLAIM_PATH: Final = "/models/claim"
"""Where the volume of a `pvc://` source is mounted."""

# Routers hash whole pages; 16 tokens is what caches are usually cut into, and the simulator's default.
PAGE_SIZE: Final = 16

_SCHEDULE_POLICIES: Final = {
    "DLPM": "dlpm",
    "VTC": "vtc",
    "VTCPredict": "vtcpredict",
    "DRR": "drr",
    "LCF": "lcf",
    "LPM": "lpm",
    "FCFS": "fcfs",
}


def engine_arguments(spec: ServiceSpec, *, key_env: str) -> Iterator[str]:
    """All arguments, as `--flag=value`; the key is expanded by the kubelet, so that no spec shows it."""
    sglang = spec.engine.runtime is Runtime.SGLANG
    yield from _sglang(spec) if sglang else _simulator(spec)
    yield "--host=0.0.0.0"
    yield f"--port={ENGINE_PORT}"
    yield f"--api-key=$({key_env})"
    yield f"--page-size={PAGE_SIZE}"
    # Last, so that of a flag given twice the spec's counts; those above are refused in it.
    yield from spec.engine.args


def _sglang(spec: ServiceSpec) -> Iterator[str]:
    yield f"--model-path={model_path(spec.model)}"
    revision = _revision(spec.model)
    if revision:
        yield f"--revision={revision}"
    yield f"--served-model-name={spec.model.name}"
    yield f"--tensor-parallel-size={spec.engine.gpu.count}"
    yield f"--schedule-policy={schedule_policy_flag(spec.scheduling.replica_policy.value)}"
    yield "--enable-metrics"
    yield "--enable-cache-report"
    yield "--sleep-on-idle"  # without it an idle scheduler burns a core
    events = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{KV_EVENTS_PORT}",
        "replay_endpoint": f"tcp://*:{KV_REPLAY_PORT}",
    }
    yield f"--kv-events-config={msgspec.json.encode(events).decode()}"


def _simulator(spec: ServiceSpec) -> Iterator[str]:
    yield f"--model={spec.model.name}"
    yield f"--replica-policy={spec.scheduling.replica_policy.value}"
    yield f"--kv-events-port={KV_EVENTS_PORT}"
    yield f"--kv-replay-port={KV_REPLAY_PORT}"
    yield f"--reports-port={REPORTS_PORT}"
    yield f"--client-quantum={spec.scheduling.client_quantum}"
    yield f"--input-token-weight={spec.scheduling.input_token_weight}"
    yield f"--output-token-weight={spec.scheduling.output_token_weight}"
    yield f"--rejoin={spec.scheduling.rejoin.value}"


def engine_environment(spec: ServiceSpec) -> dict[str, str]:
    """What the plug-in inside SGLang is told; the simulator has flags for it."""
    if spec.engine.runtime is not Runtime.SGLANG:
        return {}
    scheduling = spec.scheduling
    return EngineSettings(
        client_quantum=scheduling.client_quantum,
        input_token_weight=scheduling.input_token_weight,
        output_token_weight=scheduling.output_token_weight,
        rejoin=scheduling.rejoin.value,
        reports_port=REPORTS_PORT,
    ).to_environment()


def model_path(model: Model) -> str:
    """What SGLang loads: a repository's name, or a path in the container."""
    scheme, rest = model.source.split("://", 1)
    if scheme == "hf":
        return rest.split("@")[0]
    if scheme == "file":
        return rest
    inner = rest.partition("/")[2].rstrip("/")
    return f"{CLAIM_PATH}/{inner}" if inner else CLAIM_PATH


def claim_of(model: Model) -> str | None:
    """The claim of a `pvc://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest.partition("/")[0] if scheme == "pvc" else None


def _revision(model: Model) -> str:
    return model.source.partition("@")[2] if model.source.startswith("hf://") else ""
