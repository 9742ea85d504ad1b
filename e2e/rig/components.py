"""Builds the cluster's programs from pinned Go modules, once per version, into the cache.

A folder of ready binaries (`E2E_BINARIES`) takes their place where a machine has one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.rig.errors import NotHereError, RigError
from e2e.rig.layout import CACHE, KUBERNETES_VERSION, SOURCE

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
    for component in COMPONENTS:
        _build(component, folder)
    return folder


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


def _build(component: Component, folder: Path) -> None:
    source = SOURCE / "programs" / component.name
    built = _target(component, folder)
    if not built.exists():
        _compile(component, source, built)
        for old in folder.glob(f".{component.name}-*"):
            if old != built:
                old.unlink()
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


def _compile(component: Component, source: Path, built: Path) -> None:
    _need_go(component)
    print(f"building {component.name} (once; minutes on two cores) …", flush=True)
    partial = built.with_suffix(".partial")
    # Not vendored and never tidied: go.mod and go.sum pin every module.
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    command += ["-ldflags", f"-s -w {component.flags}", "-o", str(partial), component.package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    run = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RigError(f"building {component.name} failed:\n{run.stderr[-4000:]}")
    partial.rename(built)
