"""The cluster's programs, built from pinned Go modules into the cache.

A folder of ready binaries (`E2E_BINARIES`) takes their place where a machine has one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from e2e.rig.errors import RigError
from e2e.rig.layout import CACHE, KUBERNETES_VERSION
from images import programs
from images.programs import HELM, MODULES, Component

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

COMPONENTS: Final = (
    Component(
        "kubernetes",
        MODULES / "kubernetes",
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
    Component("etcd", MODULES / "etcd"),
    # Debian 12 has containerd 1.6, which cannot mount image volumes.
    *(
        Component(
            name, MODULES / "containerd", package=f"github.com/containerd/containerd/v2/cmd/{name}"
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Component("coredns", MODULES / "coredns"),
    Component("traefik", MODULES / "traefik", package="github.com/traefik/traefik/v3/cmd/traefik"),
    HELM,
    Component("pause", MODULES / "pause"),
)


DRA_DRIVER: Final = Component(
    "dra-driver",
    MODULES / "dra-driver",
    package="sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
)
"""Only the tests of claims use it."""
HEALTH: Final = Component("health", MODULES / "health")
"""Only the tests of GitOps tools use it."""


def binaries() -> Path:
    """The folder that holds every program, built where they are missing."""
    given = os.environ.get("E2E_BINARIES")
    if given is not None:
        return _checked(Path(given))
    folder = CACHE / "bin"
    programs.build(COMPONENTS, folder)
    return folder


def fetch_modules() -> None:
    """Have the modules of every program that is not built yet; raises `NotHereError` where they cannot be had."""
    if "E2E_BINARIES" not in os.environ:
        programs.fetch_modules(COMPONENTS, CACHE / "bin")


def _checked(folder: Path) -> Path:
    wanted = [name for c in COMPONENTS for name in (c.links or (c.name,))]
    missing = [name for name in wanted if not (folder / name).exists()]
    if missing:
        raise RigError(f"E2E_BINARIES={folder} lacks {', '.join(missing)}")
    return folder
