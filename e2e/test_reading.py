"""What tests read over one connection is what `kubectl get` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.installed import namespace
from e2e.kubectl import Kubectl, KubectlError
from e2e.reading import NotReadable, reader

pytestmark = pytest.mark.core
DNS = ("-n", "kube-system")


def stable(plain: Any) -> Any:
    """Without what changes from one look to the next."""
    if isinstance(plain, list):
        return [stable(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    plain = {name: stable(one) for name, one in plain.items() if name != "resourceVersion"}
    return {name: one for name, one in plain.items() if one or name != "metadata"}


@pytest.mark.parametrize(
    "arguments",
    [
        (*DNS, "deploy", "coredns"),
        (*DNS, "deploy/coredns"),
        (*DNS, "deploy,svc,cm,pdb,netpol,ingress"),
        (*DNS, "pods,rs", "-l", "app=coredns"),
        (*DNS, "pods", "--field-selector", "status.phase=Running"),
        ("ds", "-A"),
        ("priorityclasses",),
        ("namespace", "kube-system"),
    ],
    ids=" ".join,
)
def test_it_reads_what_kubectl_prints(kubectl: Kubectl, arguments: tuple[str, ...]) -> None:
    try:
        plain = reader(kubectl.kubeconfig).get(arguments)
    except NotReadable:
        pytest.skip("this cluster's kubeconfig is left to kubectl")
    assert stable(plain) == stable(json.loads(kubectl("get", *arguments, "-o", "json")))


def test_what_is_not_there_is_an_error_of_kubectl(kubectl: Kubectl) -> None:
    with pytest.raises(KubectlError, match='NotFound.*deployments.apps "none" not found'):
        kubectl.get(*DNS, "deploy", "none")
    with pytest.raises(KubectlError, match="the server doesn't have a resource type"):
        kubectl.get(*DNS, "nonsense")


def test_a_namespace_that_is_going_is_waited_for(kubectl: Kubectl) -> None:
    """Else two runs after one another fail by the speed of the cluster."""
    with namespace(kubectl, "going") as first:
        old = kubectl.get("namespace", first.name)["metadata"]["uid"]
    with namespace(kubectl, "going") as second:
        assert kubectl.get("namespace", second.name)["metadata"]["uid"] != old
        with pytest.raises(KubectlError, match="AlreadyExists"), namespace(kubectl, "going"):
            pass
