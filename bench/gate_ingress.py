"""Several routers' gates in front of one engine, by where requests enter (R12).

    python -m bench.gate_ingress [--sglang .venv-sglang | --vllm .venv-vllm] [--seconds 30] [--rows NAME …]

Each router is a process. Without an option the engine is a simulated replica that serves first come, first served; with one it is
the real engine without the plug-in. Rows with several routers run twice: the second time the routers do not know one another. TTFT is
that of a tenant with one request at a time at each router. The rows "apart" have the traffic of a table that a peer published for two routers without shared state: ai-dynamo/dynamo issue 15187.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from evenkeel_cli.up import ports

from bench.gate import GATE, SGLANG, VLLM, Kind, noted_logs, sglang_load
from bench.gate_load import (
    MODEL,
    ONE_ROUTER,
    RUNNING,
    Figures,
    Setup,
    Traffic,
    observe,
    routers,
)
from bench.gpu.engine import HOST, running_process

SPEED: Final = 4.0
"""Of the simulated replica: engine seconds per second."""


def _peers_traffic(light: tuple[int, ...], heavy: tuple[int, ...]) -> Traffic:
    """Prompts of about 512 tokens that share nothing, of equal cost."""
    streams = {"light": light, "heavy": heavy}
    return Traffic(streams, prefix_words=0, own_words=147, output_tokens=16)


ROWS: Final[Mapping[str, Traffic]] = {
    "one router": ONE_ROUTER,
    "two routers, 95:5 of all requests": Traffic({"light": (61, 3), "heavy": (15, 1)}),
    "three routers, 95:2.5:2.5": Traffic({"light": (61, 2, 1), "heavy": (15, 0, 1)}),
    "weights 1:1, light at one router, heavy at two": Traffic(
        {"light": (24, 0), "heavy": (24, 24)}, weights={"light": 1, "heavy": 1, "single": 1}
    ),
    "apart: one router": _peers_traffic((40,), (40,)),
    "apart: two routers, balanced": _peers_traffic((20, 20), (20, 20)),
    "apart: 95 % of each tenant at its own router": _peers_traffic((38, 2), (2, 38)),
    "apart: the same, swapped": _peers_traffic((2, 38), (38, 2)),
}
HEAD: Final = """\
| requests enter | owed | light's part | queue | TTFT p50, p99 ms | without sharing | queue | TTFT p50, p99 ms |
|---|---:|---:|---:|---:|---:|---:|---:|"""


def _simulated(
    setup: Setup, environment: Path, log: Path, settings: Mapping[str, str]
) -> AbstractContextManager[str]:
    port = ports.free_port(HOST)
    command = (
        *(sys.executable, "-m", "evenkeel_simulator.server", f"--model={MODEL}"),
        *(f"--host={HOST}", f"--port={port}", f"--speed={SPEED}"),
        *(f"--replica-policy={setup.policy.upper()}", f"--max-running-requests={RUNNING}"),
    )
    return running_process(command, os.environ, f"http://{HOST}:{port}", "/ready", log=log)


SIMULATED: Final = Kind(_simulated, sglang_load, SGLANG.setups)


def measure(
    kind: Kind,
    engine: str,
    folder: Path,
    *,
    traffic: Traffic,
    shared: bool,
    warmup_s: float,
    seconds: float,
    requests: int = 0,
) -> Figures:
    """One row: new routers in front of a running engine; `folder` gets their logs."""
    setup, count = kind.setups[GATE], len(traffic.streams["light"])
    with routers(
        setup.queue,
        {engine: None},
        folder,
        weights=traffic.weights,
        count=count,
        shared=shared,
    ) as opened:
        return asyncio.run(
            observe(
                [one.url for one in opened],
                engine,
                warmup_s=warmup_s,
                seconds=seconds,
                requests=requests,
                ask=kind.ask,
                traffic=traffic,
            )
        )


def _row(name: str, traffic: Traffic, *found: Figures) -> str:
    cells = [
        f"{one.light:.3f} | {one.queue:g} | {one.ttft_p50_s * 1e3:.0f}, {one.ttft_p99_s * 1e3:.0f}"
        for one in found
    ]
    return f"| {name} | {traffic.owed:g} | {' | '.join([*cells, '– | – | –'][:2])} |"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--sglang", type=Path, help="virtual environment of `make sglang`")
    engine.add_argument("--vllm", type=Path, help="virtual environment of `make vllm`")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warmup-s", type=float, default=8.0)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args()
    kind = SGLANG if options.sglang else VLLM if options.vllm else SIMULATED
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        folder = Path(name)
        environment = options.sglang or options.vllm or folder
        print(HEAD)
        with (
            noted_logs(folder),
            kind.start(kind.setups[GATE], environment, folder / "engine.log", {}) as url,
        ):
            for row in options.rows:
                traffic = ROWS[row]
                found, *without = [
                    measure(
                        kind,
                        url,
                        folder,
                        traffic=traffic,
                        shared=shared,
                        warmup_s=options.warmup_s,
                        seconds=options.seconds,
                    )
                    for shared in ((True, False) if len(traffic.streams["light"]) > 1 else (True,))
                ]
                print(_row(row, traffic, found, *without), flush=True)
    print(f"\nLoad average {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
