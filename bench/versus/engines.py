"""The simulated engines of one contender, in one process, and a record of what they hold.

    python -m bench.versus.engines --policy FCFS --ports 9001 9002 [--reports-ports 9003 9004] --samples FILE

`FILE` gets a line five times a second: the time of the machine's monotonic clock, and for each engine the requests that run and that
wait, then the seconds by which the line was late. Ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.server.app import running_server
from evenkeel_simulator.server.settings import Settings

from bench.gate_load import MODEL
from bench.versus.workloads import PROFILE

SAMPLE_S: Final = 0.2


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    reports = options.reports_ports or [None] * len(options.ports)
    async with AsyncExitStack() as stack:
        engines = []
        for port, reports_port in zip(options.ports, reports, strict=True):
            settings = Settings(
                model=MODEL,
                port=port,
                reports_port=reports_port,
                replica_policy=options.policy,
                profile=PROFILES[PROFILE],
            )
            server = await stack.enter_async_context(running_server(settings))
            engines.append(server.replica.engine)
        with options.samples.open("w", buffering=1) as file:
            due_s = time.monotonic()
            while not stopping.is_set():
                due_s += SAMPLE_S
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                now_s = time.monotonic()
                loads = [engine.loads() for engine in engines]
                cells = " ".join(f"{one.running} {one.waiting}" for one in loads)
                file.write(f"{now_s:.3f} {cells} {now_s - due_s:.4f}\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--reports-ports", type=int, nargs="+")
    parser.add_argument("--samples", type=Path, required=True)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
