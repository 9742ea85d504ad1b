"""The command of a replica with a real engine: its interpreter, its device, its flags and its environment.

Flags come from the spec as on a cluster (`evenkeel_contract.render` and `vllm`). Each engine has its own virtual environment, so its processes
run another interpreter than the routers.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenkeel_contract import vllm
from evenkeel_contract.enginesettings import LOOPBACK, REPORTS_PORT_VARIABLE
from evenkeel_contract.render import (
    CPU_ADAPTER_FLAG,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    OFFLINE_ENVIRONMENT,
    SGLANG_MODULE,
    adapter_flags,
    engine_environment,
    file_path,
    hub_name,
    kv_events_flag,
    sglang_flags,
)
from evenkeel_contract.routerconfig import PAGE_TOKENS
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.spec.resources import ServiceSpec

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up.capacity import SGLANG_REPLICA_BYTES
from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.launcher import Program
from evenkeel_cli.up.replicas import REPLICA_GRACE_S, ReplicaAddress

DEFAULT_ENVIRONMENT: Final = Path(".venv-sglang")
"""The environment that `make sglang` creates."""
VLLM_ENVIRONMENT: Final = Path(".venv-vllm")
"""The environment that `make vllm` creates."""
START_LIMIT_S: Final = 5400.0  # as on a cluster: to fetch and load a large model takes long
_CHECK_LIMIT_S: Final = 60.0
# Engines size their caches by the memory. On the CPU other processes need that memory too.
_CPU_POOL: Final = "--max-total-tokens=16384"
_VLLM_CPU_POOL: Final = "--kv-cache-memory-bytes=67108864"
"""The KV pool of vLLM on the CPU: 65,536 tokens of the tiny model."""
_DEVICE_FLAG: Final = "--device"
_CPU: Final = f"{_DEVICE_FLAG}=cpu"
_GPU_DEVICE: Final = re.compile(r"nvidia(\d+)")
_VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
_TOKEN_VARIABLE: Final = "HF_TOKEN"

# Print the name of each missing package. They do not import the engine, which would take half a minute.
_SGLANG_CHECK: Final = """
from importlib.metadata import entry_points
from importlib.util import find_spec
if find_spec("sglang") is None: print("sglang")
if "evenkeel" not in entry_points(group="sglang.srt.plugins").names: print("evenkeel")
"""
_VLLM_CHECK: Final = """
from importlib.util import find_spec
for name in ("vllm", "evenkeel_vllm"):
    if find_spec(name) is None: print(name)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The options of the command line for runtimes SGLang and VLLM."""

    environment: Path = DEFAULT_ENVIRONMENT
    """A virtual environment with SGLang and the plug-in, or its interpreter."""
    vllm: Path = VLLM_ENVIRONMENT
    """A virtual environment with vLLM and the plug-in, or its interpreter."""
    model: Path | None = None
    """The folder of a model to serve instead of `spec.model.source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealReplica:
    """A replica of runtime SGLang or VLLM."""

    runtime: Runtime
    interpreter: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    """The GPUs of this machine; empty means the CPU."""
    gpus_each: int
    weights_bytes: int
    """The weights that each replica holds in the memory of the machine; 0 on GPUs and for a model to be fetched."""

    @property
    def memory_bytes(self) -> int:
        return SGLANG_REPLICA_BYTES + self.weights_bytes

    def summary(self) -> str:
        """What the replicas compute on, as a sentence for the user."""
        device = f"GPUs {', '.join(self.gpus)}" if self.gpus else "the CPU, without a GPU"
        return f"replicas run {self.runtime.value} ({self.interpreter}) on {device}; each start takes a while"

    def at(self, address: ReplicaAddress) -> Program:
        """The program of one replica."""
        environment = dict(self.environment)
        environment[REPORTS_PORT_VARIABLE] = str(address.reports_port)
        if self.gpus:
            environment[_VISIBLE_VARIABLE] = ",".join(self._gpus_of(address.number))
        is_vllm = self.runtime is Runtime.VLLM
        publishes = vllm.vllm_kv_events_flag if is_vllm else kv_events_flag
        return Program(
            name=address.name,
            interpreter=self.interpreter,
            module=vllm.VLLM_MODULE if is_vllm else SGLANG_MODULE,
            arguments=(
                *self.arguments,
                f"--host={address.host}",
                f"--port={address.http_port}",
                publishes(
                    host=address.host,
                    port=address.kv_events_port,
                    replay_port=address.kv_replay_port,
                ),
            ),
            environment=environment,
            probe_url=address.health_url if is_vllm else address.probe_url,
            start_limit_s=START_LIMIT_S,
        )

    def _gpus_of(self, number: int) -> Iterator[str]:
        for offset in range(self.gpus_each):
            yield self.gpus[(number * self.gpus_each + offset) % len(self.gpus)]


def real(manifest: Manifest, engines: Engines) -> RealReplica:
    """The command of the replicas of a service with runtime SGLang or VLLM; raises `FleetError` with the remedy."""
    spec = manifest.service.spec
    is_vllm = spec.engine.runtime is Runtime.VLLM
    environment = engines.vllm if is_vllm else engines.environment
    interpreter = find_interpreter(environment, spec.engine.runtime)
    _check_environment(spec.engine.runtime, interpreter, _VLLM_CHECK if is_vllm else _SGLANG_CHECK)
    return real_replica(
        spec,
        interpreter=str(interpreter),
        model=model_of(spec.model, engines.model),
        token=_token_of(manifest),
        gpus=() if _CPU in spec.engine.args else gpus_here(),
        inherited=os.environ,
    )


def real_replica(
    spec: ServiceSpec,
    *,
    interpreter: str,
    model: str,
    token: str | None = None,
    gpus: Sequence[str] = (),
    inherited: Mapping[str, str],
) -> RealReplica:
    """The command line and the environment; raises `FleetError` if there are too few GPUs."""
    on_cpu = not gpus and not _names_device(spec.engine.args)
    gpus_each = spec.engine.gpu.count if gpus else 1
    _check_gpus(gpus, spec.initial_replicas * gpus_each)
    if spec.engine.runtime is Runtime.VLLM:
        flags = _vllm_flags(spec, model=model, tensor_parallel=gpus_each, on_cpu=on_cpu)
        environment = vllm.vllm_environment(spec, reports_port=None, reports_host=LOOPBACK)
        of_cpu = vllm.CPU_ENVIRONMENT
    else:
        flags = _sglang_flags(spec, model=model, tensor_parallel=gpus_each, on_cpu=on_cpu)
        environment = engine_environment(spec, reports_port=None)
        of_cpu = CPU_ENVIRONMENT
    if on_cpu:  # a number of threads that the user has set stays
        environment |= {name: inherited.get(name, text) for name, text in of_cpu.items()}
    environment |= _model_environment(spec, model=model, token=token)
    return RealReplica(
        runtime=spec.engine.runtime,
        interpreter=interpreter,
        arguments=(*flags, *spec.engine.args),  # of a flag given twice, engines take the last
        environment=tuple(environment.items()),
        gpus=tuple(gpus),
        gpus_each=gpus_each,
        weights_bytes=_weights_bytes(Path(model)) if on_cpu else 0,
    )


def _sglang_flags(
    spec: ServiceSpec, *, model: str, tensor_parallel: int, on_cpu: bool
) -> Iterator[str]:
    yield from sglang_flags(spec, model=model, tensor_parallel=tensor_parallel)
    yield f"--page-size={PAGE_TOKENS}"
    if on_cpu:
        yield from (*CPU_FLAGS, _CPU_POOL)
        if spec.model.adapters:
            yield CPU_ADAPTER_FLAG
    yield from adapter_flags(spec.model, paths=_adapter_paths(spec.model))


def _vllm_flags(
    spec: ServiceSpec, *, model: str, tensor_parallel: int, on_cpu: bool
) -> Iterator[str]:
    drain_s = round(REPLICA_GRACE_S)
    yield from vllm.vllm_arguments(
        spec, model=model, tensor_parallel=tensor_parallel, drain_s=drain_s
    )
    if on_cpu:
        yield from (*vllm.CPU_FLAGS, _VLLM_CPU_POOL)
    yield from vllm.vllm_adapter_flags(spec.model, paths=_adapter_paths(spec.model))


def _model_environment(
    spec: ServiceSpec, *, model: str, token: str | None
) -> Iterator[tuple[str, str]]:
    """What an engine needs to find `model`, as `model_of` returns it, and its adapters."""
    if Path(model).is_absolute() and not any(map(hub_name, spec.model.adapters)):
        yield from OFFLINE_ENVIRONMENT.items()
    if token:
        yield _TOKEN_VARIABLE, token


def find_interpreter(environment: Path, runtime: Runtime = Runtime.SGLANG) -> Path:
    """The Python of a virtual environment, or `environment` itself if it is a file; raises `FleetError`."""
    found = environment / "bin" / "python" if environment.is_dir() else environment
    if found.is_file():
        # Not resolved: the target of the link does not belong to the environment.
        return found.absolute()
    name, option = runtime.value, runtime.value.lower()
    raise FleetError(
        f"runtime {name}: there is no environment with {name} at {environment}. "
        f"`make {option}` creates .venv-{option}; --{option} or EVENKEEL_{option.upper()} selects another; "
        f"spec.engine.runtime: Simulator needs none"
    )


def model_of(model: Model, given: Path | None) -> str:
    """The model that an engine loads: a repository name, or the absolute path of a folder; raises `FleetError`."""
    hub = hub_name(model)
    if given is None and hub is not None:
        return hub
    option = "spec.model.source" if given is None else "--model"
    path = file_path(model) if given is None else str(given)
    if path is None:
        raise FleetError(
            f"spec.model.source: {model.source} exists in a cluster only; "
            f"use file:///path or hf://organisation/model, or give --model"
        )
    if not (Path(path) / "config.json").is_file():
        raise FleetError(f"{option}: {path} is not the folder of a model: it has no config.json")
    return str(Path(path).absolute())


def _adapter_paths(model: Model) -> dict[str, str]:
    """Name of an adapter → what an engine loads: a repository name, or the absolute path of a folder; raises `FleetError`."""
    found = {}
    for index, adapter in enumerate(model.adapters):
        path = hub_name(adapter) or file_path(adapter)
        if path is None:
            raise FleetError(
                f"spec.model.adapters[{index}].source: {adapter.source} exists in a cluster only; "
                f"use file:///path or hf://organisation/adapter"
            )
        if hub_name(adapter) is None and not (Path(path) / "adapter_config.json").is_file():
            raise FleetError(
                f"spec.model.adapters[{index}].source: {path} is not the folder of an adapter: "
                f"it has no adapter_config.json"
            )
        found[adapter.name] = path
    return found


def gpus_here() -> tuple[str, ...]:
    """The GPUs that this process may use."""
    visible = os.environ.get(_VISIBLE_VARIABLE)
    if visible is not None:
        return tuple(word.strip() for word in visible.split(",") if word.strip())
    found = (_GPU_DEVICE.fullmatch(path.name) for path in Path("/dev").glob("nvidia*"))
    return tuple(sorted((match[1] for match in found if match), key=int))


def _check_environment(runtime: Runtime, interpreter: Path, program: str) -> None:
    """Check that the environment has the engine and the plug-in: an engine would fail only after half a minute.

    `program` prints the name of each missing package.
    """
    name, option = runtime.value, runtime.value.lower()
    try:
        done = subprocess.run(
            [interpreter, "-c", program],
            capture_output=True,
            text=True,
            timeout=_CHECK_LIMIT_S,
            check=False,
            env={name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"runtime {name}: {interpreter} does not run: {error}") from error
    if done.returncode != 0:
        raise FleetError(f"runtime {name}: {interpreter} does not run: {done.stderr.strip()}")
    if missing := done.stdout.split():
        raise FleetError(
            f"runtime {name}: {interpreter} lacks {' and '.join(missing)}; `make {option}` creates a "
            f"complete environment, and `pip install 'evenkeel-llm[{option}]'` adds the plug-in"
        )


def _token_of(manifest: Manifest) -> str | None:
    """The token for the model's files, if the spec names one."""
    ref = manifest.service.spec.model.token_secret_ref
    if ref is None:
        return None
    return manifest.secrets[manifest.service.metadata.namespace, ref.name, ref.key]


def _weights_bytes(model: Path) -> int:
    """The size of a local model's weights; 0 for one that is fetched."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def _names_device(arguments: Sequence[str]) -> bool:
    given = (argument.partition("=") for argument in arguments)
    return any(flag == _DEVICE_FLAG and value != "cpu" for flag, _, value in given)


def _check_gpus(gpus: Sequence[str], needed: int) -> None:
    """Raise `FleetError` if there are too few GPUs."""
    if gpus and needed > len(gpus):
        raise FleetError(
            f"spec.engine.replicas times spec.engine.gpu.count is {needed}, and this machine has "
            f"{len(gpus)} GPUs; lower one of them, or use the CPU with spec.engine.args: [{_CPU}]"
        )
