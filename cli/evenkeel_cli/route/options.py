"""Options of `evenkeel route` as the document that a file would have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from evenkeel_contract.decode import to_plain
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import Anonymous, TracingConfig
from evenkeel_contract.values import Fault, did_you_mean

from evenkeel_cli.route.routefile import Read, check_route


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a file could contain, too."""

    replicas: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """`NAME=KEY`; a name is `tenant` or `tenant/client`."""
    weights: tuple[str, ...] = ()
    """`NAME=N`."""
    anonymous: Anonymous | None = None
    model: str | None = None
    queue: QueueOwner | None = None
    tracing: TracingConfig | None = None


def route_of_options(options: Options) -> Read:
    """The document, and its faults under the names of the options."""
    if not options.replicas:
        message = "give the address of an engine, such as http://127.0.0.1:8000, or a file"
        return None, (Fault("--replica", message),)
    tenants: dict[str, dict[str, Any]] = {}
    faults = [*_add_keys(options.keys, tenants), *_add_weights(options.weights, tenants)]
    data: dict[str, Any] = {
        "replicas": [{"url": url} for url in options.replicas],
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
    if options.tracing is not None:
        data["tracing"] = to_plain(options.tracing)
    route, found = check_route(data)
    return route, tuple(Fault(_option(fault.path), fault.message) for fault in found)


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
