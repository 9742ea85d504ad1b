"""Faults of documents that have several, and figures as the command line shows them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
from evenkeel_cli.replay.report import seconds
from evenkeel_cli.status import _duration
from evenkeel_cli.top.table import _percent, _range
from evenkeel_cli.trace_options import UsageError, read_programs
from evenkeel_cli.up.capacity import GIB, MIB, check_memory
from evenkeel_cli.up.errors import FleetError
from evenkeel_contract.routerdocument import dump_router_config, parse_router_config
from evenkeel_kube.client import api_error

from tests.support.crd_cases import RULES
from tests.support.crd_documents import changed, faults_of
from tests.support.decisions import row, text
from tests.support.fault_cases import FOUND_BY_THE_OPERATOR
from tests.support.routers import config_for


def documents() -> Iterator[str]:
    """Resources that break two or three rules: all faults are found, each with its path."""
    names = sorted(RULES)
    for seed in range(120):
        rng = Random(seed)
        chosen = rng.sample(names, rng.choice((2, 3)))
        base = RULES[chosen[0]].base
        changes: dict[str, Any] = {}
        for name in chosen:
            if RULES[name].base == base:
                changes |= RULES[name].bad
        try:
            document = changed(base, changes)
        except (KeyError, IndexError, TypeError):
            continue  # one change removes the place of another
        yield f"{', '.join(chosen)} => {' | '.join(map(str, faults_of(document)))}"
    for name, (document, _) in FOUND_BY_THE_OPERATOR.items():
        yield f"{name} => {' | '.join(map(str, faults_of(document)))}"


ODD: tuple[Any, ...] = (
    -1,
    0,
    1,
    1.5,
    2**53,
    2**53 + 1,
    1e9,
    "",
    "x",
    "a b",
    "\x00",
    True,
    None,
    [],
    {},
    [1],
    {"x": 1},
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, the outer ones first."""
    if path:
        yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in items:
        yield from _paths(one, (*path, key))


def router_documents() -> Iterator[str]:
    """Configurations of routers with two odd values: the faults, or the configuration as it is written again."""
    plain = dump_router_config(config_for())
    places = list(_paths(msgspec.json.decode(plain)))
    for seed in range(250):
        rng = Random(seed)
        document, edits = msgspec.json.decode(plain), []
        for path in sorted(rng.sample(places, 2), key=len, reverse=True):
            place = document
            for key in path[:-1]:
                place = place[key]
            value = rng.choice(ODD)
            place[path[-1]] = value
            edits.append(f"{'.'.join(map(str, path))}={value!r}")
        config, faults = parse_router_config(msgspec.json.encode(document))
        same = config is not None and parse_router_config(dump_router_config(config))[0] == config
        yield f"{' '.join(edits)} => {same} {' | '.join(map(str, faults))}"


def _memory() -> Iterator[str]:
    for seed in range(60):
        rng = Random(seed)
        given = {
            "kept": rng.choice((0, 2)),
            "started": rng.choice((0, 1, 4)),
            "replica_bytes": rng.choice((100 * MIB, 2 * GIB)),
            "routers_started": rng.choice((0, 1, 3)),
            "available_bytes": rng.choice((0, 512, 642, 643, 742, 1042, 4096)) * MIB,
        }
        try:
            check_memory(field="spec.engine.replicas", **given)
            answer = "fits"
        except FleetError as error:
            answer = str(error)
        yield row(given, answer)


def figures() -> Iterator[str]:
    """Times, parts and ranges for people; what fits in memory; errors of the API server."""
    for value in (None, 0.0, 0.0004, 0.5, 0.9994, 1.0, 9.994, 9.999, 10.0, 10.04, 12345.6):
        yield row({"seconds": value}, seconds(value))
    for value in (0.0, 119.4, 120.0, 7199.0, 7200.0, 172_799.0, 172_800.0, 1e6):
        yield row({"running for": value}, _duration(value))
    for value in (None, 0.0, 0.004, 0.006, 0.5, 1.0):
        yield row({"part": value}, _percent(value))
    bounds = (None, 0.0, -1.0, 999.4, 1000.0, -1250.0, 9999.0, 10_000.0, 12_600.0, -10_000.0)
    for low in bounds:
        yield row({"low": low}, [_range(low, high) for high in bounds])
    yield from _memory()
    for status in (400, 404, 408, 409, 410, 422, 429, 499, 500, 501, 503, 504):
        for message in (
            "",
            "json: cannot unmarshal",
            "failed to create typed patch object",
            "error",
        ):
            yield row(
                {"status": status, "message": message}, type(api_error(status, message)).__name__
            )
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        try:
            read_programs(None, clients=None, speed=speed, seed=0)  # type: ignore[arg-type]
            yield f"speed {speed} => {text('read')}"
        except UsageError as error:
            yield f"speed {speed} => {error}"


TABLES = {
    "contract-documents": documents,
    "contract-router-documents": router_documents,
    "cli-figures": figures,
}
