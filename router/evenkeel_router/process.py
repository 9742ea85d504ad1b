"""A router as the work of a whole process: signals, open files, garbage collection."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Coroutine
from typing import IO, Any, Final, TypeVar

import uvloop
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.app import Router, running
from evenkeel_router.cluster.config_watch import ConfigSource
from evenkeel_router.telemetry.logs import start_logging
from evenkeel_router.transport.server import files_for

_log = logging.getLogger(__name__)
_YOUNG_OBJECTS: Final = 2_000
_YOUNG_COLLECTIONS: Final = 1_000


def run(serving: Coroutine[Any, Any, int], *, log_level: str = "info") -> int:
    """Run `serving` with the logs of a router on standard error; its exit code, or 1 if a port is taken."""
    listener = start_logging(log_level)
    try:
        return uvloop.run(serving)
    except OSError as error:  # a port that is taken, most likely
        _log.error("cannot serve: %s", error)
        return 1
    finally:
        listener.stop()


async def serve(
    config: RouterConfig, source: ConfigSource | None, *, log_output: IO[str] | None
) -> int:
    """Run a router outside a cluster until a signal; exit code 0. `log_output` takes one line for each request."""
    arriving = signals()
    async with running(config, source=source, log_output=log_output) as router:
        await until_signalled(router, arriving)
    return 0


_First = TypeVar("_First")
_Second = TypeVar("_Second")


async def first_of(
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


def signals() -> asyncio.Queue[signal.Signals]:
    """SIGTERM and SIGINT of this process, as they arrive."""
    arriving: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arriving.put_nowait, number)
    return arriving


async def until_signalled(router: Router, arriving: asyncio.Queue[signal.Signals]) -> None:
    """The first signal drains, a second one ends at once."""
    await router.large_bodies.start()
    _relax_garbage_collection()
    max_concurrent = router.rooms.settings.config.limits.max_concurrent
    _allow_files(files_for(max_concurrent))
    await arriving.get()
    await first_of(router.drain(), arriving.get())


def _allow_files(needed: int) -> None:
    """Allow as many open files as the system lets this process have: a request is two connections, others one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < needed:
        _log.warning(
            "only %d files may be open, so that fewer connections are; limits.maxConcurrent needs %d files",
            most,
            needed,
        )


def _relax_garbage_collection() -> None:
    """What is there now stays. Requests leave no cycles, apart from a few objects when a client disconnects.

    So nearly all that the collector looks at are requests in flight, about 55 objects each. It takes a millisecond for
    `_YOUNG_OBJECTS`; with 50,000 of them it stopped the router for 40 ms. An older generation has all requests in flight,
    and is looked at once in `_YOUNG_COLLECTIONS`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS)
