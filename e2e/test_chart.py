"""The chart on a real API server: every object is valid, an upgrade restarts nothing, uninstalling keeps services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from evenkeel_contract.names import RULES_LABEL

from e2e.installed import (
    ASLEEP,
    DEFINITIONS,
    ROOT,
    SYSTEM,
    Namespace,
    Stream,
    helm,
    install,
    installed,
    registry,
    service,
)
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from tests.golden.test_golden_chart import VALUES
from tests.support.helm import rendered
from tests.support.promtool import promtool

pytestmark = [pytest.mark.core, pytest.mark.alone]
OPTIONAL = "monitoring.coreos.com/"  # not on every cluster


@pytest.fixture(scope="module")
def evenkeel(kubectl: Kubectl) -> Iterator[None]:
    """A chart of its own, which these tests change."""
    with installed(kubectl):
        yield


@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_what_the_server_understands(name: str, kubectl: Kubectl) -> None:
    """Server-side dry run, strictly: an unknown field is an error. What must be there first is what is there."""
    objects = [one for one in rendered(**VALUES[name]) if OPTIONAL not in one["apiVersion"]]
    for one in objects:
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = "default"
        if one["kind"] == "Pod":
            one["spec"]["serviceAccountName"] = "default"
    kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts",
            "-f", "-", stdin=yaml.safe_dump_all(objects))  # fmt: skip


def test_an_upgrade_brings_the_api_along_and_restarts_no_pod_of_a_service(
    team: Namespace, kubectl: Kubectl, tmp_path: Path
) -> None:
    team.serve("steady")
    before = {**team.pods("steady", "engine"), **team.pods("steady", "router")}
    kubectl(
        "label", "crd", DEFINITIONS[0], "app.kubernetes.io/part-of=something-else", "--overwrite"
    )
    helm(kubectl, "--namespace", SYSTEM, "upgrade", "evenkeel", str(ROOT / "charts/evenkeel"),
         f"--set=images.registry={registry()}", "--set=workers=2", "--set=replicas=1",
         "--set=metrics.plain.enabled=true", "--set=allowPrometheus={*}", "--wait", "--timeout=120s")  # fmt: skip
    labels = kubectl.get("crd", DEFINITIONS[0])["metadata"]["labels"]
    assert labels["app.kubernetes.io/part-of"] == "evenkeel"
    team("annotate", "fis", "steady", "seen-by=the-new-operator")
    team.ready("steady")
    wait_until(lambda: team("get", "cm", "-l", f"{RULES_LABEL}=true", "-o", "name"), "plain rules")
    ours = kubectl.get("-n", SYSTEM, "cm", "evenkeel-prometheus")["data"]
    for text in (*team.get("cm", "steady-alerts")["data"].values(), ours["rules.yaml"]):
        (tmp_path / "rules.yaml").write_text(text)
        code, said = promtool("check", "rules", tmp_path / "rules.yaml")
        assert code == 0, said
    after = {**team.pods("steady", "engine"), **team.pods("steady", "router")}
    assert {name: pod["metadata"]["uid"] for name, pod in before.items()} == {
        name: pod["metadata"]["uid"] for name, pod in after.items()
    }


def test_uninstalling_leaves_services_that_the_next_installation_takes_over(
    team: Namespace, kubectl: Kubectl
) -> None:
    team.tenant("ads", "sk-ads")
    team.answers("steady", "sk-ads", 200)
    asleep = service("asleep", host=team.host("asleep"), replicas=None, autoscaling=ASLEEP)
    team.apply(asleep)
    team.ready("asleep")
    team.reached("asleep", "sk-ads")
    engines = set(team.pods("steady", "engine"))
    helm(kubectl, "--namespace", SYSTEM, "uninstall", "evenkeel", "--wait")
    assert team.status("steady", "sk-ads") == 200
    install(kubectl)
    team("scale", "fis/steady", "--replicas=2")
    team.ready("steady", replicas=2)
    assert engines < set(team.pods("steady", "engine"))
    with team.client("asleep", "sk-ads") as client:  # it has no replica until a request comes
        client.timeout = httpx.Timeout(240)
        stream = Stream(client, tokens=32)
        stream.start()
        stream.finish()
