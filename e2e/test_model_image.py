"""A model in an image (`oci://`): the nodes mount it read-only, another image is rolled out, and one that cannot be had is named.

The engine is the simulator under the name of SGLang's command: it ends where the model's folder is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.installed import Namespace, service
from e2e.operators import wait_until
from e2e.rig import cluster
from e2e.rig.images import archive
from e2e.standin import stand_in
from e2e.test_release import served as registry_served

pytestmark = pytest.mark.timeout(300)
KEY: Final = "sk-model-image"
IMAGE: Final = "evenkeel.dev/e2e/model"
SEEN: Final = """
import pathlib, sys
folder = pathlib.Path(sys.orig_argv[-1])
print(folder, (folder / "config.json").read_text(), sorted(one.name for one in folder.iterdir()))
try: (folder / "x").write_text("x")
except OSError as error: print(error.strerror)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tag → the archive of an image with a model's folder, which both nodes have."""
    if "E2E_KUBECONFIG" in os.environ:
        pytest.skip("the images are loaded into the nodes of the rig")
    found = {}
    for tag in ("1", "2"):
        folder = tmp_path_factory.mktemp(f"model-{tag}")
        (folder / "config.json").write_text(tag)
        (folder / "Containerfile").write_text("FROM scratch\nCOPY config.json /models/tiny/\n")
        found[tag] = archive(
            f"{IMAGE}:{tag}", folder, containerfile=folder / "Containerfile", key=f"model {tag}"
        )
    cluster.load_images(list(found.values()))
    return found


def with_model(team: Namespace, source: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"router": {"replicas": 1}, "tenancy": {"anonymous": "Reject"}}
    plain = service("one", host=team.host("one"), **spec)
    plain["spec"]["model"] = {"source": source, "servedName": "llama-3.1-8b"}
    plain["spec"]["engine"] = stand_in(team, replicas=2)
    return plain


@pytest.fixture(scope="module")
def serving(images: dict[str, Path], team: Namespace) -> Namespace:
    team.tenant("ads", KEY)
    team.apply(with_model(team, f"oci://{IMAGE}:1#models/tiny"))
    team.ready("one", replicas=2)
    return team


def seen(team: Namespace) -> set[str]:
    """The model's folder as each replica sees it, and why it cannot write there."""
    found = set()
    for name, pod in team.pods("one", "engine").items():
        (container,) = pod["spec"]["containers"]
        (flag,) = (one for one in container["args"] if one.startswith("--model-path="))
        path = flag.partition("=")[2]
        found.add(team("exec", name, "--", "python3", "-c", SEEN, path).strip())
    return found


def as_mounted(content: str) -> set[str]:
    return {f"/models/image/models/tiny {content} ['config.json']\nRead-only file system"}


@pytest.mark.core
def test_replicas_read_the_model_of_an_image(serving: Namespace) -> None:
    assert seen(serving) == as_mounted("1")
    serving.answers("one", KEY, 200)


@pytest.mark.core
def test_another_image_is_rolled_out(serving: Namespace) -> None:
    before = serving.pods("one", "engine").keys()
    serving.patch("one", model={"source": f"oci://{IMAGE}:2#models/tiny"})
    wait_until(lambda: before.isdisjoint(serving.pods("one", "engine")), "a rollout")
    serving.ready("one", replicas=2)
    assert seen(serving) == as_mounted("2")


@pytest.mark.core
def test_an_image_that_cannot_be_had_is_named_while_the_old_one_serves(serving: Namespace) -> None:
    serving.patch("one", model={"source": f"oci://{IMAGE}:none#models/tiny"})

    def is_named() -> bool:
        found = serving.condition("one", "Stalled")
        return found["status"] == "True" and f"{IMAGE}:none" in found["message"]

    wait_until(is_named, "the image in condition Stalled")
    serving.answers("one", KEY, 200)
    serving.patch("one", model={"source": f"oci://{IMAGE}:2#models/tiny"})
    wait_until(
        lambda: serving.condition("one", "Stalled")["status"] == "False", "the end of the fault"
    )


@pytest.fixture
def pushed(images: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """The address by digest of an image in a registry beside the cluster."""
    for name in ("docker-registry", "skopeo"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name}: make release-tools")
    with registry_served(tmp_path) as registry:
        digest = tmp_path / "digest"
        copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"--digestfile={digest}"]
        source, target = f"docker-archive:{images['1']}", f"docker://{registry}/tiny:1"
        subprocess.run([*copy, source, target], check=True)
        yield f"{registry}/tiny:1@{digest.read_text().strip()}"


def test_an_image_is_pulled_from_its_registry_by_digest(serving: Namespace, pushed: str) -> None:
    before = serving.pods("one", "engine").keys()
    serving.patch("one", model={"source": f"oci://{pushed}#models/tiny"})
    wait_until(lambda: before.isdisjoint(serving.pods("one", "engine")), "a rollout")
    serving.ready("one", replicas=2)
    assert seen(serving) == as_mounted("1")
