"""The options of `evenkeel route`, and the document that a file in their place would have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import Anonymous
from evenkeel_contract.values import Fault, did_you_mean

from evenkeel_cli.route.routefile import ANONYMOUS_SHARE, Read, check_route
from evenkeel_cli.tracing import traces_to


def _port(text: str) -> Any:
    return typer.Option(min=1, max=65535, help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """One field for each option of the command."""

    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file with replicas, tenants and settings, instead of options."),
    ] = None
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Address of an engine; once for each engine."),
    ] = None
    replica_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="EVENKEEL_REPLICA_KEY",
            help="Bearer key that the engines require, unless the file has one for them.",
        ),
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY",
            help="API key of a tenant, or of tenant/client; once for each key.",
        ),
    ] = None
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Weight of a tenant, or of tenant/client. Default: 1."),
    ] = None
    anonymous: Annotated[
        Anonymous | None,
        typer.Option(help="Requests without a key: 401, or all are one client. Default: Reject."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model name. Default: the engines are asked."),
    ] = None
    queue: Annotated[
        QueueOwner | None,
        typer.Option(
            help="Where waiting requests are ordered. Auto, the default: in the router for engines "
            "without the plug-in."
        ),
    ] = None
    tracing: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send a trace of every request to the collector at URL (OTLP over HTTP).",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _port("Port for requests of clients.")] = TRAFFIC_PORT
    probe_port: Annotated[
        int | None, _port(f"Port for probes and metrics. Default: --port + 1 ({PROBE_PORT}).")
    ] = None
    admin_port: Annotated[
        int | None, _port(f"Port for `evenkeel top`. Default: --probe-port + 1 ({ADMIN_PORT}).")
    ] = None
    admin_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="EVENKEEL_ADMIN_TOKEN",
            help="Bearer token of the admin port; required if --host is not a loopback address.",
        ),
    ] = None
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Log one line for each request.")
    ] = False

    def describe_a_route(self) -> bool:
        """Whether an option is given that a file would replace."""
        lists = (self.replica, self.key, self.weight)
        others = (self.anonymous, self.model, self.queue, self.tracing)
        return any(lists) or any(one is not None for one in others)


def route_of_options(options: RouteOptions) -> Read:
    """The document that these options describe, and its faults under the names of the options."""
    tracing = traces_to(options.tracing)
    if not options.replica:
        message = "give the address of an engine, such as http://127.0.0.1:8000, or a file"
        return None, (Fault("--replica", message),)
    tenants: dict[str, dict[str, Any]] = {}
    faults = [
        *_add_keys(options.key or (), tenants),
        *_add_weights(options.weight or (), tenants),
    ]
    data: dict[str, Any] = {
        "replicas": [{"url": url} for url in options.replica],
        "tenants": [
            tenant | {"clients": list(tenant["clients"].values())} for tenant in tenants.values()
        ],
    }
    if options.anonymous is not None:
        data["anonymous"] = options.anonymous.value
    if options.model is not None:
        data["model"] = options.model
    if options.queue is not None:
        data["scheduling"] = {"queue": options.queue.value}
    if faults:
        return None, tuple(faults)
    if tracing is not None:
        data["tracing"] = to_plain(tracing)
    route, found = check_route(data)
    return route, tuple(
        Fault(_option(fault.path), fault.message.replace(ANONYMOUS_SHARE, "give --anonymous Share"))
        for fault in found
    )


def _add_keys(given: Iterable[str], tenants: dict[str, dict[str, Any]]) -> Iterator[Fault]:
    first: dict[str, int] = {}
    for number, text in enumerate(given, start=1):
        name, equals, key = text.partition("=")
        if not name or not equals or not key:  # without the text, which may be a secret
            yield Fault("--key", f"number {number} must be NAME=KEY, such as ads=sk-1")
            continue
        if first.setdefault(key, number) != number:
            yield Fault("--key", f"number {number} has the same key as number {first[key]}")
        tenant, slash, client = name.partition("/")
        entry = tenants.setdefault(tenant, {"name": tenant, "keys": [], "clients": {}})
        if slash:
            entry = entry["clients"].setdefault(client, {"name": client, "keys": []})
        entry["keys"].append(key)


def _add_weights(given: Iterable[str], tenants: dict[str, dict[str, Any]]) -> Iterator[Fault]:
    named = {tenant: entry for tenant, entry in tenants.items()} | {
        f"{tenant}/{client}": one
        for tenant, entry in tenants.items()
        for client, one in entry["clients"].items()
    }
    for text in given:
        name, _, weight = text.partition("=")
        if not weight.isdecimal():
            yield Fault("--weight", f"must be NAME=N with a whole number, not {text!r}")
        elif name not in named:
            yield Fault("--weight", f"{name!r} has no --key{did_you_mean(name, named)}")
        else:
            named[name]["weight"] = int(weight)


def _option(path: str) -> str:
    """The option that a path of the document comes from."""
    if path.endswith(".weight"):
        return "--weight"
    for start, option in (("replicas", "--replica"), ("tenants", "--key"), ("model", "--model")):
        if path.startswith(start):
            return option
    return path
