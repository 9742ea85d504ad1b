"""The version of the project, in every file that states it. `make version` raises it after a release."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from release.errors import ReleaseError

STATED_IN: Final = (
    "pyproject.toml",
    "CITATION.cff",
    "charts/evenkeel/Chart.yaml",
    "docs/how-to/*.md",
    "docs/tutorials/*.md",
    "images/*",
    "tests/golden/chart/*.yaml",
)
"""Files that state the version, as globs. A test finds others."""
MINOR_STATED_IN: Final = ("SECURITY.md", "docs/reference/compatibility.md")
"""Files that state it without its last number."""


def replaced(text: str, old: str, new: str) -> str:
    """The text with another version. Longer numbers that contain the old one stay."""
    return re.sub(rf"(?<![\d.]){re.escape(old)}(?!\.?\d)", new, text)


def next_minor(version: str) -> str:
    """The version that follows if a release adds something: X.(Y+1).0 after X.Y.Z."""
    major, minor, _ = _numbers(version)
    return f"{major}.{minor + 1}.0"


def raise_version(root: Path, old: str, new: str) -> None:
    """Write a higher version into the files under `root`; raises `ReleaseError`."""
    if re.fullmatch(r"\d+\.\d+\.\d+", new) is None:
        raise ReleaseError(f"TO={new}: write three numbers, X.Y.Z")
    if _numbers(new) <= _numbers(old):
        raise ReleaseError(f"TO={new}: the version is {old} already; write a higher one")
    for glob in STATED_IN:
        _replace(root, glob, old, new)
    for glob in MINOR_STATED_IN:
        _replace(root, glob, old.rpartition(".")[0], new.rpartition(".")[0])


def _replace(root: Path, glob: str, old: str, new: str) -> None:
    for path in root.glob(glob):
        if path.is_file():
            text = path.read_text()
            if (written := replaced(text, old, new)) != text:
                path.write_text(written)


def _numbers(version: str) -> list[int]:
    return [int(one) for one in version.split(".")]
