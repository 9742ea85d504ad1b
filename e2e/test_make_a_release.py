"""The commands of docs/how-to/make-a-release.md in a clean clone, as printed, against a local registry and a local package index.

They need root, the programs of `make release-tools`, and the package index; no cluster. Addresses are replaced: the port of the
local registry by a free one, and the registry of the example by the local one. Without Docker's daemon, buildah runs the images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import pytest

from e2e.operators import ROOT, wait_until
from e2e.registry import answers
from images.recipe import PRODUCTS
from release.names import VERSION

pytestmark = pytest.mark.timeout(1800)
PROGRAMS: Final = ("buildah", "runc", "skopeo", "gpg", "docker-registry", "go")
LIKE_DOCKER: Final = """\
#!/bin/bash -e
# docker run --rm IMAGE ARGUMENT…
container=$(buildah from --quiet --pull-always --tls-verify=false "$3")
trap 'buildah rm "$container" >/dev/null' EXIT
entry=$(buildah inspect --format '{{.OCIv1.Config.Entrypoint}}' "$container" | tr -d '[]')
buildah run --runtime runc "$container" -- $entry "${@:4}"
"""


def section(heading: str) -> str:
    """The commands under a heading of the page."""
    page = (ROOT / "docs/how-to/make-a-release.md").read_text()
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))


@dataclass(frozen=True)
class Clone:
    """A clean clone, whose origin is a bare one, and the registry of the trial."""

    folder: Path
    address: str
    environment: dict[str, str]

    def run(self, commands: str) -> str:
        """Run commands of the page; their output."""
        for printed, here in (("localhost:5000", self.address), ("registry.example.com", self.address),
                              ("make publish\n", "make publish ARGS=--plain-http\n")):  # fmt: skip
            commands = commands.replace(printed, here)
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", commands],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def tags(self, image: str) -> list[str]:
        """What the registry has of an image."""
        answer = httpx.get(f"http://{self.address}/v2/evenkeel/{image}/tags/list")
        return list(answer.json().get("tags", ()))


class Index(BaseHTTPRequestHandler):
    """A package index that takes every file."""

    taken: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.extend(one.decode() for one in re.findall(rb'filename="([^"]+)"', body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"it needs root and {', '.join(PROGRAMS)}: make release-tools")
    folder = tmp_path_factory.mktemp("release")
    origin, tree, bin_ = folder / "origin.git", folder / "tree", folder / "bin"
    for words in (
        "clone --bare {ROOT} {origin}",
        "clone {origin} {tree}",
        "-C {tree} checkout -B main",
    ):
        command = [word.format(ROOT=ROOT, origin=origin, tree=tree) for word in words.split()]
        subprocess.run(["git", *command], check=True, capture_output=True)
    bin_.mkdir()
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        (bin_ / "docker").write_text(LIKE_DOCKER)
        (bin_ / "docker").chmod(0o755)
    who = ("GIT_AUTHOR", "GIT_COMMITTER")
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    yield Clone(tree, address, {
        **os.environ,
        **{f"{one}_NAME": "A maintainer" for one in who},
        **{f"{one}_EMAIL": "maintainer@example.com" for one in who},
        "KEYS": str(folder / "keys"),
        "PATH": os.pathsep.join([str(bin_), os.environ["PATH"]]),
    })  # fmt: skip


@contextmanager
def registry_of(clone: Clone) -> Iterator[None]:
    """`make registry` in a second terminal, until Ctrl-C."""
    process = subprocess.Popen(
        ["make", "registry", f"ARGS=--address {clone.address}"],
        cwd=clone.folder, env=clone.environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: answers(clone.address), "the registry")
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=30)


@contextmanager
def index_of(clone: Clone) -> Iterator[None]:
    """A package index to which twine uploads."""
    with HTTPServer(("localhost", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        clone.environment.update(
            TWINE_REPOSITORY_URL=f"http://localhost:{server.server_port}/",
            TWINE_USERNAME="maintainer",
            TWINE_PASSWORD="password",
        )
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_the_commands_of_the_page_make_a_release(clone: Clone) -> None:
    clone.run(section("Tools and keys"))
    git = clone.run(section("Prepare").replace("make nightly\n", "") + "git describe")
    assert git.splitlines()[-1] == f"v{VERSION}"
    trial = section("Try it with a local registry").replace("make registry\n", "")
    with registry_of(clone):
        said = clone.run(trial)
        assert [said.count(f"usage: {name}") for name in ("evenkeel_router", "evenkeel-operator",
                                                         "python -m evenkeel_simulator.server")] == [1, 1, 1]  # fmt: skip
        assert all(clone.tags(image) == [VERSION] for image in (*PRODUCTS, "charts/evenkeel"))
        with index_of(clone):
            clone.run(section("Publish"))
        assert sorted(path.suffix for path in map(Path, Index.taken)) == [".gz", ".whl"]
        pushed = subprocess.run(
            ["git", "ls-remote", "--tags", "origin"],
            cwd=clone.folder, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert f"refs/tags/v{VERSION}\n" in pushed
        raw = clone.run(
            f"skopeo inspect --raw --tls-verify=false docker://{clone.address}/evenkeel/router:{VERSION}"
        )
        assert {one["platform"]["architecture"] for one in json.loads(raw)["manifests"]} == {
            "amd64",
            "arm64",
        }
    clone.run(section("Go on"))
    changelog = (clone.folder / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[:2] == ["Unreleased", VERSION]
    assert clone.run("git status --porcelain") == ""
