"""The operator and the routers may do what they need and no more: every other thing is tried, and refused."""

from __future__ import annotations

import pytest

from e2e.installed import OPERATOR, SYSTEM, Namespace, refused
from e2e.kubectl import Kubectl

pytestmark = pytest.mark.core
POD = """
apiVersion: v1
kind: Pod
metadata: {name: intruder}
spec: {containers: [{name: c, image: none}]}
"""
GRANT = """
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: intruder}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: default}]
"""


@pytest.fixture(scope="module")
def running(team: Namespace) -> Namespace:
    team.tenant("any", "sk-any")  # so that nothing is refused for not being there
    team.serve("one", replicas=1)
    return team


OPERATOR_MUST_NOT = {
    "run pods itself": ("apply", "-f", "-"),
    "enter a pod": ("exec", "POD", "--", "true"),
    "delete a pod": ("delete", "pod", "POD"),
    "give away rights that it has not": ("create", "-f", "GRANT"),
    "change a service's spec": (
        "patch",
        "fis",
        "one",
        "--type=merge",
        "-p",
        '{"spec": {"slo": {}}}',
    ),
    "make a service": ("create", "-f", "FIS"),
    "delete a service": ("delete", "fis", "one"),
    "change a tenant": ("patch", "itn", "any", "--type=merge", "-p", '{"spec": {"weight": 9}}'),
    "touch nodes": ("label", "nodes", "--all", "intruder=1"),
    "change the API": ("delete", "crd", "fairinferenceservices.evenkeel.dev"),
    "make namespaces": ("create", "namespace", "intruder"),
    "delete namespaces": ("delete", "namespace", "default"),
    "make roles for the cluster": ("create", "clusterrole", "x", "--verb=get", "--resource=pods"),
    "read other groups' objects": ("get", "cronjobs"),
    "take another Lease": ("-n", "kube-system", "get", "leases"),
    "act as another ServiceAccount": ("create", "token", "one-router"),
}


@pytest.mark.parametrize("what", OPERATOR_MUST_NOT)
def test_the_operator_must_not(what: str, running: Namespace, kubectl: Kubectl) -> None:
    (pod,) = running.pods("one", "engine")
    texts = {"GRANT": GRANT, "FIS": "apiVersion: evenkeel.dev/v1alpha1\nkind: FairInferenceService\nmetadata: {name: x}\nspec: {model: {source: hf://a/b}}\n"}  # fmt: skip
    words = [pod if word == "POD" else word for word in OPERATOR_MUST_NOT[what]]
    stdin = next((texts[word] for word in words if word in texts), POD)
    words = ["-" if word in texts else word for word in words]
    place = () if "-n" in words else ("-n", running.name)
    # `true` and a dry run: had it been allowed, no harm would be done.
    assert refused(kubectl, f"--as={OPERATOR}", *place, *words, stdin=stdin), what


def test_the_operator_may_read_what_it_serves(running: Namespace, kubectl: Kubectl) -> None:
    for kind in ("fis", "itn", "secrets", "deployments", "pods", "endpointslices"):
        kubectl(f"--as={OPERATOR}", "-n", running.name, "get", kind)
    kubectl(f"--as={OPERATOR}", "get", "nodes")  # to see one that is being drained
    kubectl(f"--as={OPERATOR}", "-n", SYSTEM, "get", "lease", "evenkeel")


ROUTER_MAY = {
    "its own Secret": ("get", "secrets", "--field-selector=metadata.name=one-router"),
    "pods": ("get", "pods"),
    "endpoints": ("get", "endpointslices"),
}
ROUTER_MUST_NOT = {
    "read all Secrets": ("get", "secrets"),
    "read the engines' key": ("get", "secret", "one-credentials"),
    "write its own Secret": ("delete", "secret", "one-router"),
    "read configuration": ("get", "configmaps"),
    "read services": ("get", "fis"),
    "read tenants": ("get", "itn"),
    "delete pods": ("delete", "pods", "--all"),
    "say who leaves": ("annotate", "pod", "POD", "evenkeel.dev/drain=x", "--dry-run=server"),
    "say who is ready": (
        "patch", "pod", "POD", "--subresource=status", "--dry-run=server",
        '-p={"status": {"conditions": [{"type": "evenkeel.dev/InRotation", "status": "True"}]}}',
    ),
    "enter pods": ("exec", "POD", "--", "true"),
    "scale": ("scale", "deployment/one-engine", "--replicas=0"),
    "look elsewhere": ("-n", "kube-system", "get", "pods"),
}  # fmt: skip


@pytest.mark.parametrize("what", ROUTER_MUST_NOT)
def test_a_router_must_not(what: str, running: Namespace, kubectl: Kubectl) -> None:
    (pod,) = running.pods("one", "engine")
    words = [pod if word == "POD" else word for word in ROUTER_MUST_NOT[what]]
    place = () if "-n" in words else ("-n", running.name)
    assert refused(kubectl, f"--as={_router(running)}", *place, *words), what


@pytest.mark.parametrize("what", ROUTER_MAY)
def test_a_router_may_read(what: str, running: Namespace, kubectl: Kubectl) -> None:
    kubectl(f"--as={_router(running)}", "-n", running.name, *ROUTER_MAY[what])


def test_an_engine_has_no_token_at_all(running: Namespace) -> None:
    (pod,) = running.pods("one", "engine")
    code = "import os; print(os.path.exists('/var/run/secrets/kubernetes.io'))"
    assert running.python(pod, code) == "False"


def _router(team: Namespace) -> str:
    return f"system:serviceaccount:{team.name}:one-router"
