"""Programs from pinned Go modules, built once per version into a folder. Older versions stay there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.cache import CACHE, one_at_a_time
from images.errors import BuildError, NotHereError

_GIB_EACH: Final = 3
"""Memory of the largest build."""
_SAY_EVERY_S: Final = 10.0
MODULES: Final = Path(__file__).parents[1] / "e2e" / "rig" / "programs"
"""A folder for each Go module."""


@dataclass(frozen=True, slots=True)
class Component:
    """A program of one Go module."""

    name: str
    module: Path
    """The folder of its `go.mod`."""
    package: str = "."
    links: tuple[str, ...] = ()
    """Names by which a multi-call binary is called."""
    flags: str = ""


HELM: Final = Component("helm", MODULES / "helm", package="helm.sh/helm/v3/cmd/helm")


def build_program(component: Component) -> Path:
    """One program, built into the cache if it is missing."""
    folder = CACHE / "bin"
    build([component], folder)
    return folder / component.name


@one_at_a_time("programs")
def build(components: Sequence[Component], folder: Path) -> None:
    """Build what is missing, several at a time where processors and memory allow it. Raises `BuildError`."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [one for one in components if not _target(one, folder).exists()]
    if missing:
        at_a_time = max(
            1, min(len(missing), (os.cpu_count() or 1) // 2, _memory_gib() // _GIB_EACH)
        )
        names = ", ".join(one.name for one in missing)
        _say(f"building {len(missing)} programs, {at_a_time} at a time: {names}")
        _say(
            "the first time takes about 13 minutes of CPU; built programs are kept for each version"
        )
        with ThreadPoolExecutor(at_a_time) as pool:
            for built in as_completed([pool.submit(_compile, one, folder) for one in missing]):
                built.result()
    for component in components:
        _link(component, folder)


def fetch_modules(components: Sequence[Component], folder: Path) -> None:
    """Have the modules of every program that is not built in `folder`; raises `NotHereError` where they cannot be had."""
    for component in components:
        if not _target(component, folder).exists():
            _need_go(component)
            run = subprocess.run(
                ["go", "mod", "download"],
                cwd=component.module,
                env={**os.environ, "GOFLAGS": ""},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode:
                said = run.stderr.strip()[-1000:]
                raise NotHereError(f"the Go modules of {component.name} cannot be had: {said}")


def _link(component: Component, folder: Path) -> None:
    built = _target(component, folder)
    for name in component.links or (component.name,):
        link = folder / name
        if link.is_symlink() and os.readlink(link) == built.name:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(built.name)


def _target(component: Component, folder: Path) -> Path:
    """The binary, named by what it is built from."""
    digest = hashlib.sha256(component.flags.encode())
    for path in sorted(component.module.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return folder / f".{component.name}-{digest.hexdigest()[:16]}"


def _need_go(component: Component) -> None:
    if shutil.which("go") is None:
        raise NotHereError(
            f"cannot build {component.name}: there is no go command; install Go 1.26 or newer, "
            "or set E2E_BINARIES to a folder of binaries"
        )


def _compile(component: Component, folder: Path) -> None:
    _need_go(component)
    source, built = component.module, _target(component, folder)
    partial = built.with_suffix(".partial")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    packages = subprocess.run(
        ["go", "list", "-mod=readonly", "-deps", component.package],
        cwd=source, env=environment, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    # Not vendored and never tidied: go.mod and go.sum pin every module. -v names each package that is compiled.
    command = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    command += ["-ldflags", f"-s -w {component.flags}", "-o", str(partial), component.package]
    began_s = said_s = time.monotonic()
    done, lines = set[str](), list[str]()
    with subprocess.Popen(
        command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            done.add(line.strip())
            if time.monotonic() - said_s >= _SAY_EVERY_S:
                said_s = time.monotonic()
                count = len(done.intersection(packages))
                _say(f"{component.name}: {count} of {len(packages)} packages")
    if process.returncode:
        raise BuildError(f"building {component.name} failed:\n{''.join(lines)[-4000:]}")
    partial.rename(built)
    _say(f"{component.name}: built in {time.monotonic() - began_s:.0f} s")


def _memory_gib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30


def _say(text: str) -> None:
    print(text, flush=True)
