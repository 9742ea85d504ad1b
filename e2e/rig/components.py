"""Builds the cluster's programs from pinned Go modules, once per version, into the cache. Older versions stay there.

A folder of ready binaries (`E2E_BINARIES`) takes their place where a machine has one.
"""

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

from e2e.rig.errors import NotHereError, RigError
from e2e.rig.layout import CACHE, KUBERNETES_VERSION, SOURCE

_GIB_EACH: Final = 3
"""Memory of the largest build."""
_SAY_EVERY_S: Final = 10.0

_VERSION_FLAGS: Final = " ".join(
    f"-X {package}.{key}={value}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for key, value in (
        ("gitVersion", KUBERNETES_VERSION),
        ("gitMajor", KUBERNETES_VERSION.split(".")[0].lstrip("v")),
        ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
        ("gitCommit", "unknown"),
        ("gitTreeState", "clean"),
        ("buildDate", "1970-01-01T00:00:00Z"),
    )
)


@dataclass(frozen=True, slots=True)
class Component:
    """One Go module under `programs/`."""

    name: str
    package: str = "."
    links: tuple[str, ...] = ()
    """Names by which a multi-call binary is called."""
    flags: str = ""


COMPONENTS: Final = (
    Component(
        "kubernetes",
        links=(
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "kubelet",
            "kubectl",
        ),
        flags=_VERSION_FLAGS,
    ),
    Component("etcd"),
    Component("coredns"),
    Component("traefik", package="github.com/traefik/traefik/v3/cmd/traefik"),
    Component("helm", package="helm.sh/helm/v3/cmd/helm"),
    Component("pause"),
)


def binaries() -> Path:
    """The folder that holds every program, built where they are missing."""
    given = os.environ.get("E2E_BINARIES")
    if given is not None:
        return _checked(Path(given))
    folder = CACHE / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    build(COMPONENTS, folder)
    return folder


def build(components: Sequence[Component], folder: Path) -> None:
    """Build what is missing, several at a time where processors and memory allow it. Raises `RigError`."""
    missing = [one for one in components if not _target(one, folder).exists()]
    if missing:
        at_a_time = max(
            1, min(len(missing), (os.cpu_count() or 1) // 2, _memory_gib() // _GIB_EACH)
        )
        names = ", ".join(one.name for one in missing)
        _say(f"building {len(missing)} programs, {at_a_time} at a time: {names}")
        _say(
            "the first time takes about 11 minutes of CPU; built programs are kept for each version"
        )
        with ThreadPoolExecutor(at_a_time) as pool:
            for built in as_completed([pool.submit(_compile, one, folder) for one in missing]):
                built.result()
    for component in components:
        _link(component, folder)


def fetch_modules() -> None:
    """Have the modules of every program that is not built yet; raises `NotHereError` where they cannot be had."""
    if "E2E_BINARIES" in os.environ:
        return
    folder = CACHE / "bin"
    for component in COMPONENTS:
        if not _target(component, folder).exists():
            _need_go(component)
            run = subprocess.run(
                ["go", "mod", "download"],
                cwd=SOURCE / "programs" / component.name,
                env={**os.environ, "GOFLAGS": ""},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode:
                said = run.stderr.strip()[-1000:]
                raise NotHereError(f"the Go modules of {component.name} cannot be had: {said}")


def _checked(folder: Path) -> Path:
    wanted = [name for c in COMPONENTS for name in (c.links or (c.name,))]
    missing = [name for name in wanted if not (folder / name).exists()]
    if missing:
        raise RigError(f"E2E_BINARIES={folder} lacks {', '.join(missing)}")
    return folder


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
    for path in sorted((SOURCE / "programs" / component.name).iterdir()):
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
    source, built = SOURCE / "programs" / component.name, _target(component, folder)
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
        raise RigError(f"building {component.name} failed:\n{''.join(lines)[-4000:]}")
    partial.rename(built)
    _say(f"{component.name}: built in {time.monotonic() - began_s:.0f} s")


def _memory_gib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30


def _say(text: str) -> None:
    print(text, flush=True)


def build_program(name: str) -> Path:
    """One program, built if it is missing."""
    component = next(component for component in COMPONENTS if component.name == name)
    folder = CACHE / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    build([component], folder)
    return folder / name
