"""The chart as it is released, and the same objects for `kubectl apply`."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from release.errors import ReleaseError
from release.names import CHART, CHART_ARCHIVE, INSTALL, NAMESPACE, VERSION
from release.programs import helm, run
from release.signing import CHART_SIGNER, Keys

_OF_HELM: Final = re.compile(
    r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/[\w-]+: .*)\n", re.MULTILINE
)


def build(out: Path, *, registry: str, digests: Mapping[str, str], keys: Keys) -> None:
    """Write the signed chart and `install.yaml`. `digests` has the digest of each image by its name in `values.yaml`."""
    with tempfile.TemporaryDirectory() as temporary:
        chart = Path(temporary) / "evenkeel"
        shutil.copytree(CHART, chart)
        values = (chart / "values.yaml").read_text()
        (chart / "values.yaml").write_text(released_values(values, registry, digests))
        with (chart / "Chart.yaml").open("a") as file:
            file.write(images_annotation(registry, digests))
        run(helm(), "package", chart, "--destination", out,
            "--sign", "--key", CHART_SIGNER, "--keyring", keys.chart_private)  # fmt: skip
    (out / INSTALL).write_text(install_file(rendered(out / CHART_ARCHIVE)))


def released_values(text: str, registry: str, digests: Mapping[str, str]) -> str:
    """`values.yaml` with the registry of the release, and with the digest of each image instead of its tag."""
    text, count = re.subn(r'^  registry: ""$', f"  registry: {registry}", text, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError("values.yaml has no empty images.registry")
    for image, digest in digests.items():
        pattern = rf'^(  {image}:\n(?:    .*\n)*?    digest: )""$'
        text, count = re.subn(pattern, rf"\g<1>{digest}", text, flags=re.MULTILINE)
        if count != 1:
            raise ReleaseError(f"values.yaml has no empty images.{image}.digest")
    return text


def images_annotation(registry: str, digests: Mapping[str, str]) -> str:
    """The list of images for Artifact Hub, which scans them. The last entry of `Chart.yaml` is `annotations`."""
    images = [
        {"name": image, "image": f"{registry}/{image}:{VERSION}@{digest}"}
        for image, digest in sorted(digests.items())
    ]
    return f"  artifacthub.io/images: {json.dumps(json.dumps(images))}\n"


def rendered(chart: Path) -> str:
    """The objects of a chart with its default values, for the oldest supported Kubernetes."""
    oldest = re.search(
        r'^kubeVersion: ">=([\d.]+)', (CHART / "Chart.yaml").read_text(), re.MULTILINE
    )
    assert oldest is not None
    return run(helm(), "template", "evenkeel", chart, "--namespace", NAMESPACE,
               "--kube-version", oldest[1], "--skip-tests", "--set=crds.keep=false").decode()  # fmt: skip


def install_file(objects: str) -> str:
    """The objects without the marks of Helm, after the namespace that they are in."""
    namespace = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n"
    head = (
        f"# Evenkeel {VERSION}. Install or upgrade:\n"
        "#     kubectl apply --server-side -f install.yaml\n"
    )
    return f"{head}{namespace}{_OF_HELM.sub('', objects)}"
