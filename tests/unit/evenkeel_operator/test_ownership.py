"""Who set which field of a generated object, by the record of the API server."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_operator.core.ownership import foreign_fields

OURS = "evenkeel-operator"
SPEC = {"f:spec": {"f:replicas": {}, "f:selector": {"f:app": {}}}}
CONTAINER = {
    "f:spec": {"f:containers": {'k:{"name":"engine"}': {".": {}, "f:image": {}, "f:tty": {}}}}
}


def item(*entries: tuple[str, dict[str, Any], str]) -> dict[str, Any]:
    record = [
        {"manager": name, "fieldsV1": fields, **({"subresource": sub} if sub else {})}
        for name, fields, sub in entries
    ]
    return {"kind": "Deployment", "metadata": {"name": "d", "managedFields": record}}


@pytest.mark.parametrize(
    ("entries", "want"),
    [
        ([], ()),
        ([(OURS, SPEC, "")], ()),
        ([("kubectl-edit", SPEC, "")], ("kubectl-edit: spec.replicas", "kubectl-edit: spec.selector.app")),
        ([(OURS, SPEC, ""), ("argocd", SPEC, "")], ()),
        ([("kubectl", CONTAINER, "")], ("kubectl: spec.containers[engine].image", "kubectl: spec.containers[engine].tty")),
        ([("kubectl", {"f:spec": {"f:finalizers": {'v:"x"': {}}}}, "")], ('kubectl: spec.finalizers["x"]',)),
        # Not a change of what the operator wants:
        ([("kube-controller-manager", SPEC, "")], ()),
        ([("hpa", SPEC, "scale")], ()),
        ([("kubectl", {"f:metadata": {"f:labels": {"f:team": {}}}, "f:status": {"f:x": {}}}, "")], ()),
        ([("kubectl-rollout", {"f:spec": {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}}}, "")], ()),
    ],
)  # fmt: skip
def test_fields_of_others(entries: list[tuple[str, Any, str]], want: tuple[str, ...]) -> None:
    assert foreign_fields(item(*entries), OURS) == want


def test_an_object_without_a_record_has_none() -> None:
    assert foreign_fields({"kind": "Deployment", "metadata": {"name": "d"}}, OURS) == ()
