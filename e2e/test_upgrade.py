"""`helm upgrade` from the previous chart with a live service, and `helm rollback`: engines stay, no stream is cut."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.installed import (
    CHART,
    DEFINITIONS,
    SYSTEM,
    Namespace,
    helm,
    installed,
    namespace,
    registry,
    under_load,
)
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from e2e.previous import NoHistoryError, Previous, find_previous
from e2e.rig import cluster
from e2e.rig.images import TAG, product_archives

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]
KEY = "sk-upgrade"
NEWER = "availableImage"
"""In the status. The tests take it out of the previous chart, since two versions may have the same fields."""


@pytest.fixture(scope="module")
def previous() -> Previous:
    if "E2E_REGISTRY" in os.environ:
        pytest.skip("the previous version's images are built for the rig's own cluster only")
    try:
        return find_previous()
    except NoHistoryError as error:
        pytest.skip(f"no previous version to upgrade from: {error}")


@pytest.fixture(scope="module")
def live(
    previous: Previous, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Namespace]:
    """The previous version, with a service `one`."""
    tree = previous.unpack(tmp_path_factory.mktemp("previous"))
    cluster.load_images(product_archives(tree, tag=previous.version))
    chart = tree / "charts" / "evenkeel"
    without_newer_field(chart)
    with installed(kubectl, chart=chart), namespace(kubectl, "upgrade") as team:
        assert operator_image(kubectl) == f"{registry()}/operator:{previous.version}"
        team.tenant("ads", KEY)
        team.serve("one", replicas=2, tenancy={"anonymous": "Reject"})
        team.answers("one", KEY, 200)
        yield team


def without_newer_field(chart: Path) -> None:
    """As if the present version were the first one with this field: only then is it seen that the API is upgraded."""
    file = chart / "files" / "crds" / "fairinferenceservices.yaml"
    definition = yaml.safe_load(file.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"]["properties"].pop(NEWER, None)
    file.write_text(yaml.safe_dump(definition, sort_keys=False))


def operator_image(kubectl: Kubectl) -> str:
    found: str = kubectl.get("-n", SYSTEM, "deploy", "evenkeel")["spec"]["template"]["spec"][
        "containers"
    ][0]["image"]
    return found


def engines(team: Namespace) -> dict[str, tuple[str, int]]:
    """Pods that are not being deleted, with their uids and restarts."""
    return {
        name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for name, pod in team.pods("one", "engine").items()
    }


def image(team: Namespace, component: str) -> set[str]:
    pods = team.pods("one", component).values()
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def routers_run(team: Namespace, version: str) -> None:
    """Wait until the routers are those of a version, and ready, and no others are left."""

    def all_do() -> bool:
        status = team.get("deploy", "one-router")["status"]
        counts = {status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")}
        return counts == {2} and image(team, "router") == {f"{registry()}/router:{version}"}

    wait_until(all_do, f"routers {version}")


def served(kubectl: Kubectl) -> set[str]:
    """The fields that the API server has. The chart before has not all definitions."""
    there = kubectl("get", "crd", "-o", "name").split()
    return fields_of(
        [
            kubectl.get("crd", name)
            for name in DEFINITIONS
            if any(one.endswith(name) for one in there)
        ]
    )


def of_the_release(kubectl: Kubectl) -> set[str]:
    """The fields in the chart that is installed."""
    text = helm(kubectl, "--namespace", SYSTEM, "get", "manifest", "evenkeel")
    return fields_of(yaml.safe_load_all(text))


def fields_of(objects: Iterable[Any]) -> set[str]:
    """As `FairInferenceService.status.image`, of the definitions among these objects."""
    return {
        f"{one['spec']['names']['kind']}{path}"
        for one in objects
        if one and one["kind"] == "CustomResourceDefinition"
        for path in _below(one["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    }


def _below(schema: Any, path: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _below(part, f"{path}.{name}")
    if "items" in schema:
        yield from _below(schema["items"], f"{path}[]")


def upgrade(team: Namespace, kubectl: Kubectl) -> None:
    """To the present chart; until its operator and its routers run."""
    helm(kubectl, "--namespace", SYSTEM, "upgrade", "evenkeel", str(CHART),
         f"--set=images.registry={registry()}", "--wait", "--timeout=120s")  # fmt: skip
    assert operator_image(kubectl) == f"{registry()}/operator:{TAG}"
    routers_run(team, TAG)
    team.ready("one", replicas=len(engines(team)))


@pytest.mark.core
def test_an_upgrade_restarts_no_engine_and_cuts_no_stream(
    live: Namespace, kubectl: Kubectl, previous: Previous
) -> None:
    before, api = engines(live), served(kubectl)
    assert api == of_the_release(kubectl)
    with under_load(live, "one", KEY):
        upgrade(live, kubectl)
    assert engines(live) == before
    assert image(live, "engine") == {f"{registry()}/simulator:{previous.version}"}
    now = served(kubectl)
    assert now == of_the_release(kubectl)
    assert f"FairInferenceService.status.{NEWER}" in now - api


def test_a_rollback_restarts_no_engine_and_cuts_no_stream(
    live: Namespace, kubectl: Kubectl, previous: Previous
) -> None:
    before, api = engines(live), served(kubectl)
    with under_load(live, "one", KEY):
        helm(kubectl, "--namespace", SYSTEM, "rollback", "evenkeel", "1", "--wait")
        assert operator_image(kubectl) == f"{registry()}/operator:{previous.version}"
        routers_run(live, previous.version)
    assert engines(live) == before
    release = of_the_release(kubectl)
    kinds = {field.partition(".")[0] for field in release}
    # Helm keeps a definition that the previous chart does not have, with all of its objects.
    kept = {field for field in api if field.partition(".")[0] not in kinds}
    assert served(kubectl) == release | kept
    assert release < api
    live("scale", "fis/one", "--replicas=3")  # the old operator runs
    live.ready("one", replicas=3)
    assert before.items() < engines(live).items()


def test_the_newer_engine_is_reported_and_used_on_request(
    live: Namespace, kubectl: Kubectl, previous: Previous
) -> None:
    old = engines(live)
    upgrade(live, kubectl)
    assert engines(live) == old
    status = live.get("fis", "one")["status"]
    assert status["image"] == f"{registry()}/simulator:{previous.version}"
    assert status[NEWER] == f"{registry()}/simulator:{TAG}"
    with under_load(live, "one", KEY):
        live("annotate", "fis", "one", f"evenkeel.dev/upgrade={TAG}")
        wait_until(lambda: engines(live).keys().isdisjoint(old), "other pods")
        live.ready("one", replicas=3)
    assert image(live, "engine") == {f"{registry()}/simulator:{TAG}"}
    assert NEWER not in live.get("fis", "one")["status"]
