"""A release in a local registry: built, signed, pushed, and installed by the commands of docs/how-to/install-a-release.md.

It needs the Debian packages docker-registry, skopeo and gnupg. Images are built for this machine's architecture only.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from e2e.installed import ROOT, SYSTEM, Namespace, Stream, forget, helm, namespace, program
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from e2e.registry import answers
from e2e.rig.layout import HOST_IP, NODES
from images.recipe import ARCHITECTURE
from release.names import CHART_ARCHIVE, VERSION
from release.registry import written

# The first test builds the release: minutes without a cache.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]
CONFINED: Final = """\
import os
try:
    open("/opt/evenkeel/new", "w")
except OSError as error:
    print(os.getuid(), error.strerror)
"""
"""Prints the user of a container, and why it cannot write to its image."""


@dataclass(frozen=True)
class Release:
    """The artifacts, and the registry that has them."""

    folder: Path
    registry: str

    def run(self, commands: str, kubectl: Kubectl, *, mirror: str = "") -> str:
        """Run commands of the docs in the folder of the artifacts; its output."""
        folders = [str(Path(program(name)).parent) for name in ("kubectl", "helm")]
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", commands],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": os.pathsep.join([*folders, os.environ["PATH"]]),
                "KUBECONFIG": str(kubectl.kubeconfig),
                "REGISTRY": self.registry,
                "MIRROR": mirror,
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def registry(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry without TLS beside the cluster, from which its nodes may pull."""
    if "E2E_KUBECONFIG" in os.environ:
        pytest.skip("the nodes of your cluster do not know the local registry")
    for name in ("docker-registry", "skopeo", "gpg"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name}: apt-get install docker-registry skopeo gnupg")
    with served(tmp_path_factory.mktemp("registry")) as found:
        yield found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A registry with its contents in a folder, for the time of the context."""
    with socket.create_server((HOST_IP, 0)) as free:
        address = f"{HOST_IP}:{free.getsockname()[1]}"
    config = written(folder, address)
    for node in NODES:
        hosts = node.folder / "certs.d" / address / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        # containerd 1.6 ignores a file without a table `host`.
        hosts.write_text(f'server = "http://{address}"\n[host."http://{address}"]\n')
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: answers(address), "the registry")
        yield f"{address}/evenkeel"
    finally:
        process.terminate()
        process.wait(timeout=30)
        for node in NODES:
            shutil.rmtree(node.folder / "certs.d" / address)


@pytest.fixture(scope="module")
def release(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Built, signed with new keys, checked and pushed by the targets of the Makefile."""
    folder = tmp_path_factory.mktemp("release")
    variables = [f"REGISTRY={registry}", f"DIST={folder}/dist", f"KEYS={folder}/keys"]
    # The tree may have changes that are not committed yet.
    make("release", *variables, f"ARGS=--architectures={ARCHITECTURE} --dirty")
    make("publish", *variables, "ARGS=--plain-http")
    return Release(folder / "dist", registry)


