"""The images of the operator, the router and the simulator, each for all architectures in one OCI archive.

Nothing of a foreign architecture runs: the recipe has one stage that runs on this machine, and copies into the others.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from images import base
from images.recipe import ARCHITECTURE, PRODUCTS, build_arguments
from release.errors import ReleaseError
from release.names import ROOT, VERSION, image_archive
from release.programs import run


def build(out: Path, *, architectures: Sequence[str]) -> dict[str, str]:
    """Write the archives; the digest of each image's index by its target."""
    base.build(base.BUILDER)
    bases = {}
    for architecture in architectures:
        runtime = base.RUNTIME if architecture == ARCHITECTURE else base.RUNTIME.of(architecture)
        base.build(runtime)
        # By id: buildah 1.28 does not find the name of a foreign image after a stage with a platform of its own.
        bases[architecture] = run("buildah", "images", "--quiet", runtime.name).decode().strip()
    return {target: _build_one(target, out, bases=bases) for target in PRODUCTS}


def _build_one(target: str, out: Path, *, bases: dict[str, str]) -> str:
    index = f"evenkeel-release-{target}"
    images = []
    for architecture, base_image in bases.items():
        print(f"building image {target} for linux/{architecture}", flush=True)
        image = f"{index}-{architecture}"
        run("buildah", "build", "--runtime", "runc", "--network", "host", "--pull=never",
            "--file", ROOT / "images" / "Dockerfile", f"--target={target}", f"--tag={image}",
            f"--build-arg=TARGETARCH={architecture}",
            f"--label=org.opencontainers.image.version={VERSION}",
            "--label=org.opencontainers.image.licenses=Apache-2.0",
            *build_arguments(base_image), ROOT)  # fmt: skip
        images.append(image)
    _forget(index)
    run("buildah", "manifest", "create", index, *images)
    archive = out / image_archive(target)
    archive.unlink(missing_ok=True)
    run("buildah", "manifest", "push", "--all", "--format", "oci", index,
        f"oci-archive:{archive}:{VERSION}")  # fmt: skip
    _forget(index)
    return digest_of(archive)


def _forget(index: str) -> None:
    try:
        run("buildah", "manifest", "rm", index)
    except ReleaseError:
        pass  # there is none


def digest_of(archive: Path) -> str:
    """The digest of the only entry of an OCI archive."""
    with tarfile.open(archive) as tar:
        (entry,) = json.load(file_in(tar, "index.json"))["manifests"]
    return str(entry["digest"])


def file_in(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """A file of an OCI archive."""
    file = tar.extractfile(name)
    assert file is not None, name
    return file


def publish(folder: Path, registry: str, *, plain_http: bool) -> None:
    """Push all images with their digests unchanged."""
    for target in PRODUCTS:
        print(f"pushing {registry}/{target}:{VERSION}", flush=True)
        run("skopeo", "copy", "--all", "--preserve-digests",
            *(["--dest-tls-verify=false"] if plain_http else []),
            f"oci-archive:{folder / image_archive(target)}",
            f"docker://{registry}/{target}:{VERSION}")  # fmt: skip
