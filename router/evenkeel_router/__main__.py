"""`python -m evenkeel_router --config FILE.json`: run a router until SIGTERM or SIGINT, then drain.

The first signal drains; a second one ends at once. Exit code 2 for an invalid configuration, with
every fault on standard error. In a pod, `--config-secret NAME` replaces the file: the router watches the Secret
through the API, and waits until it is valid.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from evenkeel_contract.names import ROUTER_CONFIG_KEY
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.app import running
from evenkeel_router.cluster.config_watch import FileSource, load
from evenkeel_router.process import first_of, run, serve, signals, until_signalled
from evenkeel_router.transport.background import background

_log = logging.getLogger("evenkeel_router")


def main() -> int:
    """The exit code."""
    arguments = argument_parser().parse_args()
    if arguments.config is None:
        serving = _serve_on_cluster(arguments)
    else:
        config, faults, data = load(arguments.config)
        if config is None or config.cluster is not None:
            for fault in faults or ("cluster: needs --config-secret",):
                sys.stderr.write(f"{arguments.config}: {fault}\n")
            return 2
        source = FileSource(arguments.config, data)
        output = sys.stderr if arguments.requests else None
        serving = serve(config, source, log_output=output)
    return run(serving, log_level=arguments.log_level)


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
    arriving = signals()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connected(access))
        source = SecretSource(api, namespace, arguments.config_secret, rng=Random())
        await stack.enter_async_context(background(source.run()))
        # As process 1 of a container there is no default action: a signal must end the waiting, too.
        config = await first_of(source.first(), arriving.get())
        if isinstance(config, RouterConfig):
            router = await stack.enter_async_context(
                running(config, source=source, api=api, log_output=output)
            )
            await until_signalled(router, arriving)
    return 0


def argument_parser() -> argparse.ArgumentParser:
    """The parser of all flags."""
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
