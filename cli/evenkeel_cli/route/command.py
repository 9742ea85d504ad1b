"""The command `evenkeel route`."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import typer
from evenkeel_contract.pools import configs_of, offered_names
from evenkeel_contract.routerconfig import ListenConfig, ReplicaConfig, RouterConfig
from evenkeel_contract.routerdocument import check_router_config
from evenkeel_contract.values import Fault
from evenkeel_router.cluster.config_watch import FileSource, Loaded
from evenkeel_router.process import run, serve
from rich.console import Console
from rich.markup import escape

from evenkeel_cli.commands import command_of
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import print_error
from evenkeel_cli.route.models import ModelNames, ModelsError, ask_models
from evenkeel_cli.route.options import RouteOptions, route_of_options
from evenkeel_cli.route.routefile import (
    Read,
    RouteFile,
    of_file,
    parse_route_file,
    router_config_of,
    sha256,
    unnamed,
)

_NO_TOKEN = "is required if --host is not a loopback address; choose a secret token"


def _command(options: RouteOptions) -> None:
    """Run a fair router in front of engines that run already.

    The first signal (Ctrl-C) finishes the requests in flight; a second one ends at once. Edits of FILE are applied when it is saved.
    """
    probe = options.port + 1 if options.probe_port is None else options.probe_port
    admin = probe + 1 if options.admin_port is None else options.admin_port
    token = options.admin_token
    render = partial(
        _rendered,
        listen=ListenConfig(
            host=options.host, traffic_port=options.port, probe_port=probe, admin_port=admin
        ),
        replica_key=options.replica_key,
        admin_token_sha256=None if token is None else sha256(token),
    )
    raise typer.Exit(_route(options, render))


route = command_of(_command, RouteOptions)


Names = tuple[ModelNames, ...]
"""The names of the only model, or of each of several."""
Render = Callable[[RouteFile, Names], RouterConfig]


def _rendered(route: RouteFile, names: Names, **given: Any) -> RouterConfig:
    if route.models:
        return router_config_of(route, names[0], pools=names, **given)
    return router_config_of(route, names[0], **given)


def _route(options: RouteOptions, render: Render) -> int:
    """Run until a signal; the exit status."""
    # 1. What is to be routed.
    (route, faults), data = _read(options)
    if route is None:
        return _print_faults(faults)
    # 2. The names of the model: of a faulty configuration nothing is asked.
    blank = render(route, unnamed(route) or (ModelNames("unknown"),))
    faults = (*_of_options(check_router_config(blank)), *_taken(blank.listen))
    if faults:
        return _print_faults(faults)
    console = Console()
    try:
        names = asyncio.run(_names(route, blank, console))
    except ModelsError as error:
        print_error(error)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    # 3. The router.
    config = render(route, names)
    if faults := tuple(check_router_config(config)):  # two engines may have models of one name
        return _print_faults(tuple(map(of_file, faults)))
    file, source = options.file, None
    if file is not None:
        known = dict(zip(_keys(route), names, strict=True))
        source = FileSource(file, data, parse=partial(_reparse, str(file), known, render))
    _banner(config, console)
    output = sys.stderr if options.log_requests else None
    return run(serve(config, source, log_output=output))


def _read(options: RouteOptions) -> tuple[Read, bytes]:
    """What is to be routed, and the bytes of the file."""
    file = options.file
    if file is None:
        return route_of_options(options), b""
    if options.describe_a_route():
        fault = Fault(
            "FILE",
            "replaces the options for replicas, keys, model, queue and tracing; give one of both",
        )
        return (None, (fault,)), b""
    try:
        data = file.read_bytes()
    except OSError as error:
        return (None, (Fault(str(file), f"cannot be read: {error.strerror}"),)), b""
    return parse_route_file(data, str(file)), data


def _reparse(
    name: str, known: Mapping[tuple[str, ...], ModelNames], render: Render, data: bytes
) -> Loaded:
    """A configuration from a changed file. The engines are not asked again."""
    route, faults = parse_route_file(data, name)
    if route is None:
        return None, faults
    given, found = _given(route), []
    for number, (key, model) in enumerate(zip(_keys(route), given, strict=True)):
        names = known.get(key) if model is None else ModelNames(model)
        if names is None:
            message = "is required for a model that is added while the router runs"
            return None, (Fault(f"{name}: models[{number}].model", message),)
        found.append(names)
    config = render(route, tuple(found))
    faults = tuple(map(of_file, check_router_config(config)))
    return (None, faults) if faults else (config, ())


def _given(route: RouteFile) -> Sequence[str | None]:
    """The name that engines know of the only model, or of each of several; None: the engines are asked."""
    return [one.model for one in route.models] or [route.model]


def _keys(route: RouteFile) -> Sequence[tuple[str, ...]]:
    """What distinguishes the models of a file while it is edited: the only one, or the engines of each."""
    return [tuple(one.url for one in model.replicas) for model in route.models] or [()]


async def _names(route: RouteFile, config: RouterConfig, console: Console) -> Names:
    def report(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    async def of_model(model: str | None, replicas: Sequence[ReplicaConfig]) -> ModelNames:
        if model is not None:
            return ModelNames(model)
        return await ask_models(replicas, report=report)

    fleets = [one.replicas for one in configs_of(config)]
    asked = (of_model(*one) for one in zip(_given(route), fleets, strict=True))
    return tuple(await asyncio.gather(*asked))


def _of_options(found: Iterable[Fault]) -> Iterator[Fault]:
    """Faults of ports and of the token, under the names of the options."""
    names = {
        "listen.trafficPort": "--port",
        "listen.probePort": "--probe-port",
        "listen.adminPort": "--admin-port",
        "adminTokenSha256": "--admin-token",
    }
    for fault in found:
        message = _NO_TOKEN if fault.path == "adminTokenSha256" else fault.message
        yield Fault(names.get(fault.path, fault.path), message)


def _taken(listen: ListenConfig) -> Iterator[Fault]:
    """Ports that another process listens on."""
    ports = {
        "--port": listen.traffic_port,
        "--probe-port": listen.probe_port,
        "--admin-port": listen.admin_port,
    }
    for option, port in ports.items():
        try:
            socket.create_server((listen.host, port)).close()
        except OSError as error:
            yield Fault(
                option,
                f"port {port} on {listen.host} cannot be used ({error.strerror}); choose another port",
            )


def _print_faults(faults: Sequence[Fault]) -> int:
    for fault in faults:
        print_error(fault)
    return ExitCode.INVALID


def _banner(config: RouterConfig, console: Console) -> None:
    listen = config.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    lines = [f"router    http://{host}:{listen.traffic_port}/v1"]
    for one, pool in zip_longest(configs_of(config), config.pools):
        names = (one.model, *one.model_aliases) if pool is None else offered_names(pool)
        lines.append(f"model     {', '.join((*names, *one.adapters))}")
        lines.append(f"replicas  {', '.join(replica.name for replica in one.replicas)}")
    lines.append(f"watch     evenkeel top --url http://{host}:{listen.admin_port}")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
