"""The CustomResourceDefinitions: true to the contract, structural, described, and agreed with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenkeel_contract.crd import definitions
from evenkeel_contract.crd.rules import IN_THE_SCHEMA, ITEM_RULES, LEFT_TO_SPEC_VALID, OBJECT_RULES
from evenkeel_contract.decode import decode, to_plain
from evenkeel_contract.gateway import GATEWAY_RULES
from evenkeel_contract.spec.gateway import GatewayCondition
from evenkeel_contract.spec.resources import (
    Condition,
    ConditionStatus,
    ServiceCondition,
    ServiceStatus,
    TenantCondition,
)
from evenkeel_contract.validate import SERVICE_RULES, TENANT_RULES, parse_service, parse_tenant

from crds.generate import FOLDERS, files
from tests.support.crd_boundaries import Boundary, boundaries
from tests.support.crd_cases import RULES, Pair
from tests.support.crd_documents import (
    DOCUMENTS,
    SERVICE,
    TENANT,
    changed,
    faults_of,
)

CRDS = Path(__file__).parents[3] / "crds"
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    definition["spec"]["names"]["kind"]: definition["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    for definition in definitions().values()
}


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node of a schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}".removeprefix("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = [(kind, path, node) for kind, schema in SCHEMAS.items() for path, node in nodes(schema)]


def test_the_files_are_what_the_contract_says_now() -> None:
    for folder in FOLDERS:
        found = {path.name: path.read_text() for path in folder.glob("*.yaml")}
        assert found == files(), "make crds"


def test_the_files_are_yaml_of_the_definitions() -> None:
    read = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    assert {crd["metadata"]["name"]: crd for crd in read} == definitions()


def test_every_field_is_described_in_sentences() -> None:
    standard = {"metadata", "metadata.name"}
    mute = [
        (kind, path)
        for kind, path, node in NODES
        if path not in standard
        and not path.endswith(("[]", "{}"))
        and not (node.get("description", "").endswith((".", ";")) and len(node["description"]) > 8)
    ]
    assert mute == []


def test_schemas_are_structural_and_hold_no_floats() -> None:
    types = {"object", "array", "string", "integer", "boolean"}
    odd = [
        (kind, path)
        for kind, path, node in NODES
        if node.get("type") not in types and not node.get("x-kubernetes-int-or-string")
    ]
    assert odd == []


def test_only_the_pod_templates_take_anything() -> None:
    want = {
        f"spec.{part}.template.{half}"
        for part in ("engine", "router")
        for half in ("metadata", "spec")
    }
    found = {p for _, p, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")}
    assert found == want


def test_lists_are_bounded_and_keys_of_list_maps_are_required() -> None:
    for _, path, node in NODES:
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert set(node.get("x-kubernetes-list-map-keys", ())) <= set(
                node["items"].get("required", ())
            ), path


def defaulted(value: Any, schema: Mapping[str, Any]) -> Any:
    """As the API server fills in defaults."""
    if isinstance(value, list):
        return [defaulted(entry, schema["items"]) for entry in value]
    if not isinstance(value, dict):
        return value
    parts = schema.get("properties", {})
    filled = {n: deepcopy(p["default"]) for n, p in parts.items() if "default" in p} | value
    return {name: defaulted(entry, parts.get(name, {})) for name, entry in filled.items()}


def test_defaults_of_the_schema_are_those_of_the_contract() -> None:
    service = {
        **{key: SERVICE[key] for key in ("apiVersion", "kind", "metadata")},
        "spec": {"model": {"source": "hf://a/b"}},
    }
    full = defaulted(service, SCHEMAS["FairInferenceService"])
    assert full["spec"]["router"]["state"] == {"store": "Peers"}
    assert full["spec"]["engine"].keys() == {"runtime", "gpu", "onMismatch", "rollout"}
    del full["status"]
    assert parse_service(full) == parse_service(service)
    tenant = {**TENANT, "spec": {}}
    full = defaulted(tenant, SCHEMAS["InferenceTenant"])
    assert full["spec"]["weight"] == 1
    del full["status"]
    assert parse_tenant(full) == parse_tenant(tenant)


def test_the_paths_of_the_scale_subresource_exist_and_have_no_default() -> None:
    service = definitions()["fairinferenceservices.evenkeel.dev"]["spec"]["versions"][0]
    replicas = SCHEMAS["FairInferenceService"]["properties"]["spec"]["properties"]["engine"][
        "properties"
    ]["replicas"]
    assert replicas["type"] == "integer"
    assert "default" not in replicas
    paths = {path for kind, path, _ in NODES if kind == "FairInferenceService"}
    assert {p.removeprefix(".") for p in service["subresources"]["scale"].values()} <= paths


def test_only_the_observed_generation_of_a_status_has_a_default() -> None:
    found = [(p, node["default"]) for _, p, node in NODES if p.startswith("status") and "default" in node]  # fmt: skip
    assert found == [("status", {"observedGeneration": 0})] * 3


@pytest.mark.parametrize(
    ("kind", "conditions"),
    [
        ("FairInferenceService", ServiceCondition),
        ("InferenceTenant", TenantCondition),
        ("FairInferenceGateway", GatewayCondition),
    ],
)
def test_conditions_are_described_by_their_names(kind: str, conditions: type[Enum]) -> None:
    node = SCHEMAS[kind]["properties"]["status"]["properties"]["conditions"]
    *names, last = (member.value for member in conditions)
    assert node["description"] == f"Conditions of types {', '.join(names)} and {last}."


def test_a_status_of_the_contract_is_one_of_the_schema() -> None:
    """What the operator encodes has the fields that the API server would keep."""
    ready = Condition(
        type=ServiceCondition.READY.value,
        status=ConditionStatus.TRUE,
        reason="AllReady",
        last_transition_time="2026-01-31T12:00:00Z",
    )
    plain = to_plain(ServiceStatus(replicas=2, conditions=(ready,)))
    parts = SCHEMAS["FairInferenceService"]["properties"]["status"]["properties"]
    assert plain.keys() <= parts.keys()
    assert plain["conditions"][0].keys() <= parts["conditions"]["items"]["properties"].keys()
    assert decode(ServiceStatus, plain) == (ServiceStatus(replicas=2, conditions=(ready,)), ())


def test_every_rule_of_the_contract_is_in_cel_or_says_why_not() -> None:
    mirrored = {
        rule.mirrors
        for rules in (*OBJECT_RULES.values(), *ITEM_RULES.values())
        for rule in rules
        if rule.mirrors != "transition"
    }
    ours = {rule.__name__ for rule in (*SERVICE_RULES, *TENANT_RULES, *GATEWAY_RULES)}
    assert ours == mirrored | LEFT_TO_SPEC_VALID.keys() | IN_THE_SCHEMA.keys()
    assert not mirrored & LEFT_TO_SPEC_VALID.keys()


def test_cel_converts_a_text_only_if_it_can() -> None:
    """A text that is no duration has the message of its pattern, and none about a failed conversion."""
    for _, path, node in NODES:
        for rule in node.get("x-kubernetes-validations", ()):
            text = rule["rule"]
            for found in re.finditer(r"(?:duration|quantity)\((?:string\()?(self[\w.]*)", text):
                guards = (f"!{found[1]}.matches('^", f"!isQuantity(string({found[1]})) ||")
                assert any(guard in text[: found.start()] for guard in guards), (path, text)


@pytest.mark.parametrize("name", ["1a", "0", "9-a"])
def test_a_service_has_a_name_that_services_may_have(name: str) -> None:
    (fault,) = faults_of(changed(SERVICE, {"metadata.name": name}))
    assert fault.path == "metadata.name"
    assert "must begin with a letter" in fault.message
    pattern = SCHEMAS["FairInferenceService"]["properties"]["metadata"]["properties"]["name"]
    assert re.search(pattern["pattern"], name) is None
    assert faults_of(changed(TENANT, {"metadata.name": name})) == ()


@pytest.mark.parametrize("part", ["ingress", "httpRoute"])
@pytest.mark.parametrize(("text", "good"), [("a b", True), ("a\tb", True), ("", True), ("a\nb", False), ("a\n", False), ("\x7f", False)])  # fmt: skip
def test_annotations_of_exposure_are_one_line(part: str, text: str, good: bool) -> None:
    given = {"annotations": {"example.com/x": text}}
    given |= {"host": "a.test"} if part == "ingress" else {"parentRefs": [{"name": "g"}]}
    found = faults_of(changed(SERVICE, {"spec.exposure": {part: given}}))
    where = f"spec.exposure.{part}.annotations['example.com/x']"
    assert [fault.path for fault in found] == ([] if good else [where])
    for kind in ("FairInferenceService", "FairInferenceGateway"):
        spec = SCHEMAS[kind]["properties"]["spec"]["properties"]
        annotations = spec["exposure"]["properties"][part]["properties"]["annotations"]
        pattern = annotations["additionalProperties"]["pattern"].removesuffix("$") + r"\Z"
        assert (re.search(pattern, text) is not None) == good


def test_every_cel_rule_has_a_message_and_blames_a_field_that_is_there() -> None:
    for _, path, node in NODES:
        for rule in node.get("x-kubernetes-validations", ()):
            assert len(rule["message"]) > 20, (path, rule)
            place = node
            for part in rule.get("fieldPath", "").split(".")[1:]:
                place = place["properties"][part]


@pytest.mark.parametrize("path", sorted((CRDS / "samples").glob("*.yaml")), ids=lambda p: p.name)
def test_samples_are_without_faults(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    assert [fault for document in documents for fault in faults_of(document)] == []


@pytest.mark.parametrize("pair", RULES.values(), ids=RULES.keys())
def test_the_contract_judges_the_table_as_the_api_server_does(pair: Pair) -> None:
    assert faults_of(changed(pair.base, pair.good)) == ()
    assert faults_of(changed(pair.base, pair.bad)) != ()


def all_boundaries() -> Iterator[Boundary]:
    for document in DOCUMENTS:
        yield from boundaries(document, SCHEMAS[document["kind"]])


def test_the_table_reaches_every_field_of_every_spec() -> None:
    reached = {boundary.path for boundary in all_boundaries()}
    want = {
        path.replace("[]", "[0]")
        for _, path, node in NODES
        if path.startswith("spec.") and "{}" not in path
    }
    assert want - reached == set()


def test_the_contract_refuses_what_is_outside_of_the_schema_with_its_path() -> None:
    missed = [
        (boundary.path, boundary.constraint)
        for boundary in all_boundaries()
        if not any(f.path.startswith(boundary.path) for f in faults_of(boundary.outside))
    ]
    assert missed == []


def test_a_rule_reads_a_field_that_may_be_absent_only_behind_has():
    """The API server refuses the definition, or every object without the field, where a rule finds no such key."""
    read = 0
    for kind, path, node in NODES:
        for rule in (one["rule"] for one in node.get("x-kubernetes-validations", ())):
            for chain in set(re.findall(r"\bself(?:\.\w+)+", rule)):
                part, so_far = node, "self"
                for name in chain.split(".")[1:]:
                    if name not in part.get("properties", {}):
                        break  # a function
                    so_far += f".{name}"
                    is_there = (
                        name in part.get("required", ()) or "default" in part["properties"][name]
                    )
                    assert is_there or f"has({so_far})" in rule, (kind, path, rule)
                    part, read = part["properties"][name], read + 1
    assert read > 50
