"""The released chart and the plain file: registry, digests and signature. Helm is real."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from release import chart
from release.errors import ReleaseError
from release.names import CHART, CHART_ARCHIVE, INSTALL, NAMESPACE
from release.signing import Keys
from tests.support.helm import helm, only

REGISTRY = "registry.example.com/evenkeel"
DIGESTS = {target: f"sha256:{number * 64}" for target, number in
           (("operator", "1"), ("router", "2"), ("simulator", "3"))}  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gpg") is None:
        pytest.skip("no gpg")
    folder = tmp_path_factory.mktemp("dist")
    keys = Keys(folder / "keys")
    keys.make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(helm()).parent), prepend=":")
        chart.build(folder, registry=REGISTRY, digests=DIGESTS, keys=keys)
    return folder


def verified(folder: Path) -> int:
    command = [helm(), "verify", CHART_ARCHIVE, "--keyring", "keys/evenkeel-chart.gpg"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def test_helm_verifies_the_chart_and_refuses_a_changed_byte(dist: Path, tmp_path: Path) -> None:
    assert verified(dist) == 0
    copy = tmp_path / "dist"
    shutil.copytree(dist, copy)
    data = bytearray((copy / CHART_ARCHIVE).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / CHART_ARCHIVE).write_bytes(data)
    assert verified(copy) != 0


def test_the_released_chart_installs_its_own_images_without_values(dist: Path) -> None:
    objects = [one for one in yaml.safe_load_all(chart.rendered(dist / CHART_ARCHIVE)) if one]
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{REGISTRY}/operator@{DIGESTS['operator']}"
    assert f"--router-image={REGISTRY}/router@{DIGESTS['router']}" in container["args"]
    assert f"--simulator-image={REGISTRY}/simulator@{DIGESTS['simulator']}" in container["args"]


def test_artifact_hub_finds_images_and_definitions_in_the_released_chart(dist: Path) -> None:
    show = [helm(), "show", "chart", dist / CHART_ARCHIVE]
    said = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    notes = yaml.safe_load(said)["annotations"]
    images = {one["name"]: one["image"] for one in yaml.safe_load(notes["artifacthub.io/images"])}
    assert set(images) == set(DIGESTS)
    assert images["router"].endswith(f"@{DIGESTS['router']}")
    kinds = {one["name"] for one in yaml.safe_load(notes["artifacthub.io/crds"])}
    files = (CHART / "files" / "crds").glob("*.yaml")
    assert kinds == {yaml.safe_load(path.read_text())["metadata"]["name"] for path in files}


def test_the_plain_file_has_the_objects_of_the_chart_in_their_namespace(dist: Path) -> None:
    text = (dist / INSTALL).read_text()
    assert "helm.sh/" not in text
    assert "Helm" not in text
    namespace, *objects = [one for one in yaml.safe_load_all(text) if one]
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    kinds = [one["kind"] for one in objects]
    assert kinds.count("CustomResourceDefinition") == 3
    assert {"Deployment", "ServiceAccount", "ClusterRole", "NetworkPolicy"} <= set(kinds)
    assert "Pod" not in kinds  # of `helm test`
    chart_objects = [one for one in yaml.safe_load_all(chart.rendered(dist / CHART_ARCHIVE)) if one]
    assert len(objects) == len(chart_objects)


def test_values_without_the_fields_to_fill_are_an_error() -> None:
    with pytest.raises(ReleaseError, match="no empty images.registry"):
        chart.released_values("images: {}\n", REGISTRY, {})
    text = (CHART / "values.yaml").read_text()
    with pytest.raises(ReleaseError, match="no empty images.engine.digest"):
        chart.released_values(text, REGISTRY, {"engine": "sha256:0"})
