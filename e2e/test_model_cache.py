"""A model in a bucket: a Job downloads it onto a volume, replicas start after it and read it, and another source takes its place.

The bucket is a small server of the tests beside the cluster; the volume is a folder that both nodes have.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from evenkeel_contract.names import USE_LABEL

from e2e.installed import Namespace, service
from e2e.kubectl import Kubectl
from e2e.operators import ROOT, wait_until
from e2e.rig.layout import STATE
from e2e.scraping import host
from tests.support.bucket import CHUNK, Objects, serving
from tests.support.documents import blocks

pytestmark = [pytest.mark.core, pytest.mark.timeout(300)]
KEY: Final = "AKIAEVENKEEL"
VOLUME: Final = "e2e-models"
WEIGHTS: Final = {name: name.encode() * (48 * CHUNK) for name in ("one", "two")}
LIST: Final = """
import pathlib
root = pathlib.Path("/models/filled")
for one in sorted(root.rglob("*.safetensors")): print(one.parent.name, one.stat().st_size, one.read_bytes()[:3].decode())
try: (root / "x").write_text("x")
except OSError as error: print(error.strerror)
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[Objects, str]]:
    """A slow bucket that asks for a key, and its address for pods."""
    contents = {f"models/{name}/w.safetensors": body for name, body in WEIGHTS.items()}
    objects = Objects({**contents, "models/one/config.json": b"{}"}, key=KEY)
    with serving(objects, host=host()) as address:
        yield objects, address


@pytest.fixture(scope="module")
def volume(kubectl: Kubectl) -> Iterator[Path]:
    """The folder behind a volume that every node has."""
    folder = STATE / "models"
    if not STATE.exists():
        pytest.skip("only the nodes of the rig share a folder")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    spec = {
        "storageClassName": VOLUME,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": str(folder)},
    }
    item = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME}}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump({**item, "spec": spec}))
    yield folder
    kubectl("delete", f"pv/{VOLUME}", "--wait=false")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def restricted(team: Namespace) -> Namespace:
    """A namespace under the strictest Pod Security, with the credentials of the bucket."""
    level = "pod-security.kubernetes.io/enforce=restricted"
    team.kubectl("label", "namespace", team.name, level)
    literals = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": "secret"}
    team("create", "secret", "generic", "bucket",
         *(f"--from-literal={name}={value}" for name, value in literals.items()))  # fmt: skip
    team("label", "secret", "bucket", f"{USE_LABEL}=true")
    return team


def model(name: str, address: str) -> dict[str, Any]:
    return {
        "source": f"s3://models/{name}",
        "servedName": "llama-3.1-8b",
        "objectStore": {"endpoint": address, "secretRef": {"name": "bucket"}},
        "cache": {"size": "1Gi", "storageClassName": VOLUME},
    }


def cached(team: Namespace) -> tuple[str, str]:
    found = [one for one in team.get("fis", "llama").get("status", {}).get("conditions", ())
             if one["type"] == "ModelCached"]  # fmt: skip
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


def files(team: Namespace, pod: str) -> list[str]:
    """Folder, size and beginning of each weights file that a replica sees, and why it cannot write."""
    return team.python(pod, LIST).splitlines()


def digests(volume: Path) -> list[str]:
    return sorted(one.name for one in (volume / "llama").iterdir())


def test_replicas_start_after_the_job_and_read_its_files(
    restricted: Namespace, volume: Path, bucket: tuple[Objects, str]
) -> None:
    team, (objects, address) = restricted, bucket
    objects.pause_s = 0.2
    team.apply(service("llama", host=team.host("llama"), replicas=2, model=model("one", address)))
    seen = set[int]()

    def progress() -> bool:
        reason, message = cached(team)
        if found := re.fullmatch(
            r"(\d+) % of 9\.4 MB of s3://models/one are downloaded\.", message
        ):
            seen.add(int(found[1]))
            assert team.pods("llama", "engine") == {}
        return reason == "Cached"

    wait_until(progress, "the Job", timeout_s=180)
    assert any(0 < percent < 100 for percent in seen), seen
    team("wait", "--for=condition=ModelCached", "fis/llama", "--timeout=60s")
    team.ready("llama", replicas=2)
    (digest,) = digests(volume)
    want = [f"{digest} {len(WEIGHTS['one'])} one", "Read-only file system"]
    found = {pod: files(team, pod) for pod in team.pods("llama", "engine")}
    assert found == dict.fromkeys(found, want)
    wait_until(lambda: not team.get("jobs")["items"], "the Job to go")


