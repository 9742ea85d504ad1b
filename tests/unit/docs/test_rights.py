"""The table of rights has a row for each field of every resource that can name something else, with a test that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.support.plain_words import ROOT

PAGE: Final = (ROOT / "docs/reference/rights.md").read_text()
KINDS: Final = {
    "FairInferenceService": "fairinferenceservices",
    "InferenceTenant": "inferencetenants",
    "FairInferenceGateway": "fairinferencegateways",
}
IN_EXPOSURE: Final = {
    *("exposure.ingress.paths", "exposure.ingress.labels", "exposure.cors.allowOrigins"),
    *("exposure.httpRoute.paths", "exposure.httpRoute.labels"),
}
IN_TENANCY: Final = {  # what proxies and tokens say, and the tenants that they name
    *("tenancy.identityHeaders", "tenancy.jwt[].audience", "tenancy.jwt[].issuer"),
    *("tenancy.jwt[].tenantClaim", "tenancy.jwt[].clientClaim", "tenancy.jwt[].groupsClaim"),
    *("tenancy.jwt[].tenantOf", "tenancy.jwt[].allowedTenants"),
}
NAMES_NOTHING: Final = {
    "FairInferenceService": {
        *("model.servedName", "model.adapters[].name"),  # what clients send as the model
        *("federation.cell", "federation.cells[].name"),  # what cells call themselves
        *IN_EXPOSURE,
        *IN_TENANCY,
    },
    "FairInferenceGateway": {
        *("models[].name", "models[].aliases", "models[].fallback"),  # within the gateway
        *IN_EXPOSURE,
        *IN_TENANCY,
    },
    # Names within the tenant.
    "InferenceTenant": {"clients[].name", "apiKeys[].name", "apiKeys[].client"},
}
# Times, shares and policies by name: texts with a grammar of their own that names no object.
VALUES: Final = re.compile(r"\(ms\|s\|m\|h\)|%\||^\^Auto\$$")


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if schema.get("properties"):
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}".lstrip("."))
    elif schema.get("type") == "array":
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path, schema


def names_something(schema: dict[str, Any]) -> bool:
    """Whether the field takes free text, or anything."""
    is_value = "enum" in schema or VALUES.search(schema.get("pattern", ""))
    return schema.get("type") in ("string", "object") and not is_value


def fields(kind: str) -> list[str]:
    plain = yaml.safe_load((ROOT / f"crds/{KINDS[kind]}.yaml").read_text())
    root = plain["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return [path for path, schema in leaves(root) if names_something(schema)]


def rows(kind: str) -> list[list[str]]:
    section = PAGE.split(f"### {kind}\n")[1].split("\n#")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line] for line in lines]


def covers(row: str, path: str) -> bool:
    return path == row or path.startswith((f"{row}.", f"{row}[]"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_that_names_something_has_one_row(kind: str) -> None:
    listed = [row[0] for row in rows(kind)]
    wanted = {
        path for path in fields(kind) if not any(covers(n, path) for n in NAMES_NOTHING[kind])
    }
    found = {path: [row for row in listed if covers(row, path)] for path in wanted}
    assert {path: by for path, by in found.items() if len(by) != 1} == {}
    assert [row for row in listed if not any(covers(row, path) for path in wanted)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_a_right_a_consent_and_a_test_that_exists(kind: str) -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {
        name
        for text in texts
        for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)
    }
    assert [row for row in rows(kind) if len(row) != 5 or not all(row)] == []
    assert [row[4] for row in rows(kind) if row[4] not in tests] == []


def test_a_new_reference_would_be_missed_by_no_rule() -> None:
    """Fields of each kind that the schema has: a name, an address, labels, an open object; and values that are none."""
    found = fields("FairInferenceService")
    assert {"engine.template.spec", "autoscaling.prometheus.url", "slo.alertLabels"} <= set(found)
    assert {"exposure.ingress.tls.secretName", "tenancy.trustedProxies[]"} <= set(found)
    assert {"router.limits.queueTimeout", "scheduling.isolation"}.isdisjoint(found)
