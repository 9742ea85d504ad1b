"""APIs that a cluster may lack, on a real API server: the Prometheus operator's and the Gateway API's.

Their definitions come out of their Go modules; no controller of theirs runs (`optionalapis.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kubectl import Kubectl
from e2e.operators import at_rest, condition, operator, sample, wait_until
from e2e.optionalapis import are_there, optional_apis
from e2e.rig.definitions import FILES, definitions
from e2e.rig.errors import NotHereError
from tests.support.helm import rendered
from tests.support.promtool import promtool

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

NAMESPACE = "optional-apis"
MINE = {
    "podmonitor/simulated-engine",
    "podmonitor/simulated-router",
    "prometheusrule/simulated-alerts",
    "httproute/simulated-router",
}
FOUND_WITHIN_S = 75.0
"""The operator looks once a minute, and then makes a pass."""


@pytest.fixture(scope="module")
def files(kubectl: Kubectl) -> dict[str, Path]:
    """The definitions; skips if they are unavailable, or belong to another owner."""
    if are_there(kubectl):
        pytest.skip("the cluster has these APIs already, and their absence is a part of this")
    try:
        return definitions()
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.fixture
def place(kubectl: Kubectl) -> Iterator[str]:
    kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    kubectl("delete", "namespace", NAMESPACE)


def service() -> str:
    route = {"parentRefs": [{"name": "gw"}], "hostnames": ["llm.example.com"]}
    slo = {"ttft": {"threshold": "2s"}, "alertLabels": {"team": "ml"}}
    return sample(exposure={"httpRoute": route}, slo=slo)


def degraded(kubectl: Kubectl) -> dict[str, Any]:
    found: dict[str, Any] = condition(kubectl, NAMESPACE, "Degraded")
    return found


def made(kubectl: Kubectl) -> set[str]:
    kinds = ",".join(name.partition(".")[0] for name in FILES)
    names = kubectl("-n", NAMESPACE, "get", kinds, "-o", "name").split()
    return {f"{name.partition('.')[0]}/{name.partition('/')[2]}" for name in names}


def spec_of(kubectl: Kubectl, what: str) -> Any:
    return kubectl.get("-n", NAMESPACE, what)["spec"]


def patched(kubectl: Kubectl, what: str, *operations: dict[str, Any]) -> None:
    kubectl("-n", NAMESPACE, "patch", what, "--type=json", f"-p={json.dumps(operations)}")


def test_an_absent_api_is_a_reason_and_its_objects_follow_once_it_exists(
    kubectl: Kubectl, kubeconfig: Path, files: dict[str, Path], place: str
) -> None:
    with operator(kubeconfig, identity="one") as one:
        kubectl("-n", place, "apply", "-f", "-", stdin=service())
        wait_until(lambda: degraded(kubectl).get("reason") == "ApiMissing", "the reason")
        said = degraded(kubectl)["message"]
        assert "spec.exposure.httpRoute" in said
        assert "spec.slo" in said
        kubectl("-n", place, "get", "deploy/simulated-engine", "deploy/simulated-router")
        with optional_apis(kubectl, files):
            wait_until(lambda: made(kubectl) == MINE, "their objects", timeout_s=FOUND_WITHIN_S)
            wait_until(lambda: degraded(kubectl).get("reason") != "ApiMissing", "no complaint")
            # It came while the operator ran, and is watched from then on.
            patched(
                kubectl,
                "prometheusrule/simulated-alerts",
                {"op": "replace", "path": "/spec/groups/0/rules/0/for", "value": "9h"},
            )
            wait_until(
                lambda: "9h" not in json.dumps(spec_of(kubectl, "prometheusrule/simulated-alerts")),
                "the alert to be put back",
            )
        wait_until(
            lambda: degraded(kubectl).get("reason") == "ApiMissing",
            "the reason, once more",
            timeout_s=FOUND_WITHIN_S,
        )
        assert one.stop() == 0


FOREIGN = {
    "an alert that waits for longer": (
        "prometheusrule/simulated-alerts",
        {"op": "replace", "path": "/spec/groups/0/rules/0/for", "value": "9h"},
    ),
    "no alerts": ("prometheusrule/simulated-alerts", {"op": "remove", "path": "/spec/groups"}),
    "another port": (
        "podmonitor/simulated-router",
        {"op": "replace", "path": "/spec/podMetricsEndpoints/0/port", "value": "http"},
    ),
    "a timeout": (
        "httproute/simulated-router",
        {"op": "replace", "path": "/spec/rules/0/timeouts/request", "value": "1s"},
    ),
}


@pytest.mark.core
def test_objects_of_optional_apis_are_accepted_restored_and_deleted(
    kubectl: Kubectl, kubeconfig: Path, files: dict[str, Path], place: str, tmp_path: Path
) -> None:
    with optional_apis(kubectl, files), operator(kubeconfig, identity="two") as two:
        kubectl("-n", place, "apply", "-f", "-", stdin=service())
        wait_until(lambda: made(kubectl) == MINE, "their objects")
        before = {what: spec_of(kubectl, what) for what in MINE}
        # As the API server gives them back, not as they were sent.
        (tmp_path / "rules.yaml").write_text(
            yaml.safe_dump(before["prometheusrule/simulated-alerts"])
        )
        assert promtool("check", "rules", tmp_path / "rules.yaml")[0] == 0
        at_rest()
        for what, (where, operation) in FOREIGN.items():
            patched(kubectl, where, operation)
            wait_until(
                lambda: {one: spec_of(kubectl, one) for one in MINE} == before, f"{what}: put back"
            )
        for what in sorted(MINE):
            kubectl("-n", place, "delete", what)
            wait_until(lambda: made(kubectl) == MINE, f"{what} to be there again")
        assert {what: spec_of(kubectl, what) for what in MINE} == before
        at_rest()
        kubectl("-n", place, "delete", "fis", "simulated")
        wait_until(lambda: not made(kubectl), "them to go with the service")
        assert two.stop() == 0


@pytest.mark.core
def test_what_the_chart_makes_of_them_is_accepted(kubectl: Kubectl, files: dict[str, Path]) -> None:
    metrics = {"enabled": True}
    objects = rendered(
        crds={"enabled": False},
        metrics={"podMonitor": metrics, "prometheusRule": metrics, "dashboards": metrics},
    )
    wanted = [
        {**one, "metadata": {**one["metadata"], "namespace": "default"}}
        for one in objects
        if one["kind"] in ("PodMonitor", "PrometheusRule", "ConfigMap")
    ]
    assert len(wanted) == 5
    with optional_apis(kubectl, files):
        text = yaml.safe_dump_all(wanted)
        said = kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=text)
    assert said.count("serverside-applied") == 5