def test_the_old_replicas_serve_until_the_new_model_is_there(
    restricted: Namespace, volume: Path, bucket: tuple[Objects, str]
) -> None:
    team, (objects, address) = restricted, bucket
    before, (old,) = set(team.pods("llama", "engine")), digests(volume)
    objects.pause_s = 0.2
    team.patch("llama", model=model("two", address))
    wait_until(lambda: cached(team)[0] == "Downloading", "a download")
    assert set(team.pods("llama", "engine")) == before
    assert team.condition("llama", "Ready")["status"] == "True"
    objects.pause_s = 0
    wait_until(lambda: cached(team)[0] == "Cached", "the new model", timeout_s=120)
    wait_until(lambda: before.isdisjoint(team.pods("llama", "engine")), "a rollout", timeout_s=180)
    team.ready("llama", replicas=2)
    wait_until(lambda: old not in digests(volume), "the old folder to go", timeout_s=120)
    (new,) = digests(volume)
    for pod in team.pods("llama", "engine"):
        assert files(team, pod)[0] == f"{new} {len(WEIGHTS['two'])} two"


def test_a_download_that_fails_is_named_and_succeeds_later(
    restricted: Namespace, volume: Path, bucket: tuple[Objects, str]
) -> None:
    team, (objects, address) = restricted, bucket
    team.patch("llama", model=model("three", address))
    want = "s3://models/three has no files"
    wait_until(
        lambda: cached(team)[0] == "DownloadFails" and want in cached(team)[1],
        "the error",
        timeout_s=60,
    )
    assert team.condition("llama", "Degraded")["reason"] == "DownloadFails"
    objects.contents["models/three/w.safetensors"] = b"three"
    wait_until(lambda: cached(team)[0] == "Cached", "another attempt", timeout_s=180)


def test_the_volume_and_the_job_go_with_the_service(restricted: Namespace, volume: Path) -> None:
    team = restricted
    team("delete", "fis", "llama", "--wait=false")
    for kind in ("pvc", "jobs", "networkpolicies"):
        wait_until(lambda kind=kind: not team.get(kind)["items"], f"no {kind}", timeout_s=90)  # type: ignore[misc]


def test_the_api_server_keeps_the_image_of_an_oci_source(restricted: Namespace) -> None:
    """The nodes' container runtime cannot mount it, so there is no replica."""
    team = restricted
    spec = {"model": {"source": "oci://registry.test/llama:v1#models"},
            "engine": {"runtime": "SGLang", "replicas": 0}}  # fmt: skip
    item = {"apiVersion": "evenkeel.dev/v1alpha1", "kind": "FairInferenceService", "metadata": {"name": "image"}}  # fmt: skip
    team.apply({**item, "spec": spec})
    team("wait", "--for=create", "deployment/image-engine", "--timeout=60s")
    pod = team.get("deployment", "image-engine")["spec"]["template"]["spec"]
    (found,) = (one["image"] for one in pod["volumes"] if one["name"] == "model-image")
    assert found["reference"] == "registry.test/llama:v1"
    team("delete", "fis", "image", "--wait=false")


def test_the_documented_pods_that_hold_an_image_are_allowed(restricted: Namespace) -> None:
    page = ROOT / "docs/how-to/pre-pull-images.md"
    (text,) = (one.text for one in blocks(page) if one.note == "test: daemonset")
    plain = yaml.safe_load(text)
    plain["metadata"]["namespace"] = restricted.name
    answer = restricted(
        "apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(plain)
    )
    assert json.loads(answer)["spec"]["template"]["spec"]["containers"][0]["name"] == "hold"
