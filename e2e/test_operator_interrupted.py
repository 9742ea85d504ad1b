"""The operator, killed after any write, and with refused writes: it reaches the desired state.

It runs beside the cluster (`e2e/operators.py`), with the rights that the chart gives it. The images of its pods are
not there: nothing here waits for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from e2e.kubectl import Kubectl, KubectlError
from e2e.operators import (
    USER,
    Operator,
    at_rest,
    audit_position,
    await_made,
    condition,
    is_made,
    made,
    operator,
    sample,
    wait_until,
    writes_since,
)
from e2e.rig.layout import AUDIT_LOG

pytestmark = pytest.mark.alone


@pytest.mark.timeout(600)  # two dozen operators, one after another
def test_the_next_pass_completes_a_pass_that_was_killed_after_any_write(
    kubectl: Kubectl, namespace: str, kubeconfig: Path
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    lives = 0
    while not is_made(kubectl, namespace):
        lives += 1
        accepted = "ConfigMap/simulated-accepted" in made(kubectl, namespace)
        name = f"life-{lives}"
        # Dry runs are writes too, and are repeated until the spec is accepted; later writes come one by one.
        steps = 1 if accepted else lives
        with operator(kubeconfig, identity=name, lease=name, dies_after=steps) as dying:
            assert dying.process.wait(timeout=30) == 9
    assert lives > 17
    with operator(kubeconfig, identity="last", lease="last"):
        await_made(kubectl, namespace)
        at_rest()


def test_a_scale_down_cut_off_after_any_write_ends_with_those_two_gone(
    kubectl: Kubectl, namespace: str, kubeconfig: Path
) -> None:
    def engines() -> dict[str, str]:
        """Pods that are not being deleted → their mark."""
        labels = "evenkeel.dev/service=simulated,evenkeel.dev/component=engine"
        return {
            item["metadata"]["name"]: item["metadata"]
            .get("annotations", {})
            .get("evenkeel.dev/drain", "")
            for item in kubectl.get("-n", namespace, "pods", "-l", labels)["items"]
            if "deletionTimestamp" not in item["metadata"]
        }

    plain = yaml.safe_load(sample())
    plain["spec"]["engine"]["replicas"] = 4
    kubectl("-n", namespace, "apply", "-f", "-", stdin=yaml.safe_dump(plain))
    with operator(kubeconfig, identity="builder", lease="builder") as builder:
        wait_until(lambda: len(engines()) == 4, "four engines")
        at_rest()
        assert builder.stop() == 0
    kubectl("-n", namespace, "scale", "fis/simulated", "--replicas=2")
    lives, chosen = 0, set[str]()

    def is_accepted() -> bool:
        data = kubectl.get("-n", namespace, "cm", "simulated-accepted")["data"]
        return bool(json.loads(data["spec.json"])["engine"]["replicas"] == 2)

    def asked_for() -> int:
        return int(kubectl.get("-n", namespace, "deploy", "simulated-engine")["spec"]["replicas"])

    while asked_for() == 4:
        lives += 1
        name = f"shrinking-{lives}"
        # Until then each operator repeats the dry run of the new spec, and dry runs are writes too.
        steps = 1 if is_accepted() else lives
        with operator(kubeconfig, identity=name, lease=name, dies_after=steps) as dying:
            assert dying.process.wait(timeout=60) == 9
        now = {engine for engine, mark in engines().items() if mark}
        assert chosen <= now or asked_for() < 4  # a candidate stays a candidate
        chosen |= now
    with operator(kubeconfig, identity="closing", lease="closing"):
        wait_until(lambda: len(engines()) == 2, "two engines")
        at_rest()
    assert lives > 2
    assert len(chosen) == 2
    assert set(engines().values()) == {""}
    assert chosen.isdisjoint(engines())


NOT_BY_THE_OPERATOR = f"""
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: no-rollouts}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments]}}
  matchConditions:
    - {{name: operator, expression: "request.userInfo.username == '{USER}'"}}
  validations:
    - {{expression: "false", message: no rollouts today}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: no-rollouts}}
spec: {{policyName: no-rollouts, validationActions: [Deny]}}
"""


@pytest.mark.skipif(not AUDIT_LOG.exists(), reason="needs the rig's audit log")
def test_what_the_cluster_refuses_is_said_and_not_tried_with_every_event(
    kubectl: Kubectl, namespace: str, one: Operator
) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
    await_made(kubectl, namespace)
    engine = ("-n", namespace, "deploy/simulated-engine")

    def is_refused() -> bool:
        try:
            kubectl(f"--as={USER}", "annotate", *engine, "x=y", "--dry-run=server", "--overwrite")
        except KubectlError as error:
            return "no rollouts today" in str(error)
        return False

    kubectl("apply", "-f", "-", stdin=NOT_BY_THE_OPERATOR)
    try:
        wait_until(is_refused, "the policy")
        position = audit_position()
        kubectl("scale", *engine, "--replicas=9")
        wait_until(
            lambda: condition(kubectl, namespace, "Degraded").get("reason") == "Refused",
            "the refusal in the status",
        )
        assert "no rollouts today" in condition(kubectl, namespace, "Degraded")["message"]
        for n in range(30):  # each of them leads to a pass
            kubectl("annotate", *engine, f"example.com/n={n}", "--overwrite")
        tried = [what for what in writes_since(position) if "simulated-engine" in what]
        assert 1 <= len([what for what in tried if "deployments" in what]) <= 5
    finally:
        kubectl("delete", "-f", "-", stdin=NOT_BY_THE_OPERATOR)
    wait_until(
        lambda: kubectl.get(*engine[:2], "deploy", "simulated-engine")["spec"]["replicas"] == 2,
        "the next attempt",
    )
