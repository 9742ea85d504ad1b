"""Helm, where this machine has it: the rig's, or one on the PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.rig.layout import CACHE

CHART = Path(__file__).parents[2] / "charts" / "evenkeel"
REGISTRY = "registry.example.com/evenkeel"


def helm() -> str:
    """The program; skips the test where there is none."""
    built = CACHE / "bin" / "helm"
    program = str(built) if built.exists() else shutil.which("helm")
    if program is None:
        pytest.skip("no helm: `make cluster` builds one, or put one on the PATH")
    return program


def template(*options: str, **values: Any) -> tuple[str, str]:
    """The rendered chart and nothing, or nothing and what was wrong with these values. `options`: Helm's own."""
    given = {"images": {"registry": REGISTRY}} | values
    command = [helm(), "template", "evenkeel", str(CHART), "--namespace", "evenkeel-system",
               "--kube-version", "1.35.0", "--values", "-", *options]  # fmt: skip
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr)


def rendered(*options: str, **values: Any) -> list[dict[str, Any]]:
    """The objects of the rendered chart."""
    text, fault = template(*options, **values)
    assert not fault
    return [one for one in yaml.safe_load_all(text) if one]


def only(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind (and name)."""
    found = [
        one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])
    ]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]
