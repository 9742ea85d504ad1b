"""The policy about reserved fields names fields that exist, with the value that a service without them has."""

from __future__ import annotations

import json
from typing import Any

from evenkeel_contract.decode import to_plain
from evenkeel_contract.validate import parse_service

from tests.support.crd_documents import SERVICE
from tests.support.helm import only, rendered

MESSAGE = " is reserved for administrators; others may not change it, and new ones have "


def default_of(path: str) -> Any:
    service, faults = parse_service({**SERVICE, "spec": {"model": {"source": "hf://a/b"}}})
    assert service is not None, faults
    found = to_plain(service.spec)
    for name in path.split("."):
        # The namespace of tenants and the other cells have no default.
        found = found.get(name, {} if name == "federation" else "")
    return found


def test_reserved_fields_exist_and_others_may_use_their_defaults() -> None:
    objects = rendered(reservedFields={"enabled": True})
    policy = only(objects, "ValidatingAdmissionPolicy")
    for one in policy["spec"]["validations"]:
        path, _, value = one["message"].removeprefix("spec.").partition(MESSAGE)
        field = f"?spec.?{path.replace('.', '.?')}.orValue({value})"
        assert one["expression"] == f"object.{field} == (oldObject == null ? {value} : oldObject.{field})"  # fmt: skip
        assert json.loads(value) == default_of(path)
    assert len(policy["spec"]["validations"]) == 9
    binding = only(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_a_team_of_administrators_and_fields_of_its_own() -> None:
    fields = {"router.replicas": 2, "tenancy.anonymous": None}
    given = {"enabled": True, "administrators": ["sre"], "fields": fields}
    policy = only(rendered(reservedFields=given), "ValidatingAdmissionPolicy")["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"].endswith('exists(group, group in ["sre"])')
    messages = [one["message"] for one in policy["validations"]]
    assert f"spec.router.replicas{MESSAGE}2" in messages
    assert not any("anonymous" in message for message in messages)


def test_without_reserved_fields_there_is_no_policy() -> None:
    assert not any("Admission" in one["kind"] for one in rendered())
