"""The programs' packages: installed once for all checkouts, in a folder of the cache named by a hash of the pinned lists."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_OF_NODE: Final = ("package.json", "package-lock.json")
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenkeel" / "programs"
)
_LIMIT_S: Final = 1200.0
_NPM: Final = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
"""The packages have their programs as files for each platform, so that no script needs to run."""


class NotInstalledError(Exception):
    """A program cannot be had here; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the installed programs are. Its methods raise `NotInstalledError`."""

    folder: Path
    missing: Mapping[str, str]
    """Part that could not be installed → the reason."""

    def python(self, name: str) -> Path:
        """A program of a Python package."""
        return self._part("python") / "bin" / name

    def version(self, package: str) -> str:
        """The installed version of a Python package."""
        program = f"import importlib.metadata as m; print(m.version({package!r}))"
        done = subprocess.run(
            [self.python("python"), "-c", program], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def native(self, package: str, version: str, program: str) -> Path:
        """The program of an npm package that comes as one file for each platform."""
        for described in self._part("node").glob(f"**/{package}/package.json"):
            if not json.loads(described.read_text())["version"].startswith(version):
                continue
            for found in described.parent.glob(program):
                if os.access(found, os.X_OK):
                    return found
        raise NotInstalledError(f"npm has no {package} {version} for this platform")

    def _part(self, name: str) -> Path:
        if name in self.missing:
            raise NotInstalledError(self.missing[name])
        return self.folder / name


def node_packages(listed: Path) -> Path:
    """The packages of a folder with a locked list; raises `NotInstalledError`."""
    made_from = hashlib.sha256(b"".join((listed / name).read_bytes() for name in _OF_NODE))
    folder = CACHE / f"{listed.name}-{made_from.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for name in _OF_NODE:
                shutil.copy(listed / name, folder)
            _run("npm", "ci", *_NPM, at=folder)
            (folder / "complete").touch()
    return folder


def environment() -> Environment:
    """The programs, of which those are installed that are not yet."""
    made_from = hashlib.sha256(sys.version.encode())
    for name in ("requirements.txt", *_OF_NODE):
        made_from.update((HERE / name).read_bytes())
    folder = CACHE / made_from.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part, install in (("python", _python), ("node", _node)):
            if (folder / f"{part}-complete").exists():
                continue
            print(f"installing the programs of {part} into {folder} (once)", flush=True)
            shutil.rmtree(folder / part, ignore_errors=True)
            try:
                install(folder)
            except NotInstalledError as reason:
                missing[part] = str(reason)
            else:
                (folder / f"{part}-complete").touch()
    return Environment(folder, missing)


def _python(folder: Path) -> None:
    uv, made = CACHE.parent / "uv" / "bin" / "uv", folder / "python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, made)
    into = ("--quiet", "--no-deps", "--python", made / "bin" / "python")
    _run(uv, "pip", "install", *into, "--requirement", HERE / "requirements.txt")


def _node(folder: Path) -> None:
    made = folder / "node"
    made.mkdir()
    for name in _OF_NODE:
        shutil.copy(HERE / name, made)
    _run(folder / "python" / "bin" / "npm", "ci", *_NPM, at=made)


def _run(*words: object, at: Path | None = None) -> None:
    command = [str(word) for word in words]
    path = f"{Path(command[0]).parent}:{os.environ.get('PATH', '')}"
    try:
        done = subprocess.run(
            command,
            cwd=at,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(str(error)) from error
    if done.returncode:
        raise NotInstalledError(f"{' '.join(command[:4])}: {done.stderr.strip()[-500:]}")
