"""`python -m evenkeel_router --config FILE.json`: run a router until SIGTERM or SIGINT, then drain.

The first signal drains; a second one ends at once. Exit code 2 for an invalid configuration, with
every fault on standard error. In a pod, `--config-secret NAME` replaces the file: the router watches the Secret
through the API, and waits until it is valid.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import uvloop
from evenkeel_contract.names import ROUTER_CONFIG_KEY
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.app import Router, background, running
from evenkeel_router.cluster.config_watch import ConfigSource, FileSource, load
from evenkeel_router.telemetry.logs import start_logging
from evenkeel_router.transport.server import connections_for

_log = logging.getLogger("evenkeel_router")
_YOUNG_OBJECTS: Final = 50_000
_OTHER_FILES: Final = 100  # ports, logs, probes, reports


def main() -> int:
    """The exit code."""
    arguments = _arguments()
    if arguments.config is None:
        serving = _serve_on_cluster(arguments)
    else:
        config, faults, data = load(arguments.config)
        if config is None or config.cluster is not None:
            for fault in faults or ("cluster: needs --config-secret",):
                sys.stderr.write(f"{arguments.config}: {fault}\n")
            return 2
        source = FileSource(arguments.config, data)
        serving = _serve_from_file(config, source, log_requests=arguments.requests)
    listener = start_logging(arguments.log_level)
    try:
        return uvloop.run(serving)
    except OSError as error:  # a port that is taken, most likely
        _log.error("cannot serve: %s", error)
        return 1
    finally:
        listener.stop()


async def _serve_from_file(
    config: RouterConfig, source: ConfigSource, *, log_requests: bool
) -> int:
    output = sys.stderr if log_requests else None
    signals = _signals()
    async with running(config, source=source, log_output=output) as router:
        await _until_signalled(router, signals)
    return 0


async def _serve_on_cluster(arguments: argparse.Namespace) -> int:
    # Imported here: the Kubernetes client takes 20 MiB, which routers outside a cluster do not need.
    from evenkeel_kube.client import CredentialsError, connected, in_pod, namespace_of_pod

    from evenkeel_router.cluster.secret_watch import SecretSource

    output = sys.stderr if arguments.requests else None
    try:
        access, namespace = in_pod(), namespace_of_pod()
    except CredentialsError as error:
        _log.error("%s", error)
        return 2
    signals = _signals()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connected(access))
        source = SecretSource(api, namespace, arguments.config_secret, rng=Random())
        await stack.enter_async_context(background(source.run()))
        # As process 1 of a container there is no default action: a signal must end the waiting, too.
        config = await _first_of(source.first(), signals.get())
        if isinstance(config, RouterConfig):
            router = await stack.enter_async_context(
                running(config, source=source, api=api, log_output=output)
            )
            await _until_signalled(router, signals)
    return 0


_First = TypeVar("_First")
_Second = TypeVar("_Second")


async def _first_of(
    one: Coroutine[Any, Any, _First], other: Coroutine[Any, Any, _Second]
) -> _First | _Second:
    """The result of the first to end; the other is cancelled."""
    tasks: tuple[asyncio.Task[_First], asyncio.Task[_Second]] = (
        asyncio.create_task(one),
        asyncio.create_task(other),
    )
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tasks[1].result() if tasks[0].cancelled() else tasks[0].result()


def _signals() -> asyncio.Queue[signal.Signals]:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals


async def _until_signalled(router: Router, signals: asyncio.Queue[signal.Signals]) -> None:
    """The first signal drains, a second one ends at once."""
    _relax_garbage_collection()
    max_concurrent = router.rooms.settings.config.limits.max_concurrent
    _allow_files(max_concurrent + connections_for(max_concurrent) + _OTHER_FILES)
    await signals.get()
    await _first_of(router.drain(), signals.get())


def _allow_files(needed: int) -> None:
    """As many open files as the system lets this process have: a request is two connections, others one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < needed:
        _log.warning(
            "only %d files may be open; limits.maxConcurrent needs %d of them", most, needed
        )


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
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--config", type=Path, help="a RouterConfig in JSON")
    given.add_argument(
        "--config-secret",
        metavar="NAME",
        help=f"in a pod: the Secret of its namespace whose entry {ROUTER_CONFIG_KEY} is a RouterConfig",
    )
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
