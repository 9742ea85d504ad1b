"""What every field of both resources changes: a table in `effects.yaml`, complete by the schema.

For each field (`tests/support/effects.py`) a service is brought up twice, in a cluster in memory: as it is, and with another value. What differs
afterwards among all objects, what routers are told included, is the field's effect; where it is scaled, so is how its
replicas follow a day of load, and whom the scaler asks. A field that changes nothing would be a promise that nobody keeps.
`e2e/test_fields.py` finds the same on a real cluster.

`EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_effects.py` writes the table anew.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from evenkeel_contract import federationconfig, qoeconfig, recordingconfig, routerconfig
from evenkeel_operator.cluster.store import SERVICE as KIND
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.objects import OPTIONAL_KINDS

from tests.support.crd_documents import Document
from tests.support.effects import (
    CASES,
    LABELS,
    OTHER,
    SECRETS,
    TABLE,
    TENANTS,
    Place,
    fields_of,
    pool,
    secret,
    summary,
    values,
)
from tests.support.effects_together import together
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import Operator
from tests.support.scaling_scenes import live_through

ROOT: Final = Path(__file__).parents[2]


async def outcome(service: Document, tenant: Document) -> dict[Place, Any]:
    """Every value of every object that comes of a service and a tenant, by its place."""
    cluster = FakeCluster()
    cluster.optional = OPTIONAL_KINDS
    for one in (service, tenant, *map(secret, SECRETS), pool("pool"), pool("other")):
        labels = LABELS if one["kind"] == "InferenceTenant" else one["metadata"].get("labels", {})
        metadata = {**one["metadata"], "namespace": "team-ml", "labels": labels, "generation": 1}
        cluster.put({**deepcopy(one), "metadata": metadata})
    given = set(cluster.objects)
    key = Key(KIND, "team-ml", service["metadata"]["name"])
    operator = Operator(cluster)
    await operator.make_pass(key)
    status = cluster.objects[KIND, "team-ml", key.name]["status"]
    assert {item["type"]: item["status"] for item in status["conditions"]}["SpecValid"] == "True"
    found = {
        (f"{where[0]}/{_name(*where)}", *place): value
        for where, item in cluster.objects.items()
        # The spec itself is remembered there: of course it changes.
        if where not in given and not where[2].endswith("-accepted")
        for place, value in values(item)
    }
    found |= {("status", name): status.get(name) for name in ("url", "image")}
    if "autoscaling" in service["spec"]:
        await operator.make_pass(key)  # routers are told of tenants, so weights are known
        seen = await live_through(cluster, operator, key)
        found |= {("Scaler", name): value for name, value in seen.items()}
        if cluster.scales:
            found["Scaler", "target"] = sorted(cluster.scales)
    return found


def _name(kind: str, _: str, name: str) -> str:
    """The name of a Job ends with a digest of its pod."""
    return name.rpartition("-")[0] if kind == "Job" else name


async def effects() -> dict[str, dict[str, list[str]]]:
    """Kind → field → the places that another value of it changes."""
    found: dict[str, dict[str, list[str]]] = {}
    known: dict[str, dict[Place, Any]] = {}
    for case in CASES:
        key = json.dumps(case.before)
        if key not in known:
            known[key] = await outcome(*case.before)
        changes = summary(known[key], await outcome(*case.after))
        found.setdefault(case.kind, {})[case.field] = changes
    return found


@pytest.mark.parametrize(("kind", "cases"), [(KIND, OTHER), ("InferenceTenant", TENANTS)])
def test_every_field_of_the_schema_has_a_case(kind: str, cases: Mapping[str, Any]) -> None:
    assert list(cases) == fields_of(kind)


async def test_every_field_changes_what_the_table_lists() -> None:
    found = await effects()
    text = yaml.safe_dump(found, sort_keys=False, width=140)
    if "EVENKEEL_WRITE_GOLDEN" in os.environ:
        TABLE.write_text(text)
    assert yaml.safe_load(TABLE.read_text()) == found


async def test_fields_changed_together_change_what_each_changes_alone() -> None:
    table = {
        kind: {field: _in_objects(lines) for field, lines in fields.items()}
        for kind, fields in yaml.safe_load(TABLE.read_text()).items()
    }
    for one in together(CASES, table):
        changes = summary(await outcome(*one.before), await outcome(*one.after))
        assert _in_objects(changes) == one.effects(table), str(one)


def _in_objects(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("Scaler ")]


def test_there_is_no_field_that_changes_nothing() -> None:
    table = yaml.safe_load(TABLE.read_text())
    assert [
        field for fields in table.values() for field, places in fields.items() if not places
    ] == []


def test_routers_read_every_field_of_their_configuration() -> None:
    told = {
        field.name
        for module in (routerconfig, federationconfig, qoeconfig, recordingconfig)
        for one in vars(module).values()
        if is_dataclass(one) and one.__module__ == module.__name__
        for field in dataclass_fields(one)
    }
    read = {
        node.attr
        for path in (ROOT / "router").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert len(told) > 40
    assert told - read == set()
