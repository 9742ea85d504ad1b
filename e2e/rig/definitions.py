"""CustomResourceDefinitions of others, for the APIs that Evenkeel uses where they are there.

They are parts of Go modules, pinned like the programs; Go's module cache keeps them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from e2e.rig.errors import NotHereError
from e2e.rig.layout import SOURCE

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "podmonitors.monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
    "prometheusrules.monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "httproutes.gateway.networking.k8s.io": (
        "sigs.k8s.io/gateway-api",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
}
"""Definition → module and file in it."""


def definitions() -> dict[str, Path]:
    """Definition → file. Raises `NotHereError` where the modules cannot be had."""
    if shutil.which("go") is None:
        raise NotHereError("there is no go command to fetch CustomResourceDefinitions with")
    done = subprocess.run(
        ["go", "mod", "download", "-json"],
        cwd=SOURCE / "programs" / "definitions",
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise NotHereError(f"the modules with CustomResourceDefinitions cannot be had: {said}")
    folders = {module["Path"]: Path(module["Dir"]) for module in _objects(done.stdout)}
    return {name: folders[module] / path for name, (module, path) in FILES.items()}


def _objects(text: str) -> list[dict[str, str]]:
    """JSON objects one after another, as Go's tools print them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
