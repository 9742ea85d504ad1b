"""Engines that many tests share: each is started once and stopped when its last test is done.

A test takes the engine's fixture. Its cache is empty then and nothing runs; what other tests did remains in its totals and debts. So a
test has clients of its own, and counts from its start (`engine.Since`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import httpx
from evenkeel_contract.render import CPU_ADAPTER_FLAG, kv_events_flag
from evenkeel_contract.routerconfig import ReplicaConfig

from tests.sglang.engine import (
    LOOK_S,
    READY_S,
    ROOT,
    Engine,
    installed,
    is_idle,
    probed,
    unused_port,
)
from tests.sglang.fleet import Fleet
from tests.sglang.models import NAME, PAGE_TOKENS, PARTS, TEMPLATE, model_folder
from tests.support.adapters import write_adapter

HOST: Final = "127.0.0.1"
POOL_TOKENS, RUNNING, QUANTUM = 4096, 16, 500
STOCK_POOL_TOKENS = 2048
"""A handful of prompts: the cache is always short of room."""
CHUNK_TOKENS, CHUNKED_POOL_TOKENS = 32, 6400
SERVED, ADAPTERS_RUNNING = "tiny", 4
ADAPTERS, FLEET_ADAPTERS = ("north", "south", "west"), ("north", "south")
SAMPLE: Final = ROOT / "examples" / "sglang.yaml"
KEPT_BATCHES = 12
"""For replay, in place of SGLang's 10 000: those of a handful of requests."""
QUANTA = {"EVENKEEL_CLIENT_QUANTUM": str(QUANTUM)}
# Imported as the engine's Python starts: each answer of the hook is written beside SGLang's, and how often SGLang's was asked.
BESIDE = """
import sys
from evenkeel_sglang import hooks

ours = hooks.pending_tokens

def both(original, inquirer, chunk_deduct=0):
    asked = []
    def counted(*arguments):
        asked.append(arguments)
        return original(*arguments)
    number = ours(counted, inquirer, chunk_deduct)
    own = original(inquirer, chunk_deduct)
    chunked = int(inquirer.get_chunked_req() is not None)
    print(f"pending {number} {own} {len(asked)} {chunked}", file=sys.stderr, flush=True)
    return number

hooks.pending_tokens = both
"""


def size(pool_tokens: int, running: int) -> tuple[str, ...]:
    return f"--max-total-tokens={pool_tokens}", f"--max-running-requests={running}"


class SharedEngine(Engine):
    """An engine, with the places where it reports, publishes, and writes down what it does."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        environment: Mapping[str, str] = {},
        sglang: str | None = None,
        template: str | None = None,
        kept: int = 10_000,
    ) -> None:
        """`template`: the model's for chats, if not its own; `kept`: the batches of KV events for replay, by default as many as SGLang's."""
        self.trace = folder / "trace"
        self.model = installed() / "model"
        if template is not None:
            self.model = model_folder(folder / "model", template)
        self.reports_port, events, replay = unused_port(), unused_port(), unused_port()
        told = kv_events_flag(host=HOST, port=events, replay_port=replay)
        super().__init__(
            *(f"--model-path={self.model}", f"--served-model-name={NAME}", *flags),
            told.removesuffix("}") + f',"buffer_steps":{kept}}}',
            log=folder / "engine.log",
            environment={"EVENKEEL_REPORTS_PORT": str(self.reports_port), **environment},
            sglang=sglang,
        )
        self.reports = f"tcp://{HOST}:{self.reports_port}"
        self.replica = ReplicaConfig(
            name="r0",
            url=self.url,
            kv_events=f"tcp://{HOST}:{events}",
            kv_replay=f"tcp://{HOST}:{replay}",
        )

    def ready_for_the_next(self) -> bool:
        """Whether it still runs. Then nothing runs or waits in it, and its cache is empty."""
        if self.process.poll() is not None:
            return False
        with httpx.Client(base_url=self.url, timeout=READY_S) as http:
            while not is_idle(http.get("/v1/loads")):
                time.sleep(LOOK_S)
            http.post("/flush_cache").raise_for_status()
        return True


def plain(folder: Path) -> SharedEngine:
    """DLPM with small quanta; its chat template reads messages in parts."""
    return SharedEngine(
        folder,
        *("--schedule-policy=dlpm", *size(POOL_TOKENS, RUNNING)),
        template=PARTS,
        environment=QUANTA | probed(folder / "trace", with_plug_in=True),
    )


def templated(folder: Path) -> SharedEngine:
    """DLPM with pages, much memory, and a chat template as today's models have."""
    return SharedEngine(
        folder,
        *("--schedule-policy=dlpm", f"--page-size={PAGE_TOKENS}", "--max-total-tokens=16384"),
        template=TEMPLATE,
        kept=KEPT_BATCHES,
    )


