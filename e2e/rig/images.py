"""Images that the cluster needs before any other can run: built from our own binaries, imported into nodes.

Nothing is pulled. `archive` is also how the tests' own images (operator, router, simulator) get in.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.rig.layout import CACHE
from e2e.rig.processes import run
from e2e.rig.settings import COREDNS_IMAGE, PAUSE_IMAGE, TRAEFIK_IMAGE


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


def system_archives(binaries: Path) -> list[Path]:
    """An image archive for each system image, built where the cache lacks it."""
    return [_of_binary(image, (binaries / image.binary).resolve()) for image in SYSTEM_IMAGES]


def archive(name: str, context: Path, *, containerfile: Path, key: str) -> Path:
    """Build `containerfile` in `context` as image `name`; `key` names what it was built from."""
    folder = CACHE / "images"
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace("/", "_").replace(":", "_")
    target = folder / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.tar"
    if not target.exists():
        print(f"building image {name} …", flush=True)
        run("buildah", "build", "--runtime", "runc", "--network", "host", "--pull=never",
            "--file", containerfile, "--tag", name, context)  # fmt: skip
        partial = target.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        run("buildah", "push", name, f"docker-archive:{partial}:{name}")
        partial.rename(target)
        for old in folder.glob(f"{stem}-*.tar"):
            if old != target:
                old.unlink()
    return target


def _of_binary(image: BinaryImage, binary: Path) -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        context = Path(temporary)
        shutil.copyfile(binary, context / "program")
        (context / "program").chmod(0o755)
        file = context / "Containerfile"
        file.write_text('FROM scratch\nCOPY program /program\nENTRYPOINT ["/program"]\n')
        return archive(image.name, context, containerfile=file, key=binary.name)
