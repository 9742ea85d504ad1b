"""The operator on a real API server: objects that it creates, restores and leaves unchanged.

One process runs beside the cluster (`e2e/operators.py`), with the rights that the chart gives it. Tests that need another
process are in `test_operator_processes.py`. The images of its pods are not there: nothing here waits for them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from evenkeel_contract.names import USE_LABEL

from e2e.kubectl import Kubectl, KubectlError
from e2e.operators import (
    KINDS,
    ROOT,
    Operator,
    at_rest,
    await_made,
    condition,
    made,
    sample,
    wait_until,
)
from tests.support.crd_documents import changed
from tests.support.fault_cases import FOUND_BY_THE_OPERATOR

pytestmark = pytest.mark.alone


def router_config(kubectl: Kubectl, namespace: str) -> Any:
    data = kubectl.get("-n", namespace, "secret", "simulated-router")["data"]["router.json"]
    return json.loads(b64decode(data))


@pytest.mark.core
def test_a_service_gets_its_objects_and_takes_them_along(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    wait_until(
        lambda: (
            condition(kubectl, namespace, "EnginesReady").get("reason") == "ImageCannotBePulled"
        ),
        "the reason why nothing is ready",
    )
    status = kubectl.get("-n", namespace, "fis", "simulated")["status"]
    assert status["selector"] == "evenkeel.dev/service=simulated,evenkeel.dev/component=engine"
    kubectl("-n", namespace, "delete", "fis", "simulated")
    wait_until(lambda: not made(kubectl, namespace), "everything to be gone")


@pytest.mark.core
def test_kubectl_scale_reaches_the_engines(kubectl: Kubectl, namespace: str, one: Operator) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    kubectl("-n", namespace, "scale", "fis/simulated", "--replicas=4")

    def engines() -> int:
        spec = kubectl.get("-n", namespace, "deploy", "simulated-engine")["spec"]
        return int(spec["replicas"])

    wait_until(lambda: engines() == 4, "four engines")
    kubectl("-n", namespace, "scale", "deploy/simulated-engine", "--replicas=9")
    wait_until(lambda: engines() == 4, "the foreign change to be put back")

    def reasons() -> str:
        return kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].reason}")

    wait_until(lambda: "Reverted" in reasons().split(), "an event of it")


FOREIGN = {
    "a deleted Service": ("delete", "svc", "simulated-engine"),
    "a deleted Secret": ("delete", "secret", "simulated-router"),
    "a deleted Role": ("delete", "role", "simulated-router"),
    "another label": ("label", "--overwrite", "deploy", "simulated-router", "evenkeel.dev/service=x"),
    "an open policy": (
        "patch", "netpol", "simulated-engine", "--type=json",
        '-p=[{"op": "remove", "path": "/spec/ingress/0/from"}]',
    ),
    "another image": ("set", "image", "deploy/simulated-router", "router=busybox"),
    "another configuration": (
        "patch", "secret", "simulated-router", '-p={"stringData": {"router.json": "{}"}}'
    ),
}  # fmt: skip


def test_foreign_changes_are_put_back(kubectl: Kubectl, namespace: str, one: Operator) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    at_rest()
    before = _contents(kubectl, namespace)
    for what, arguments in FOREIGN.items():
        kubectl("-n", namespace, *arguments)
        wait_until(lambda: _contents(kubectl, namespace) == before, f"{what} to be put back")


def test_a_field_that_another_hand_added_is_reported(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    kubectl("-n", namespace, "set", "env", "deploy/simulated-router", "DEBUG=1")

    def messages() -> str:
        fields = ("--field-selector", "reason=ForeignField", "-o", "jsonpath={.items[*].message}")
        return kubectl("-n", namespace, "get", "events", *fields)

    wait_until(lambda: "Deployment simulated-router: kubectl-set: " in messages(), "an event of it")
    assert "containers[router].env[DEBUG]" in messages()


@pytest.mark.core
def test_a_bad_update_leaves_the_running_fleet_untouched(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    before = _contents(kubectl, namespace)
    # What only the cluster can judge: a type, a value.
    for template in (
        {"spec": {"nodeSelector": {"gpu": 3}}},
        {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"cpu": "-1"}}}]}},
    ):
        patch = {"spec": {"engine": {"template": template}, "router": {"replicas": 5}}}
        kubectl(
            "-n", namespace, "patch", "fis", "simulated", "--type=merge", f"-p={json.dumps(patch)}"
        )
        wait_until(
            lambda: condition(kubectl, namespace, "SpecValid").get("status") == "False",
            "the fault",
        )
        assert "spec.engine" in condition(kubectl, namespace, "SpecValid")["message"]
        assert condition(kubectl, namespace, "Degraded")["reason"] == "OldSpecRuns"
        assert _contents(kubectl, namespace) == before
        patch = {"spec": {"engine": {"template": None}, "router": {"replicas": None}}}
        kubectl(
            "-n", namespace, "patch", "fis", "simulated", "--type=merge", f"-p={json.dumps(patch)}"
        )
        wait_until(
            lambda: condition(kubectl, namespace, "SpecValid").get("status") == "True", "the mend"
        )


@pytest.mark.core
def test_faults_that_only_the_operator_finds_are_reported_and_create_nothing(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    """Those that the API server finds are in `test_crds`."""
    for number, (document, path) in enumerate(FOUND_BY_THE_OPERATOR.values()):
        name, kind = f"faulty-{number}", document["kind"]
        plain = changed(document, {"metadata.name": name})
        kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(plain))

        def verdict(kind: str = kind, name: str = name) -> Any:
            status = kubectl.get("-n", namespace, kind, name).get("status", {})
            found = [c for c in status.get("conditions", ()) if c["type"] == "SpecValid"]
            return found[0] if found else None

        found = wait_until(verdict, f"a word about {path}")
        assert found["status"] == "False"
        assert path in found["message"]
        assert not made(kubectl, namespace, name)


@pytest.mark.core
def test_keys_of_tenants_reach_routers_and_leave_again(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    kubectl("-n", namespace, "apply", "-f", ROOT / "crds" / "samples" / "tenant.yaml")
    await_made(kubectl, namespace)

    def hashes() -> dict[str, str]:
        tenants = router_config(kubectl, namespace)["tenancy"]["tenants"]
        return {key["name"]: key["sha256"] for item in tenants for key in item.get("apiKeys", ())}

    keys = ("--from-literal=chat=sk-one-1", "--from-literal=batch=sk-two-2")
    kubectl("-n", namespace, "create", "secret", "generic", "ads-keys", *keys)
    kubectl("-n", namespace, "label", "secret", "ads-keys", f"{USE_LABEL}=true")
    before = wait_until(lambda: hashes() if len(hashes()) == 2 else None, "both keys")
    kubectl(
        "-n", namespace, "patch", "secret", "ads-keys", '-p={"stringData": {"chat": "sk-three-3"}}'
    )
    # The old key is revoked by a write of its own, before the new one comes.
    wait_until(lambda: hashes().get("chat-1") not in (None, before["chat-1"]), "the new key")
    kubectl("-n", namespace, "patch", "itn", "ads", "--type=merge", '-p={"spec": {"weight": 9}}')
    wait_until(
        lambda: router_config(kubectl, namespace)["tenancy"]["tenants"][0]["weight"] == 9,
        "the weight",
    )
    written = kubectl("-n", namespace, "get", "cm,fis,itn,deploy,events", "-o", "yaml")
    for place in (written, one.log.read_text(), json.dumps(router_config(kubectl, namespace))):
        assert not any(key in place for key in ("sk-one-1", "sk-two-2", "sk-three-3"))
    kubectl("-n", namespace, "delete", "itn", "ads")
    wait_until(lambda: not router_config(kubectl, namespace)["tenancy"]["tenants"], "no tenant")


@pytest.mark.core
def test_routers_and_engines_may_do_what_they_need_and_no_more(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)

    def may(component: str, *question: str) -> bool:
        user = f"--as=system:serviceaccount:{namespace}:simulated-{component}"
        try:
            return kubectl("-n", namespace, "auth", "can-i", user, *question).strip() == "yes"
        except KubectlError:  # the answer "no" is an exit code too
            return False

    for verb in ("get", "watch"):
        assert may("router", verb, "secret/simulated-router")
        assert may("router", verb, "endpointslices.discovery.k8s.io")
        assert may("router", verb, "pods")
        assert not may("router", verb, "secret/simulated-credentials")
        assert not may("router", verb, "secrets")
        assert not may("engine", verb, "secret/simulated-router")
        assert not may("engine", verb, "pods")
    for verb in ("create", "delete", "patch", "update"):
        assert not may("router", verb, "pods")
        assert not may("router", verb, "secret/simulated-router")
        assert not may("router", verb, "fairinferenceservices.evenkeel.dev")
    assert not may("router", "get", "pods", "--namespace=kube-system")


def _contents(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    """What the service's objects say, without what the server writes."""
    items = kubectl.get("-n", namespace, KINDS, "-l", "evenkeel.dev/service=simulated")["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": (
            _without(item.get("spec", {}), "clusterIP", "clusterIPs"),
            item.get("data") if item["kind"] != "ConfigMap" else None,
            item.get("rules"),
        )
        for item in items
    }


def _without(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in names}