def stock(folder: Path) -> SharedEngine:
    """SGLang without the plug-in, with pages and little memory."""
    return SharedEngine(
        folder,
        *("--schedule-policy=fcfs", f"--page-size={PAGE_TOKENS}"),
        *size(STOCK_POOL_TOKENS, RUNNING),
        environment={"SGLANG_PLUGINS": "none"},
    )


def tight(folder: Path, sglang: str | None = None) -> SharedEngine:
    """So little memory that running requests are thrown out again, and chunks that cut most inputs."""
    (folder / "sitecustomize.py").write_text(BESIDE)
    return SharedEngine(
        folder,
        *("--schedule-policy=dlpm", *size(1024, 12)),
        *("--chunked-prefill-size=96", "--schedule-conservativeness=0.1"),
        environment=QUANTA | {"PYTHONPATH": str(folder)},
        sglang=sglang,
    )


def older(folder: Path) -> SharedEngine:
    return tight(folder, "0.5.21")


def chunked(folder: Path) -> SharedEngine:
    """Small chunks."""
    return SharedEngine(
        folder,
        *("--schedule-policy=dlpm", f"--chunked-prefill-size={CHUNK_TOKENS}"),
        *size(CHUNKED_POOL_TOKENS, RUNNING),
        environment=probed(folder / "trace", with_plug_in=True),
    )


def write_adapters(folder: Path) -> dict[str, Path]:
    """Name → folder of an adapter."""
    return {
        name: write_adapter(folder / name, installed() / "model", seed=seed)
        for seed, name in enumerate(ADAPTERS)
    }


def adapted(folder: Path) -> SharedEngine:
    """More adapters than slots."""
    return SharedEngine(
        folder,
        "--schedule-policy=dlpm",
        *size(POOL_TOKENS, ADAPTERS_RUNNING),
        *(CPU_ADAPTER_FLAG, "--enable-lora", "--max-loras-per-batch=1", "--lora-paths"),
        *(f"{name}={path}" for name, path in write_adapters(folder).items()),
        environment=QUANTA,
    )


class SharedFleet(Fleet):
    """A router and two engines."""

    def ready_for_the_next(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None


def fleet(folder: Path) -> SharedFleet:
    """That of the sample, with two adapters."""
    listed = ", ".join(
        f'{{name: {name}, source: "file://{path}"}}'
        for name, path in write_adapters(folder).items()
        if name in FLEET_ADAPTERS
    )
    text = SAMPLE.read_text()
    served = f"    servedName: {SERVED}\n"
    assert served in text
    text = text.replace(served, f"{served}    adapters: [{listed}]\n", 1)
    started = SharedFleet(folder, file=text, environment=installed())
    started.__enter__()
    return started


class Shared(Protocol):
    """An engine or a fleet."""

    def stop(self) -> object: ...

    def ready_for_the_next(self) -> bool: ...


START: Final[Mapping[str, Callable[[Path], Shared]]] = {
    make.__name__: make for make in (fleet, adapted, chunked, older, tight, plain, templated, stock)
}
"""Fixture → how its engine is started. Tests run in this order; who takes two engines runs between the tests of both."""
