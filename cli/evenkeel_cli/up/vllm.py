"""The command of a replica with runtime VLLM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from evenkeel_contract.enginesettings import LOOPBACK
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.spec.resources import ServiceSpec
from evenkeel_contract.vllm import (
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    vllm_adapter_flags,
    vllm_arguments,
    vllm_environment,
)

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up.replicas import REPLICA_GRACE_S
from evenkeel_cli.up.sglang import (
    Engines,
    RealReplica,
    adapter_paths,
    check_environment,
    check_gpus,
    find_interpreter,
    gpus_here,
    model_environment,
    model_of,
    token_of,
    weights_bytes,
)

_POOL: Final = "--kv-cache-memory-bytes=67108864"
"""65,536 tokens of the tiny model. By itself vLLM takes most of the memory of the machine."""
_CHECK: Final = """
from importlib.util import find_spec
for name in ("vllm", "evenkeel_vllm"):
    if find_spec(name) is None: print(name)
"""


def real_vllm(manifest: Manifest, engines: Engines) -> RealReplica:
    """The command of the replicas of a service with runtime VLLM; raises `FleetError` with the remedy."""
    spec = manifest.service.spec
    interpreter = find_interpreter(engines.vllm, Runtime.VLLM)
    check_environment(Runtime.VLLM, interpreter, _CHECK)
    return vllm_replica(
        spec,
        interpreter=str(interpreter),
        model=model_of(spec.model, engines.model),
        token=token_of(manifest),
        gpus=gpus_here(),
        inherited=os.environ,
    )


def vllm_replica(
    spec: ServiceSpec,
    *,
    interpreter: str,
    model: str,
    token: str | None = None,
    gpus: Sequence[str] = (),
    inherited: Mapping[str, str],
) -> RealReplica:
    """The command line and the environment; raises `FleetError` if there are too few GPUs."""
    gpus_each = spec.engine.gpu.count if gpus else 1
    check_gpus(gpus, spec.initial_replicas * gpus_each)
    environment = vllm_environment(spec, reports_port=None, reports_host=LOOPBACK)
    if not gpus:  # what the user has set stays
        environment |= {name: inherited.get(name, text) for name, text in CPU_ENVIRONMENT.items()}
    environment |= model_environment(spec, model=model, token=token)
    arguments = vllm_arguments(
        spec, model=model, tensor_parallel=gpus_each, drain_s=round(REPLICA_GRACE_S)
    )
    return RealReplica(
        runtime=Runtime.VLLM,
        interpreter=interpreter,
        arguments=(
            *arguments,
            *(() if gpus else (*CPU_FLAGS, _POOL)),
            *vllm_adapter_flags(spec.model, paths=adapter_paths(spec.model)),
            *spec.engine.args,  # last: of a flag given twice, vLLM takes the last
        ),
        environment=tuple(environment.items()),
        gpus=tuple(gpus),
        gpus_each=gpus_each,
        weights_bytes=0 if gpus else weights_bytes(Path(model)),
    )
