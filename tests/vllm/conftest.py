"""The real vLLM for the suite: `make vllm` creates its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_contract.vllm import vllm_kv_events_flag

from bench.vllm_engine import running_vllm
from tests.sglang.engine import unused_port
from tests.support.routers import MODEL

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
UNTESTED = {"PYTHONPATH": str(ROOT / "tests/vllm/untested")}
"""Environment of an engine whose version the plug-in was not tested with."""


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of `make vllm`, or that in EVENKEEL_VLLM."""
    folder = Path(os.environ.get("EVENKEEL_VLLM", ROOT / ".venv-vllm"))
    if not ((folder / "bin/python").exists() and (folder / "model").exists()):
        pytest.skip("the real engine is not installed: make vllm")
    return folder


class Engines:
    """Starts engines that publish KV events, without a plug-in."""

    def __init__(self, environment: Path, folder: Path, stack: ExitStack) -> None:
        self.environment = environment
        self._folder = folder
        self._stack = stack

    def start(self, *flags: str, name: str = "r0") -> ReplicaConfig:
        """An engine, as a router is told of it."""
        events, replay = unused_port(), unused_port()
        url = self._stack.enter_context(
            running_vllm(
                environment=self.environment,
                served_name=MODEL,
                flags=(vllm_kv_events_flag(host=HOST, port=events, replay_port=replay), *flags),
                log=self._folder / f"{name}.log",
            )
        )
        return ReplicaConfig(
            name=name,
            url=url,
            kv_events=f"tcp://{HOST}:{events}",
            kv_replay=f"tcp://{HOST}:{replay}",
        )


@pytest.fixture
def engines(environment: Path, tmp_path: Path) -> Iterator[Engines]:
    """Engines of this test, stopped at its end."""
    with ExitStack() as stack:
        yield Engines(environment, tmp_path, stack)
