"""The router's gate in front of real engines without the plug-in, beside the plug-in (R12).

    python -m bench.gate --sglang .venv-sglang --vllm .venv-vllm [--seconds 40] [--rounds 3] [--setups NAME …]

The arguments are the folders of `make sglang` and `make vllm`; one of them is enough. One engine and one router, both new for each
row. The last tables compare the medians of the rounds with what the gate promises. Run it on an idle machine: the engine's HTTP
server and the senders need a core each. `gate_ingress` has several routers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import aiohttp
from evenkeel_cli.up import ports
from evenkeel_cli.up.engines import find_interpreter
from evenkeel_contract.enginesettings import (
    POLICY_VARIABLE,
    REPORTS_PORT_VARIABLE,
)
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.vllm import SCHEDULER_FLAG
from evenkeel_router.gate.engine_load import EngineLoad, read_load

from bench.gate_load import (
    HEAD,
    MODEL,
    PROMISES_HEAD,
    RUNNING,
    Addresses,
    AskLoad,
    Figures,
    Setup,
    observe,
    promises,
    routers,
)
from bench.gpu.engine import HOST, log_tail, running_engine
from bench.vllm_engine import running_vllm

PLUG_IN, GATE, LPM, ALONE = "plug-in", "gate, fcfs", "gate, lpm", "fcfs alone"


def _sglang(
    setup: Setup, environment: Path, log: Path, settings: Mapping[str, str]
) -> AbstractContextManager[str]:
    without = {} if setup.has_plug_in else {"SGLANG_PLUGINS": "none"}
    return running_engine(
        python=find_interpreter(environment),
        model=environment / "model",
        policy=setup.policy,
        cpu=True,
        flags=(
            "--sleep-on-idle",  # an idle scheduler must not take a core from the router
            "--max-total-tokens=16384",
            f"--max-running-requests={RUNNING}",
            f"--served-model-name={MODEL}",
        ),
        log=log,
        settings={**settings, **without},
    )


def _vllm(
    setup: Setup, environment: Path, log: Path, settings: Mapping[str, str]
) -> AbstractContextManager[str]:
    plug_in = (SCHEDULER_FLAG,) if setup.has_plug_in else ()
    return running_vllm(
        environment=environment,
        served_name=MODEL,
        flags=(f"--max-num-seqs={RUNNING}", "--num-gpu-blocks-override=512", *plug_in),
        log=log,
        settings={POLICY_VARIABLE: setup.policy, **settings},
    )


async def sglang_load(http: aiohttp.ClientSession, engine: str) -> EngineLoad:
    """Not from its metrics, which are some decode steps old."""
    async with http.get(engine + "/v1/loads") as response:
        loads = (await response.json())["loads"]
    running = sum(load["num_running_reqs"] for load in loads)
    return EngineLoad(running, sum(load["num_waiting_reqs"] for load in loads), usage=0.0)


async def vllm_load(http: aiohttp.ClientSession, engine: str) -> EngineLoad:
    """The load of a vLLM, by its metrics."""
    async with http.get(engine + "/metrics") as response:
        load = read_load(await response.read())
    if load is None:
        raise RuntimeError("the engine's metrics do not show its queue")
    return load


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two engines."""

    start: Callable[[Setup, Path, Path, Mapping[str, str]], AbstractContextManager[str]]
    """(setup, environment, log, settings of the plug-in) → its address."""
    ask: AskLoad
    setups: Mapping[str, Setup]


SGLANG: Final = Kind(
    _sglang,
    sglang_load,
    {
        PLUG_IN: Setup("dlpm", QueueOwner.ENGINE, has_plug_in=True),
        GATE: Setup("fcfs", QueueOwner.AUTO),
        LPM: Setup("lpm", QueueOwner.AUTO),
        ALONE: Setup("fcfs", QueueOwner.ENGINE),
    },
)
VLLM: Final = Kind(
    _vllm,
    vllm_load,
    {
        PLUG_IN: Setup("DLPM", QueueOwner.ENGINE, has_plug_in=True),
        GATE: Setup("FCFS", QueueOwner.AUTO),
        ALONE: Setup("FCFS", QueueOwner.ENGINE),
    },
)


@dataclass(frozen=True, slots=True)
class Site:
    """A running engine behind a router."""

    engine: str
    """Its address."""
    router: Addresses


@contextmanager
def running(
    kind: Kind,
    setup: Setup,
    *,
    environment: Path,
    folder: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Site]:
    """A site; `folder` gets the logs, `settings` the engine's environment. An error gets the ends of the logs as notes."""
    port = ports.free_port(HOST)
    variables = {REPORTS_PORT_VARIABLE: str(port), **settings}
    reports = f"tcp://{HOST}:{port}" if setup.has_plug_in else None
    with (
        noted_logs(folder),
        kind.start(setup, environment, folder / "engine.log", variables) as engine,
        routers(setup.queue, {engine: reports}, folder) as (router,),
    ):
        yield Site(engine, router)


@contextmanager
def noted_logs(folder: Path) -> Iterator[None]:
    """Adds the ends of the folder's logs to an error: the folder may be a temporary one."""
    try:
        yield
    except Exception as error:
        for log in sorted(folder.glob("*.log")):
            error.add_note(f"{log.name} ends:\n{log_tail(log)}")
        raise


def measure(
    kind: Kind,
    setup: Setup,
    *,
    environment: Path,
    folder: Path,
    warmup_s: float,
    seconds: float,
    requests: int = 0,
) -> Figures:
    """One row."""
    with running(kind, setup, environment=environment, folder=folder) as site:
        return asyncio.run(
            observe(
                [site.router.url],
                site.engine,
                warmup_s=warmup_s,
                seconds=seconds,
                requests=requests,
                ask=kind.ask,
            )
        )


def _compare(name: str, kind: Kind, environment: Path, options: argparse.Namespace) -> None:
    """Print the rows of one engine, and what they say of the gate."""
    found: dict[str, list[Figures]] = defaultdict(list)
    print(f"\n{name}\n\n{HEAD}")
    for _ in range(options.rounds):
        for row, setup in kind.setups.items():
            if options.setups and row not in options.setups:
                continue
            with tempfile.TemporaryDirectory(prefix="gate-") as folder:
                figures = measure(
                    kind,
                    setup,
                    environment=environment,
                    folder=Path(folder),
                    warmup_s=options.warmup_s,
                    seconds=options.seconds,
                )
            found[row].append(figures)
            print(figures.row(row), flush=True)
    if options.rounds > 1:
        for row, rounds in found.items():
            print(Figures.median(rounds).row(f"**{row}, median**"))
    for row in (GATE, LPM):
        if row in found and PLUG_IN in found:
            print("\n" + PROMISES_HEAD.format(f"{name}, {row}"))
            for one in promises(Figures.median(found[row]), Figures.median(found[PLUG_IN])):
                print(one.row())


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--sglang", type=Path, help="virtual environment of `make sglang`")
    add("--vllm", type=Path, help="virtual environment of `make vllm`")
    add("--seconds", type=float, default=40.0)
    add("--warmup-s", type=float, default=8.0)
    add("--rounds", type=int, default=1)
    add("--setups", nargs="+", choices=list(SGLANG.setups))
    options = parser.parse_args()
    if options.sglang is None and options.vllm is None:
        parser.error("set --sglang, --vllm or both")
    before = os.getloadavg()[0]
    for name, kind, environment in (
        ("SGLang", SGLANG, options.sglang),
        ("vLLM", VLLM, options.vllm),
    ):
        if environment is not None:
            _compare(name, kind, environment, options)
    print(f"\nLoad average {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
