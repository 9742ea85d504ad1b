"""Clusters of other teams: without rights in the cluster, under the rules of OpenShift's restricted-v2, with definitions that kubectl applied.

The commands are those of the how-to pages, as printed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.installed import (
    DEFINITIONS,
    ROOT,
    SYSTEM,
    Namespace,
    forget,
    install,
    namespace,
    program,
    refused,
    registry,
    service,
)
from e2e.kubectl import Kubectl
from e2e.operators import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]
KEY = "sk-other-clusters"


def printed(page: str, heading: str) -> str:
    """The shell commands of a section of a how-to."""
    section = (ROOT / "docs/how-to" / page).read_text().split(f"\n## {heading}\n")[1]
    return "\n".join(re.findall(r"```sh\n(.*?)```", section.split("\n## ")[0], re.DOTALL))


def run(commands: str, kubeconfig: Path, folder: Path) -> None:
    """Run commands in a folder with the tree's `charts` and `crds`."""
    for name in ("charts", "crds"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    path = os.pathsep.join(str(Path(program(name)).parent) for name in ("kubectl", "helm"))
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def team_ml(kubectl: Kubectl) -> Iterator[Namespace]:
    """The namespace of the how-to, on a cluster without Evenkeel."""
    forget(kubectl)
    roles = ("clusterrole", "evenkeel-edit", "evenkeel-view", "--ignore-not-found")
    kubectl("delete", *roles)
    with namespace(kubectl, "team-ml") as found:
        yield found
    kubectl("delete", *roles)
    kubectl("delete", "crd", "--ignore-not-found", *DEFINITIONS)
    kubectl("wait", "--for=delete", "namespace/team-ml", "--timeout=300s")


def member(team: Namespace, folder: Path) -> Path:
    """The kubeconfig of a user with the built-in role `admin` in the namespace, and no right elsewhere."""
    team("create", "serviceaccount", "member")
    team("create", "rolebinding", "member", "--clusterrole=admin", f"--serviceaccount={team.name}:member")  # fmt: skip
    config = yaml.safe_load(team.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    config["users"][0]["user"] = {"token": team("create", "token", "member").strip()}
    path = folder / "member.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_team_installs_with_rights_in_its_namespace_alone(
    kubectl: Kubectl, team_ml: Namespace, tmp_path: Path
) -> None:
    page = "without-cluster-rights.md"
    text = (ROOT / "docs/how-to" / page).read_text()
    (values,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "namespaced.yaml").write_text(
        values.replace("registry.example.com/evenkeel", registry())
    )
    run(printed(page, "The administrator's step"), kubectl.kubeconfig, tmp_path)
    config = member(team_ml, tmp_path)
    user = Kubectl(kubectl.program, config)
    run(printed(page, "The team's step"), config, tmp_path)
    team = Namespace(user, team_ml.name)
    team_ml.tenant("ads", KEY)  # an administrator's
    team.serve("one", replicas=1)
    team.answers("one", KEY, 200)
    team("scale", "fis/one", "--replicas=2")
    team.ready("one", replicas=2)
    operator = f"--as=system:serviceaccount:{team.name}:evenkeel"
    for kind in ("nodes", "namespaces", "ingressclasses", "crd"):
        assert refused(kubectl, operator, "get", kind), kind
    assert refused(kubectl, operator, "-n", "default", "get", "secrets")
    assert refused(user, "get", "nodes")
    log = team("logs", "-l", "app.kubernetes.io/name=evenkeel-operator", "--tail=-1")
    assert "forbidden" not in log.lower()


@pytest.mark.parametrize("mode", [(), ("--server-side",)], ids=["by the client", "by the server"])
def test_definitions_that_kubectl_applied_first_are_taken_over(
    mode: tuple[str, ...], kubectl: Kubectl
) -> None:
    forget(kubectl)
    try:
        for name in DEFINITIONS:
            kubectl("apply", *mode, "-f", ROOT / f"crds/{name.partition('.')[0]}.yaml")
        with pytest.raises(AssertionError, match="invalid ownership metadata"):
            install(kubectl)
        install(kubectl, "--take-ownership")
        for name in DEFINITIONS:
            annotations = kubectl.get("crd", name)["metadata"]["annotations"]
            assert annotations["meta.helm.sh/release-name"] == "evenkeel"
    finally:
        forget(kubectl)


@pytest.fixture
def restricted(kubectl: Kubectl) -> Iterator[dict[str, str]]:
    """The rules of restricted-v2. The labels of namespaces to which they apply."""
    policies = ROOT / "e2e/restricted-v2.yaml"
    kubectl("apply", "-f", policies)
    labels = {"e2e.evenkeel.dev/scc": "restricted-v2"}
    try:
        with namespace(kubectl, "restricted-probe") as probe:
            _label(kubectl, probe.name, labels)
            wait_until(lambda: _assigned(probe) == (ASSIGNED, ASSIGNED), "the policies")
        yield labels
    finally:
        kubectl("delete", "-f", policies)


ASSIGNED = 1000650000
"""The first user of the namespace's range."""


def _label(kubectl: Kubectl, name: str, labels: dict[str, str]) -> None:
    kubectl("label", "namespace", name, *(f"{key}={value}" for key, value in labels.items()))


def _assigned(team: Namespace) -> tuple[int, int]:
    """The user and group that a pod without any gets."""
    container = {
        "name": "c",
        "image": "none",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}  # fmt: skip
    text = team("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
    context = json.loads(text)["spec"].get("securityContext", {})
    return context.get("runAsUser", 0), context.get("fsGroup", 0)


def test_all_pods_run_under_the_rules_of_restricted_v2(
    kubectl: Kubectl, restricted: dict[str, str]
) -> None:
    forget(kubectl)
    kubectl("create", "namespace", SYSTEM)
    _label(kubectl, SYSTEM, restricted)
    try:
        # The rig has no API of OpenShift.
        install(kubectl, "--set=fixedUser=Never")
        with namespace(kubectl, "restricted-team") as team:
            _label(kubectl, team.name, restricted)
            team.tenant("ads", KEY)
            team.serve("one", replicas=1)
            team.answers("one", KEY, 200)
            system = Namespace(kubectl, SYSTEM)
            for place in (team, system):
                for pod in place.get("pods")["items"]:
                    assert pod["spec"]["securityContext"]["fsGroup"] == ASSIGNED
                    name = pod["metadata"]["name"]
                    assert place.python(name, "import os; print(os.getuid())") == str(ASSIGNED)
            fixed = service("fixed", host=team.host("fixed"))
            fixed["spec"]["router"] = {
                "template": {"spec": {"securityContext": {"runAsUser": 65532}}}
            }
            team.apply(fixed)
            wait_until(
                lambda: "MustRunAsRange" in _message(team, "fixed"), "a word about the refusal"
            )
    finally:
        forget(kubectl)


def _message(team: Namespace, name: str) -> str:
    listed = team.get("fis", name).get("status", {}).get("conditions", ())
    return " ".join(one["message"] for one in listed)
