"""`python -m evenkeel_router --config FILE.json`: run a router until SIGTERM or SIGINT, then drain.

The first signal drains; a second one ends at once. Exit code 2 for a configuration that does not hold, with
every fault on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Final

import uvloop
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.app import running
from evenkeel_router.edge.configwatch import load
from evenkeel_router.edge.logs import start_logging

_log = logging.getLogger("evenkeel_router")
_YOUNG_OBJECTS: Final = 50_000


def main() -> int:
    """The exit code."""
    arguments = _arguments()
    config, faults, data = load(arguments.config)
    if config is None:
        for fault in faults:
            sys.stderr.write(f"{arguments.config}: {fault}\n")
        return 2
    listener = start_logging(arguments.log_level)
    try:
        return uvloop.run(_serve(config, (arguments.config, data), log_requests=arguments.requests))
    except OSError as error:  # a port that is taken, most likely
        _log.error("cannot serve: %s", error)
        return 1
    finally:
        listener.stop()


async def _serve(
    config: RouterConfig, config_file: tuple[Path, bytes], *, log_requests: bool
) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    output = sys.stderr if log_requests else None
    async with running(config, config_file=config_file, log_output=output) as router:
        _relax_garbage_collection()
        await signals.get()
        drain = asyncio.create_task(router.drain())
        second = asyncio.create_task(signals.get())
        await asyncio.wait((drain, second), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, second):
            task.cancel()
        await asyncio.gather(drain, second, return_exceptions=True)
    return 0


def _relax_garbage_collection() -> None:
    """What is there now stays; requests leave hardly any cycles.

    By default, some hundred streams at a time make the collector walk everything every few seconds: about
    2 % of the CPU, and pauses of 10 ms. A young generation of this many objects is a few megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="evenkeel_router", description="The D2LPM router.")
    parser.add_argument("--config", type=Path, required=True, help="a RouterConfig in JSON")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument(
        "--no-request-log",
        dest="requests",
        action="store_false",
        help="no line for each request",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
