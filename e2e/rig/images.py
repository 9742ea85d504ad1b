"""Images that the cluster needs before any other can run: built from our own binaries, imported into nodes.

Nothing is pulled. The product's own images (operator, router, simulator) are built from `images/Dockerfile` over
a base made on the spot, again only when something that goes into them changed.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.rig.layout import CACHE, REPOSITORY
from e2e.rig.settings import COREDNS_IMAGE, PAUSE_IMAGE, TRAEFIK_IMAGE
from images import base
from images.cache import one_at_a_time, use
from images.commands import run
from images.recipe import PRODUCTS, RECIPE, build_arguments

BUILDING: Final = "images"
"""Images are built one at a time: they share buildah's store, and the names of the bases in it."""


@dataclass(frozen=True, slots=True)
class BinaryImage:
    """One static binary and nothing else."""

    name: str
    binary: str


SYSTEM_IMAGES: Final = (
    BinaryImage(PAUSE_IMAGE, "pause"),
    BinaryImage(COREDNS_IMAGE, "coredns"),
    BinaryImage(TRAEFIK_IMAGE, "traefik"),
)


@one_at_a_time(BUILDING)
def system_archives(binaries: Path) -> list[Path]:
    """An image archive for each system image, built where the cache lacks it."""
    return [of_binary(image, (binaries / image.binary).resolve()) for image in SYSTEM_IMAGES]


REGISTRY: Final = "evenkeel.dev/e2e"
TAG: Final[str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


@one_at_a_time(BUILDING)
def product_archives(source: Path = REPOSITORY, *, tag: str = TAG) -> list[Path]:
    """An archive for each of the product's images, as `REGISTRY/<target>:<tag>`, from the tree `source`."""
    key = base.build(base.RUNTIME) + base.build(base.BUILDER) + digest(source, RECIPE)
    arguments = build_arguments(base.RUNTIME.name)
    return [
        archive(
            f"{REGISTRY}/{target}:{tag}",
            source,
            containerfile=source / "images" / "Dockerfile",
            key=key + digest(source, folders),
            arguments=(*arguments, f"--target={target}"),
            of=f", {number} of {len(PRODUCTS)}",
        )
        for number, (target, folders) in enumerate(PRODUCTS.items(), start=1)
    ]


def digest(source: Path, paths: Iterable[str]) -> str:
    """Of the content of files, and of all sources in folders, of the tree `source`."""
    found = hashlib.sha256()
    for path in (source / name for name in paths):
        files = sorted(path.glob("*/**/*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                found.update(f"{file.relative_to(source)}={content}\n".encode())
    return found.hexdigest()


def archive(
    name: str,
    context: Path,
    *,
    containerfile: Path,
    key: str,
    arguments: Sequence[str] = (),
    of: str = "",
) -> Path:
    """Build `containerfile` in `context` as image `name`; `key` names what it was built from, `of` how far the builds are."""
    folder = CACHE / "images"
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace("/", "_").replace(":", "_")
    target = folder / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.tar"
    if not target.exists():
        began_s = time.monotonic()
        print(f"building image {name}{of} …", flush=True)
        run("buildah", "build", "--runtime", "runc", "--network", "host", "--pull=never",
            "--file", containerfile, "--tag", name, *arguments, context)  # fmt: skip
        partial = target.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        run("buildah", "push", name, f"docker-archive:{partial}:{name}")
        partial.rename(target)
        run("buildah", "rmi", "--prune", "--force")  # the image that had this name before
        print(f"built image {name} in {time.monotonic() - began_s:.0f} s", flush=True)
    return use(target, others=f"{stem}-*.tar")


def of_binary(image: BinaryImage, binary: Path) -> Path:
    """The archive of an image with one program."""
    with tempfile.TemporaryDirectory() as temporary:
        context = Path(temporary)
        shutil.copyfile(binary, context / "program")
        (context / "program").chmod(0o755)
        file = context / "Containerfile"
        file.write_text('FROM scratch\nCOPY program /program\nENTRYPOINT ["/program"]\n')
        return archive(image.name, context, containerfile=file, key=binary.name)
