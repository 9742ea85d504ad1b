"""Names of the artifacts and of what they are built from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: Final[str] = PROJECT["version"]
CHART: Final = ROOT / "charts" / "evenkeel"
CHART_ARCHIVE: Final = f"evenkeel-{VERSION}.tgz"
INSTALL: Final = "install.yaml"
PROVENANCE: Final = "provenance.intoto.jsonl"
NAMESPACE: Final = "evenkeel-system"
ARCHITECTURES: Final = ("amd64", "arm64")
"""Architectures of the images."""


def image_archive(target: str) -> str:
    """The file with the image of a target of `images/Dockerfile`, for all architectures (OCI)."""
    return f"evenkeel-{target}-{VERSION}.oci.tar"


def sbom(part: str) -> str:
    """The CycloneDX file of an image or of the wheel."""
    return f"evenkeel-{part}-{VERSION}.cdx.json"
