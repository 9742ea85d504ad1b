"""`python -m evenkeel_simulator.server --model NAME …`: a simulated replica as a process.

Once it listens it writes one line of JSON with its addresses to standard output, since the system may choose
the ports. SIGTERM and SIGINT drain as SGLang does on SIGTERM: `/ready` answers 503, what runs and what
still comes is served, and when nothing is left the process ends. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

import msgspec
import uvloop
import zmq

from evenkeel_simulator.server.app import RunningServer, running_server
from evenkeel_simulator.server.settings import Settings, parse_arguments

_log = logging.getLogger("evenkeel.simulator")


def main(arguments: Sequence[str]) -> int:
    """Run until drained; the exit status."""
    settings = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        return uvloop.run(serve(settings))
    except (OSError, zmq.ZMQError) as error:
        _log.error("cannot listen on %s: %s", settings.host, error)
        return 1


async def serve(settings: Settings) -> int:
    """Serve until a signal has drained the server, a second one came, or the engine died."""
    at_once = asyncio.Event()
    async with running_server(settings) as server:
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if server.replica.draining.is_set():
                at_once.set()
            server.replica.draining.set()
            _log.info("draining; a second signal ends the server at once")

        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, on_signal)
        _announce(server)
        ends = [
            asyncio.create_task(server.replica.drained()),
            asyncio.create_task(at_once.wait()),
            asyncio.create_task(server.replica.driver.stopped.wait()),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    return 0


def _announce(server: RunningServer) -> None:
    where = {
        "url": server.url,
        "reports": server.reports,
        "kv_events": server.kv_events,
        "kv_replay": server.kv_replay,
        "incarnation": server.incarnation,
    }
    sys.stdout.write(msgspec.json.encode(where).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
