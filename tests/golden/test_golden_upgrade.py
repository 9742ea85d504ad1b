"""An operator of this version starts no engine anew: their pods are those of the version before, as its golden files say.

The readiness gate is left out: it comes to pods that are new anyway (`core/rotation.py`). A change that has to restart
engines belongs behind a change of the spec, or into a rollout that somebody asks for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from evenkeel_operator.core.rotation import without_gate

from e2e.previous import NoHistoryError, find_previous

ROOT = Path(__file__).parents[2]
FOLDER = "tests/golden/operator"
NO_ENGINES = "gateway.yaml"
"""The objects of a gateway; its services have the engines."""


def engine_pods(text: str) -> Any:
    """The pod template of the engines' Deployment."""
    (found,) = (
        one
        for one in yaml.safe_load_all(text)
        if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-engine")
    )
    return without_gate(found)["spec"]["template"]


def before(path: str) -> str:
    """A file of the previous version."""
    try:
        commit = find_previous().commit
    except NoHistoryError as error:
        pytest.skip(f"no previous version to compare with: {error}")
    command = ["git", "-C", str(ROOT), "show", f"{commit}:{path}"]
    shown = subprocess.run(command, check=False, capture_output=True, text=True)
    if "does not exist" in shown.stderr or "exists on disk, but not in" in shown.stderr:
        pytest.skip(f"the previous version has no {path}")
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.parametrize(
    "name", sorted({path.name for path in (ROOT / FOLDER).glob("*.yaml")} - {NO_ENGINES})
)
def test_engines_are_what_the_previous_version_made_of_them(name: str) -> None:
    former = before(f"{FOLDER}/{name}")
    assert engine_pods((ROOT / FOLDER / name).read_text()) == engine_pods(former)


@pytest.mark.parametrize("name", ["fairinferenceservices", "inferencetenants"])
def test_the_previous_version_reads_defaults_of_new_objects_after_rollback(name: str) -> None:
    path = f"crds/{name}.yaml"
    defaults = dict(stored(schema_of((ROOT / path).read_text())))
    former = dict(stored(schema_of(before(path)), with_schema=True))
    assert defaults
    for field, value in defaults.items():
        if field in former:  # the others are dropped: an API server keeps the fields that it knows
            jsonschema.validate(value, former[field])


def schema_of(text: str) -> Any:
    return yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def stored(schema: Any, path: str = "", *, with_schema: bool = False) -> Iterator[tuple[str, Any]]:
    """(path, default) of the fields that are no objects; or (path, schema) of all of them."""
    for field, part in schema.get("properties", {}).items():
        inner = f"{path}.{field}"
        if "properties" in part:
            yield from stored(part, inner, with_schema=with_schema)
        elif with_schema:
            yield inner, part
        elif "default" in part:
            yield inner, part["default"]
