"""The engine's command line in a container. `enginecommand` has the flags that `evenkeel up` uses too.

This module adds ports, paths and the key, which differ between pods and local processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from evenkeel_contract.enginecommand import (
    PAGE_SIZE,
    SGLANG_MODULE,
    engine_environment,
    file_path,
    hub_name,
    kv_events_flag,
    sglang_flags,
    simulator_flags,
)
from evenkeel_contract.names import (
    ENGINE_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    REPORTS_PORT,
)
from evenkeel_contract.spec import Model, Runtime, ServiceSpec

SGLANG_COMMAND: Final = ("python3", "-m", SGLANG_MODULE)
CACHE_PATH: Final = "/models/cache"
"""Directory for downloaded files: `spec.model.cache`, or a directory of the pod."""
CLAIM_PATH: Final = "/models/claim"
"""Where the volume of a `pvc://` source is mounted."""


def engine_arguments(spec: ServiceSpec, *, key_env: str) -> Iterator[str]:
    """All arguments as `--flag=value`. The kubelet expands the key, so the pod spec does not contain it."""
    sglang = spec.engine.runtime is Runtime.SGLANG
    yield from _sglang(spec) if sglang else _simulator(spec)
    yield "--host=0.0.0.0"
    yield f"--port={ENGINE_PORT}"
    yield f"--api-key=$({key_env})"
    yield f"--page-size={PAGE_SIZE}"
    # Last, so that a flag of the spec overrides a default; the flags above are refused in the spec.
    yield from spec.engine.args


def _sglang(spec: ServiceSpec) -> Iterator[str]:
    model = model_path(spec.model)
    yield from sglang_flags(spec, model=model, tensor_parallel=spec.engine.gpu.count)
    yield kv_events_flag(host="*", port=KV_EVENTS_PORT, replay_port=KV_REPLAY_PORT)


def _simulator(spec: ServiceSpec) -> Iterator[str]:
    flags = simulator_flags(spec)
    # In the order of 0.1.0: another order would change the pod, and an upgrade would restart every engine.
    yield from islice(flags, 2)
    yield f"--kv-events-port={KV_EVENTS_PORT}"
    yield f"--kv-replay-port={KV_REPLAY_PORT}"
    yield f"--reports-port={REPORTS_PORT}"
    yield from flags


def environment(spec: ServiceSpec) -> dict[str, str]:
    """The settings of the plug-in inside SGLang; the simulator has flags for them."""
    if spec.engine.runtime is not Runtime.SGLANG:
        return {}
    return engine_environment(spec, reports_port=REPORTS_PORT)


def model_path(model: Model) -> str:
    """The model for SGLang: a repository's name, or a path in the container."""
    found = hub_name(model) or file_path(model)
    if found is not None:
        return found
    inner = model.source.split("://", 1)[1].partition("/")[2].rstrip("/")
    return f"{CLAIM_PATH}/{inner}" if inner else CLAIM_PATH


def claim_of(model: Model) -> str | None:
    """The claim of a `pvc://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest.partition("/")[0] if scheme == "pvc" else None
