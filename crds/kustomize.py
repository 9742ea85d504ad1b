"""What kustomize needs to know of both resources: how lists merge, and which fields name other objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import yaml
from evenkeel_contract.crd import definitions
from evenkeel_contract.names import GROUP, VERSION

Schema = dict[str, Any]
OPENAPI: Final = "openapi.json"
NAMES: Final = "namereference.yaml"
_TEMPLATES: Final = ("spec/engine/template/spec", "spec/router/template/spec")
# Open objects in the schema, where pods name Secrets and ConfigMaps.
_IN_TEMPLATES: Final = {
    "Secret": (
        "env/valueFrom/secretKeyRef/name",
        "envFrom/secretRef/name",
        "imagePullSecrets/name",
        "volumes/secret/secretName",
        "volumes/projected/sources/secret/name",
    ),
    "ConfigMap": (
        "env/valueFrom/configMapKeyRef/name",
        "envFrom/configMapRef/name",
        "volumes/configMap/name",
        "volumes/projected/sources/configMap/name",
    ),
    "PersistentVolumeClaim": ("volumes/persistentVolumeClaim/claimName",),
}


def files() -> dict[str, str]:
    """File name → text."""
    header = "# Generated from contract/evenkeel_contract/spec by `make crds`. Do not edit.\n"
    names = yaml.safe_dump({"nameReference": _references()}, sort_keys=False, width=110)
    return {OPENAPI: json.dumps(_openapi(), indent=1) + "\n", NAMES: header + names}


def _openapi() -> Schema:
    """The schemas of both resources, with nothing but the keys by which kustomize merges lists."""
    found = {}
    for definition in definitions().values():
        names, group = definition["spec"]["names"], definition["spec"]["group"]
        for version in definition["spec"]["versions"]:
            what = {"group": group, "kind": names["kind"], "version": version["name"]}
            schema = _merging(version["schema"]["openAPIV3Schema"]) or {}
            reverse = ".".join(reversed(group.split(".")))
            found[f"{reverse}.{version['name']}.{names['kind']}"] = {
                **schema,
                "x-kubernetes-group-version-kind": [what],
            }
    return {"definitions": found}


def _merging(schema: Schema) -> Schema | None:
    """The part of a schema that leads to lists with a key; None if there is none."""
    found: Schema = {}
    below = {name: _merging(part) for name, part in schema.get("properties", {}).items()}
    if any(below.values()):
        found["properties"] = {name: part for name, part in below.items() if part is not None}
    if "items" in schema and (part := _merging(schema["items"])) is not None:
        found["items"] = part
    keys = schema.get("x-kubernetes-list-map-keys", [])
    if len(keys) == 1:
        found |= {"x-kubernetes-patch-merge-key": keys[0], "x-kubernetes-patch-strategy": "merge"}
        found.setdefault("items", {"type": "object"})
    return {"type": schema["type"], **found} if found else None


def _references() -> list[Schema]:
    by_kind: dict[str, list[Schema]] = {}
    for definition in definitions().values():
        kind = definition["spec"]["names"]["kind"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for named, path in _named(schema["properties"]["spec"], "spec"):
            field = {"group": definition["spec"]["group"], "kind": kind, "path": path}
            by_kind.setdefault(named, []).append(field)
        field = {"group": definition["spec"]["group"], "kind": kind}
        templates = [one for one in _TEMPLATES if _has(schema, one)]
        for named, paths in _IN_TEMPLATES.items() if templates else ():
            by_kind.setdefault(named, []).extend(
                {**field, "path": f"{template}/{path}"} for template in templates for path in paths
            )
    core = {
        "Deployment": {"group": "apps", "version": "v1"},
        "FairInferenceService": {"group": GROUP, "version": VERSION},
    }
    return [
        {"kind": kind, **core.get(kind, {"version": "v1"}), "fieldSpecs": fields}
        for kind, fields in sorted(by_kind.items())
    ]


def _has(schema: Schema, path: str) -> bool:
    """Whether a schema has the field at a path."""
    for name in path.split("/"):
        schema = schema.get("properties", {}).get(name, {})
    return bool(schema)


def _named(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """(kind, path) of each field that names an object which kustomize may rename."""
    for name, below in schema.get("properties", {}).items():
        where = f"{path}/{name}"
        if name.lower().endswith("secretref"):
            yield "Secret", f"{where}/name"
        elif name == "secretName":
            yield "Secret", where
        elif name == "serviceRef":
            yield "FairInferenceService", f"{where}/name"
        elif name == "scaleTargetRef":
            yield "Deployment", f"{where}/name"
        else:
            yield from _named(below.get("items", below), where)
