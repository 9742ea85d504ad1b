"""An operator of this version starts no engine anew: their pods are those of the version before, as its golden files say.

The readiness gate is left out: it comes to pods that are new anyway (`core/rotation.py`). A change that has to restart
engines belongs behind a change of the spec, or into a rollout that somebody asks for.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenkeel_operator.core.rotation import without_gate

from e2e.previous import NoHistoryError, find_previous

ROOT = Path(__file__).parents[2]
FOLDER = "tests/golden/operator"
STORED_DEFAULTS = {"--client-quantum=Auto": "--client-quantum=8000", "value: Auto": "value: '8000'"}
"""A new default, and the former one, which the API server has stored in every existing service."""


def engine_pods(text: str) -> Any:
    """The pod template of the engines' Deployment."""
    (found,) = (
        one
        for one in yaml.safe_load_all(text)
        if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-engine")
    )
    return without_gate(found)["spec"]["template"]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / FOLDER).glob("*.yaml")))
def test_engines_are_what_the_previous_version_made_of_them(name: str) -> None:
    try:
        commit = find_previous().commit
    except NoHistoryError as error:
        pytest.skip(f"no previous version to compare with: {error}")
    command = ["git", "-C", str(ROOT), "show", f"{commit}:{FOLDER}/{name}"]
    before = subprocess.run(command, check=False, capture_output=True, text=True)
    if "does not exist" in before.stderr or "exists on disk, but not in" in before.stderr:
        pytest.skip("the previous version has no such service")
    assert before.returncode == 0, before.stderr
    now = (ROOT / FOLDER / name).read_text()
    for new, stored in STORED_DEFAULTS.items():
        now = now.replace(new, stored)
    assert engine_pods(now) == engine_pods(before.stdout)
