"""The router's gate in front of a real vLLM, beside the plug-in, with the load of `bench.gate_sglang` (R12).

python -m bench.gate_vllm --vllm .venv-vllm [--seconds 40] [--rounds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

import aiohttp
from evenkeel_cli.up import ports
from evenkeel_contract.enginesettings import (
    POLICY_VARIABLE,
    QUANTUM_VARIABLE,
    REPORTS_PORT_VARIABLE,
)
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.vllm import SCHEDULER_FLAG
from evenkeel_router.gate.engine_load import read_load

from bench.gate_sglang import HEAD, MODEL, QUANTUM, RUNNING, Figures, Setup, observe, router
from bench.gpu.engine import HOST
from bench.vllm_engine import running_vllm

SETUPS: Final = (
    Setup("plug-in", "DLPM", QueueOwner.ENGINE, has_plug_in=True),
    Setup("gate, fcfs", "fcfs", QueueOwner.AUTO),
    Setup("fcfs alone", "fcfs", QueueOwner.ENGINE),
)


async def vllm_queue(http: aiohttp.ClientSession, engine: str) -> float:
    """The length of the engine's own queue, by its metrics."""
    async with http.get(engine + "/metrics") as response:
        load = read_load(await response.read())
    if load is None:
        raise RuntimeError("the engine's metrics do not show its queue")
    return load.waiting


def measure(setup: Setup, *, vllm: Path, folder: Path, warmup_s: float, seconds: float) -> Figures:
    """One row. `vllm`: the folder of `make vllm`."""
    reports_port = ports.free_port(HOST)
    plug_in = (SCHEDULER_FLAG,) if setup.has_plug_in else ()
    with (
        running_vllm(
            environment=vllm,
            served_name=MODEL,
            flags=(f"--max-num-seqs={RUNNING}", "--num-gpu-blocks-override=512", *plug_in),
            log=folder / "engine.log",
            settings={
                POLICY_VARIABLE: setup.policy,
                QUANTUM_VARIABLE: str(QUANTUM),
                REPORTS_PORT_VARIABLE: str(reports_port),
            },
        ) as engine,
        router(setup, engine, reports_port, folder) as url,
    ):
        return asyncio.run(
            observe(url, engine, warmup_s=warmup_s, seconds=seconds, queue=vllm_queue)
        )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--vllm", type=Path, required=True, help="virtual environment of `make vllm`")
    add("--seconds", type=float, default=40.0)
    add("--warmup-s", type=float, default=8.0)
    add("--rounds", type=int, default=1)
    add("--setups", nargs="+", choices=[one.name for one in SETUPS])
    options = parser.parse_args()
    print(HEAD)
    for _ in range(options.rounds):
        for setup in SETUPS:
            if options.setups and setup.name not in options.setups:
                continue
            with tempfile.TemporaryDirectory(prefix="gate-vllm-") as folder:
                found = measure(
                    setup,
                    vllm=options.vllm,
                    folder=Path(folder),
                    warmup_s=options.warmup_s,
                    seconds=options.seconds,
                )
            print(found.row(setup.name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
