"""JSON schemas of Kubernetes' objects for kubeconform, made from what the rig pins: the API of Kubernetes, and definitions of others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.rig.definitions import definitions
from e2e.rig.errors import NotHereError
from e2e.rig.layout import SOURCE

LOCATION: Final = "{{ .ResourceKind }}-{{ .ResourceAPIVersion }}.json"
_API: Final = "api/openapi-spec/swagger.json"
_ALL: Final = "all.json"


def write(folder: Path) -> None:
    """A schema for each kind into the folder; skips the test where the modules cannot be had."""
    try:
        others = definitions()
    except NotHereError as error:
        pytest.skip(str(error))
    api = json.loads((_kubernetes() / _API).read_text())
    (folder / _ALL).write_text(json.dumps({"definitions": _strict(api["definitions"])}))
    for name, definition in api["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            schema = {"$ref": f"{_ALL}#/definitions/{name}"}
            _put(folder, kind["kind"], kind["version"], schema)
    for path in others.values():
        for kind, version, schema in _versions(yaml.safe_load(path.read_text())):
            _put(folder, kind, version, _strict(schema))


def _kubernetes() -> Path:
    done = subprocess.run(
        ["go", "mod", "download", "-json", "k8s.io/kubernetes"],
        cwd=SOURCE / "programs" / "kubernetes",
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the API of Kubernetes cannot be had: {done.stderr.strip()[-500:]}")
    return Path(json.loads(done.stdout)["Dir"])


def _put(folder: Path, kind: str, version: str, schema: Any) -> None:
    (folder / f"{kind.lower()}-{version}.json").write_text(json.dumps(schema))


def _versions(definition: Any) -> Iterator[tuple[str, str, Any]]:
    spec = definition["spec"]
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {"type": "object"}
        yield spec["names"]["kind"], version["name"], schema


def _strict(schema: Any) -> Any:
    """Without fields that the schema does not have, and with numbers where Kubernetes takes them for text."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _strict(value) for name, value in schema.items()}
    if made.get("format") == "int-or-string" or made.get("x-kubernetes-int-or-string") is True:
        made.pop("type", None)
        made.pop("format", None)
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made
