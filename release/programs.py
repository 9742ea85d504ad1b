"""Runs the programs of a release: git, openssl, gpg, helm, buildah, skopeo."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from images.programs import HELM, build_program
from release.errors import ReleaseError


def run(
    *command: str | Path,
    stdin: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> bytes:
    """The standard output of a program; raises `ReleaseError` with its error output."""
    words = [str(word) for word in command]
    installed(words[0])
    done = subprocess.run(
        words,
        input=stdin,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ReleaseError(f"{' '.join(words[:4])} failed: {said[-2000:]}")
    return done.stdout


def installed(program: str) -> None:
    """Raises `ReleaseError` if there is no such program."""
    if shutil.which(program) is None:
        raise ReleaseError(
            f"{program} is not installed (docs/how-to/make-a-release.md lists the packages)"
        )


def helm() -> str:
    """Helm from the PATH, or built from its pinned Go module."""
    return shutil.which("helm") or str(build_program(HELM))
