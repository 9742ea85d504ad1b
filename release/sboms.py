"""Lists of what an artifact contains (SBOM, CycloneDX 1.6): one for the wheel with its dependencies, one per image."""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Final

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from images.recipe import PRODUCTS
from release.images import file_in
from release.names import PROJECT, ROOT, VERSION, image_archive, sbom
from release.programs import run

_DEBIAN: Final = "var/lib/dpkg/status.d/"


def build(out: Path) -> None:
    """Write the files beside the artifacts."""
    (wheel,) = out.glob("*.whl")
    _of_wheel(wheel, out / sbom("cli"))
    for target in PRODUCTS:
        bom = of_image(out / image_archive(target), target)
        outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
        (out / sbom(target)).write_text(outputter.output_as_string(indent=2))


def _of_wheel(wheel: Path, target: Path) -> None:
    """The packages that `pip install` brings for the command line, at the locked versions."""
    with tempfile.TemporaryDirectory() as temporary:
        python = Path(temporary) / "bin" / "python"
        run(sys.executable, "-m", "venv", temporary)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            f"--constraint={ROOT / 'constraints.txt'}", f"{wheel}[cli]")  # fmt: skip
        run(sys.executable, "-m", "cyclonedx_py", "environment", "--spec-version=1.6",
            "--output-reproducible", f"--pyproject={ROOT / 'pyproject.toml'}",
            f"--output-file={target}", python)  # fmt: skip


def of_image(archive: Path, target: str) -> Bom:
    """The packages in the layers of an image: Python's and Debian's. They are the same for all architectures."""
    bom = Bom()
    root = Component(
        name=f"evenkeel-{target}", version=VERSION, type=ComponentType.CONTAINER, bom_ref=target
    )
    bom.metadata.component = root
    found = {purl.to_string(): purl for purl in _packages(archive)}
    components = [
        Component(
            name=purl.name,
            version=purl.version,
            type=ComponentType.APPLICATION
            if purl.name == PROJECT["name"]
            else ComponentType.LIBRARY,
            purl=purl,
            bom_ref=text,
        )
        for text, purl in sorted(found.items())
    ]
    bom.components.update(components)
    bom.register_dependency(root, components)
    return bom


def _packages(archive: Path) -> Iterator[PackageURL]:
    with tarfile.open(archive) as tar:
        for layer in _layers(tar):
            with tarfile.open(fileobj=_blob(tar, layer)) as files:
                for member in files:
                    kind = _kind(member.name.lstrip("./"))
                    if kind and member.isfile():
                        file = files.extractfile(member)
                        assert file is not None
                        head = HeaderParser().parsestr(file.read().decode(errors="replace"))
                        name, version = head.get("Name") or head["Package"], head["Version"]
                        space = "debian" if kind == "deb" else None
                        yield PackageURL(kind, namespace=space, name=name, version=version)


def _kind(path: str) -> str:
    """The type of package whose record a file is; empty if it is none."""
    if path.startswith(_DEBIAN):
        return "deb"
    return "pypi" if path.endswith(".dist-info/METADATA") else ""


def _layers(tar: tarfile.TarFile) -> list[str]:
    """The digests of the layers of all architectures."""
    index = json.load(file_in(tar, "index.json"))
    pending, layers = [entry["digest"] for entry in index["manifests"]], []
    while pending:
        manifest = json.load(_blob(tar, pending.pop()))
        pending += [entry["digest"] for entry in manifest.get("manifests", ())]
        layers += [layer["digest"] for layer in manifest.get("layers", ())]
    return sorted(set(layers))


def _blob(tar: tarfile.TarFile, digest: str) -> IO[bytes]:
    return file_in(tar, f"blobs/{digest.replace(':', '/')}")
