"""One vLLM on the CPU, for a measurement or a test: started, waited for, ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from evenkeel_cli.up import ports
from evenkeel_contract.render import OFFLINE_ENVIRONMENT
from evenkeel_contract.vllm import (
    COMMON_ENVIRONMENT,
    COMMON_FLAGS,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    SCHEDULER_FLAG,
    VLLM_MODULE,
)

from bench.gpu.engine import HOST, running_process

FLAGS: Final = (
    *(flag for flag in COMMON_FLAGS if flag != SCHEDULER_FLAG),
    *CPU_FLAGS,
    "--kv-cache-memory-bytes=67108864",  # 65,536 tokens of the tiny model
    "--max-model-len=4096",
    "--seed=0",
)
VERSION_VARIABLE: Final = "EVENKEEL_VLLM_VERSION"
"""A folder with another version of vLLM, which is laid before the installed one (`tests.vllm.versions`)."""


@contextmanager
def running_vllm(
    *,
    environment: Path,
    served_name: str,
    flags: Sequence[str],
    log: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """An engine's address; `flags` may add the plug-in. `environment`: the folder of `make vllm`; flags come last; `settings` go to its environment."""
    port = ports.free_port(HOST)
    command = (
        *(str(environment / "bin/python"), "-m", VLLM_MODULE, "serve", str(environment / "model")),
        *(f"--served-model-name={served_name}", f"--host={HOST}", f"--port={port}"),
        *FLAGS,
        *flags,
    )
    variables = {**os.environ, **COMMON_ENVIRONMENT, **CPU_ENVIRONMENT, **OFFLINE_ENVIRONMENT}
    variables.pop("PYTHONPATH", None)  # this interpreter's, not that one's
    if beside := os.environ.get(VERSION_VARIABLE):
        variables["PYTHONPATH"] = beside
    variables.update(settings)
    with running_process(command, variables, f"http://{HOST}:{port}", "/health", log=log) as url:
        yield url
