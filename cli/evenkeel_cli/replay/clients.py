"""The headers that identify the clients of a trace to the endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from evenkeel_simulator.traffic.workload import Client

from evenkeel_cli.faults import ManifestFaults
from evenkeel_cli.manifest import load_manifest
from evenkeel_cli.yamlfile import YamlFault, read_documents

Headers = Callable[[str], Mapping[str, str]]


class ClientsError(ValueError):
    """The keys do not fit the clients; the message gives the reason."""


def read_keys(path: Path) -> dict[str, str]:
    """Client → API key, from a YAML or JSON mapping or a file for `evenkeel up`; raises `ClientsError`."""
    try:
        documents = [document.data for document in read_documents(path)]
        if _are_resources(documents):
            return dict(load_manifest(path).api_keys())
    except (YamlFault, ManifestFaults) as error:
        raise ClientsError(str(error)) from error
    if len(documents) != 1 or not isinstance(documents[0], dict) or not documents[0]:
        raise ClientsError(
            f"{path}: must be one mapping from client to API key, or a file for `evenkeel up`"
        )
    for client, key in documents[0].items():
        if not isinstance(client, str) or not isinstance(key, str):
            raise ClientsError(f"{path}: {client}: client and key must be strings; use quotes")
        if not key or not key.isascii() or not key.isprintable():
            raise ClientsError(f"{path}: {client}: the key must be printable ASCII")
    return documents[0]


def _are_resources(documents: Iterable[object]) -> bool:
    return any(isinstance(data, dict) and "kind" in data for data in documents)


def read_weights(path: Path, assigned: Mapping[str, str]) -> dict[str, Client]:
    """The clients of a trace with tenants and weights, from a file for `evenkeel up` that `read_keys` has read; none from a mapping
    of keys. `assigned`: client → name of its key."""
    if not _are_resources(document.data for document in read_documents(path)):
        return {}
    named: dict[str, tuple[str, float, float]] = {}
    for tenant in load_manifest(path).tenants:
        spec, name = tenant.spec, tenant.metadata.name
        weights = {client.name: client.weight for client in spec.clients}
        for key in spec.api_keys:
            named[f"{name}/{key.client}"] = (
                f"{tenant.metadata.namespace}/{name}",
                weights.get(key.client, spec.default_client_weight),
                spec.weight,
            )
    return {client: Client(client, *named[key]) for client, key in assigned.items()}


def assign_keys(clients: Iterable[str], keys: Mapping[str, str]) -> dict[str, str]:
    """Client → name of its key: the same name, else the key's part of it or its part of the key, else the next unused key.

    Raises `ClientsError` if there are too few keys, or if several keys end in a client's name.
    """
    wanted = sorted(set(clients))
    given: dict[str, str] = {}
    for client in wanted:
        named = (
            [client]
            if client in keys
            else [k for k in keys if k.rpartition("/")[2] == client or client.endswith(f"/{k}")]
        )
        if len(named) > 1:
            raise ClientsError(
                f"client {client!r} may be {' or '.join(named)}; use one of these names in the trace"
            )
        given.update((client, key) for key in named)
    others = [client for client in wanted if client not in given]
    spare = [key for key in keys if key not in given.values()]
    if len(others) > len(spare):
        raise ClientsError(
            f"{len(wanted)} clients need one API key each, and there are {len(keys)}; "
            f"use more keys or fewer clients (--clients hash:{len(keys)})"
        )
    return given | dict(zip(others, spare, strict=False))


def headers_by_key(assigned: Mapping[str, str], keys: Mapping[str, str]) -> Headers:
    """The API key that was assigned to each client (`assign_keys`)."""
    headers = {c: {"Authorization": f"Bearer {keys[name]}"} for c, name in assigned.items()}
    return headers.__getitem__


def headers_by_name(header: str) -> Headers:
    """The client's name in a header, for a router that trusts this machine as a proxy.

    `NAME` sends the name itself; `NAME: pattern` sends the pattern with the name instead of `{client}`.
    """
    name, _, pattern = header.partition(":")
    name, pattern = name.strip(), pattern.strip() or "{client}"
    if not name.isascii() or not name.replace("-", "").isalnum():
        raise ClientsError(f"{name!r} is not the name of a header")
    return lambda client: {name: pattern.replace("{client}", client)}
