"""What `images/Dockerfile` builds, and the arguments with which buildah builds it. The test cluster and the release use it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

from images import base

ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
"""Architecture of this machine, as images call it; empty if no image is built for it."""
PRODUCTS: Final = {
    "router": ("fairshare", "contract", "kube", "router"),
    "operator": ("fairshare", "contract", "kube", "operator"),
    "simulator": ("fairshare", "contract", "simulator"),
}
"""Targets of `images/Dockerfile`, and the folders whose packages they hold."""
RECIPE: Final = (
    "images/Dockerfile", "images/project.py", "images/bytecode.py", ".dockerignore",
    "pyproject.toml", "constraints.txt", "LICENSE",
)  # fmt: skip
"""Files beside the packages from which an image is built."""
# How this machine reaches its package index goes into the build, and not into the image.
_LENT: Final = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def build_arguments(runtime: str) -> tuple[str, ...]:
    """Arguments of buildah for `images/Dockerfile` over the base image `runtime` of any architecture."""
    lent = [f"--volume={path}:{path}:ro" for path in _LENT if Path(path).exists()]
    given = {
        "BASE": runtime,
        "BUILDER": base.BUILDER.name,
        "BUILDPLATFORM": f"linux/{ARCHITECTURE}",
    }
    arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
    return (*arguments, *lent, "--layers", "--timestamp=0")
