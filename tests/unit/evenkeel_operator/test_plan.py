"""What differs, and what is written because of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from evenkeel_operator.core.objects import Object, Plan, Ref, differences, make_plan, ref_of, seal

# wanted, found, the paths that differ
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "equal": ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, []),
    "others' fields are not ours": ({"a": 1}, {"a": 1, "b": 2}, []),
    "a value": ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"]),
    "a field that went": ({"a": {"b": False}}, {"a": {}}, ["a.b"]),
    "what a server leaves out when it is empty": ({"a": {}, "b": [], "c": None, "d": ""}, {}, []),
    "a list without keys, longer": ({"args": ["a"]}, {"args": ["a", "b"]}, ["args"]),
    "a list without keys, another entry": ({"args": ["a"]}, {"args": ["b"]}, ["args[0]"]),
    "containers are told apart by name": (
        {"containers": [{"name": "a", "image": "1"}]},
        {"containers": [{"name": "side"}, {"name": "a", "image": "1", "tty": True}]},
        [],
    ),
    "a container that went": (
        {"containers": [{"name": "a"}]},
        {"containers": [{"name": "b"}]},
        ["containers[a]"],
    ),
    "ports of a Service": (
        {"ports": [{"port": 80, "targetPort": "http"}]},
        {"ports": [{"port": 80, "targetPort": 8080, "nodePort": 3}]},
        ["ports[80].targetPort"],
    ),
    "quantities by value": (
        {"resources": {"requests": {"cpu": "1000m", "nvidia.com/gpu": "1"}}},
        {"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": 1}}},
        [],
    ),
    "another quantity": (
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"resources": {"limits": {"memory": "1G"}}},
        ["resources.limits.memory"],
    ),
    "no quantity, though it looks like one": ({"value": "1000m"}, {"value": "1"}, ["value"]),
    "a mapping that is none": ({"a": {"b": 1}}, {"a": [1]}, ["a"]),
    "a list that is none": ({"a": [1]}, {"a": {"b": 1}}, ["a"]),
}


@pytest.mark.parametrize(("wanted", "found", "paths"), CASES.values(), ids=CASES)
def test_differences(wanted: Any, found: Any, paths: list[str]) -> None:
    assert [item.path for item in differences(wanted, found)] == paths


def test_a_difference_in_a_secret_shows_nothing_of_it() -> None:
    (found,) = differences({"data": {"key": "c2VjcmV0"}}, {"data": {"key": "b3RoZXI="}})
    assert str(found) == "data.key: … is not …"


def manifest(name: str = "a", **spec: Any) -> dict[str, Any]:
    owner = {"uid": "u", "controller": True, "kind": "FairInferenceService", "name": "s"}
    metadata = {"name": name, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def live(*manifests: dict[str, Any]) -> dict[Ref, Object]:
    return {ref_of(item): copy.deepcopy(seal(item)) for item in manifests}


def test_what_is_as_wanted_is_no_plan() -> None:
    found = make_plan([manifest(x=1)], live(manifest(x=1)), owner_uid="u")
    assert found == Plan()


def test_what_is_absent_is_applied_in_order() -> None:
    found = make_plan([manifest("b"), manifest("a")], {}, owner_uid="u")
    assert [(c.ref.name, c.new) for c in found.apply] == [("b", True), ("a", True)]
    assert found.apply[0].why == "Service b: absent"


def test_a_field_that_is_wanted_no_more_is_seen_by_the_digest_alone() -> None:
    (change,) = make_plan([manifest(x=1)], live(manifest(x=1, y=2)), owner_uid="u").apply
    assert change.foreign == ()
    assert change.why == "Service a: is wanted otherwise now"


def test_a_foreign_change_is_distinguished_from_an_own_change() -> None:
    there = live(manifest(x=1, y=1, z=1, w=1, v=1))
    spec: Any = there[Ref("Service", "a")]["spec"]
    spec.update(x=2, y=2, z=2, w=2)
    (change,) = make_plan([manifest(x=1, y=1, z=1, w=1, v=1)], there, owner_uid="u").apply
    assert len(change.foreign) == 4
    assert change.why == (
        "Service a: spec.x: 2 is not 1; spec.y: 2 is not 1; spec.z: 2 is not 1 and 1 more"
    )


def test_what_is_superfluous_goes_unless_it_is_not_ours_or_on_its_way() -> None:
    theirs, leaving = manifest("theirs"), manifest("leaving")
    theirs["metadata"]["ownerReferences"] = []
    leaving["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    found = make_plan([], live(manifest("old"), theirs, leaving), owner_uid="u")
    assert [item["metadata"]["name"] for item in found.delete] == ["old"]


def test_the_server_s_own_spelling_is_not_applied_again_as_other_changes_are() -> None:
    wanted, ref = manifest(x="a"), Ref("Service", "a")
    answer = copy.deepcopy(seal(wanted))
    answer["spec"]["x"] = "A"
    residue = {ref: frozenset(differences(seal(wanted), answer))}
    assert make_plan([wanted], {ref: answer}, owner_uid="u", residue=residue) == Plan()
    answer["spec"]["x"] = "B"
    assert make_plan([wanted], {ref: answer}, owner_uid="u", residue=residue) != Plan()
    assert make_plan([manifest(x="c")], {ref: answer}, owner_uid="u", residue=residue) != Plan()