def make(*words: str) -> None:
    done = subprocess.run(
        ["make", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def page() -> dict[str, str]:
    """Heading → shell commands of docs/how-to/install-a-release.md. A local registry has no TLS, which Helm must allow."""
    return commands_of("install-a-release.md")


def commands_of(name: str) -> dict[str, str]:
    sections = (ROOT / "docs" / "how-to" / name).read_text().split("\n## ")[1:]
    found = {
        text.split("\n")[0]: "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        for text in sections
    }
    for command, option in (("helm install", "--plain-http"), ("helm pull", "--plain-http"),
                            ("skopeo copy", "--src-tls-verify=false --dest-tls-verify=false")):  # fmt: skip
        found = {
            heading: text.replace(command, f"{command} {option}") for heading, text in found.items()
        }
    return found


def pulled(team: Namespace, kubectl: Kubectl) -> set[str]:
    """The images of the operator and of a service's pods."""
    pods = [*kubectl.get("-n", SYSTEM, "pods")["items"], *team.get("pods")["items"]]
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def serves(registry: str, kubectl: Kubectl, name: str) -> None:
    """A service streams through the ingress, and all its images have this registry and a digest."""
    with namespace(kubectl, name) as team:
        team.serve("released")
        team.tenant("ads", "sk-ads")
        team.answers("released", "sk-ads", 200)
        with team.client("released", "sk-ads") as client:
            Stream(client, tokens=8).started().finish()
        images = pulled(team, kubectl)
        assert len(images) == 3
        for image in images:
            assert re.fullmatch(re.escape(registry) + r"/\w+@sha256:[0-9a-f]{64}", image)
        for place in (team, Namespace(kubectl, SYSTEM)):
            for pod in place.get("pods")["items"]:
                name = pod["metadata"]["name"]
                assert place.python(name, CONFINED) == "65532 Read-only file system", name


def test_the_artifacts_are_as_signed(
    release: Release, kubectl: Kubectl, page: dict[str, str]
) -> None:
    assert ": OK" in release.run(page["Verify the files"], kubectl)


@pytest.mark.parametrize(
    ("name", "commands", "want"),
    [
        ("SHA256SUMS", "", "Verification failure"),
        ("install.yaml", "", "install.yaml: FAILED"),
        (CHART_ARCHIVE, "helm verify --keyring evenkeel-chart.gpg", "sha256 sum does not match"),
    ],
)
def test_a_changed_byte_is_found(
    name: str, commands: str, want: str, release: Release, kubectl: Kubectl, page: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    copy = Release(tmp_path / "dist", release.registry)
    shutil.copytree(release.folder, copy.folder)
    data = bytearray((copy.folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy.folder / name).write_bytes(data)
    with pytest.raises(AssertionError, match=want):
        copy.run(f"{commands} {name}" if commands else page["Verify the files"], kubectl)


def test_helm_installs_the_signed_chart_from_the_registry(
    release: Release, kubectl: Kubectl, page: dict[str, str]
) -> None:
    forget(kubectl)
    try:
        release.run(page["Install with Helm"], kubectl)
        serves(release.registry, kubectl, "released-by-helm")
    finally:
        forget(kubectl)


def test_a_mirror_is_the_only_registry_that_an_installation_needs(
    release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    commands = commands_of("air-gap.md")
    forget(kubectl)
    with served(tmp_path / "mirror") as mirror:
        place = Release(tmp_path, release.registry)
        place.run(commands["Copy chart and images"], kubectl, mirror=mirror)
        listed = (tmp_path / "images.txt").read_text().split()
        assert {one.split("/")[-1].split("@")[0] for one in listed} == {
            "operator",
            "router",
            "simulator",
        }
        try:
            with unreachable(release.registry):
                place.run(commands["Install"], kubectl, mirror=mirror)
                serves(mirror, kubectl, "released-without-internet")
        finally:
            forget(kubectl)


@contextmanager
def unreachable(registry: str) -> Iterator[None]:
    """The nodes cannot pull from a registry."""
    address = registry.partition("/")[0]
    files = [node.folder / "certs.d" / address / "hosts.toml" for node in NODES]
    known = files[0].read_text()
    try:
        for file in files:
            file.write_text(known.replace(address, "127.0.0.1:9"))
        yield
    finally:
        for file in files:
            file.write_text(known)


def test_helm_refuses_a_chart_that_another_key_signed(release: Release, kubectl: Kubectl) -> None:
    other = release.folder.parent / "other"
    subprocess.run(
        ["make", "release-keys", f"KEYS={other}"], cwd=ROOT, capture_output=True, check=True
    )
    with pytest.raises(AssertionError, match="signature made by unknown entity"):
        helm(kubectl, "template", "evenkeel", f"oci://{release.registry}/charts/evenkeel",
             "--version", VERSION, "--plain-http", "--verify",
             "--keyring", str(other / "evenkeel-chart.gpg"))  # fmt: skip


def test_kubectl_installs_the_plain_file(
    release: Release, kubectl: Kubectl, page: dict[str, str]
) -> None:
    forget(kubectl)
    try:
        release.run(page["Install with kubectl"], kubectl)
        serves(release.registry, kubectl, "released-plainly")
    finally:
        kubectl("delete", "--ignore-not-found", "-f", release.folder / "install.yaml")
        forget(kubectl)
