"""Pages of the resources, field by field, from the schemas of the CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from evenkeel_contract.crd import definitions

from docs.generate.pages import bounds, bullets, code, codes, entry, page, table

_FOLDER: Final = "reference/resources"
_RULES: Final = "x-kubernetes-validations"
_Schema = Mapping[str, Any]


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of each page: one for each part of a service's spec, and one for a tenant."""
    for definition in definitions().values():
        kind = definition["spec"]["names"]["kind"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        spec, status = (schema["properties"][part] for part in ("spec", "status"))
        if kind == "InferenceTenant":
            parts = [*_fields(spec, "spec"), *_fields(status, "status")]
            intro = f"After this page you know every field of an {kind}. {schema['description']}"
            yield f"{_FOLDER}/inferencetenant.md", page(kind, intro, _names(definition), *parts)
            continue
        if kind == "FairInferenceGateway":
            yield f"{_FOLDER}/fairinferencegateway.md", _gateway(definition)
            continue
        yield f"{_FOLDER}/fairinferenceservice.md", _service(definition, spec)
        for name, part in (*spec["properties"].items(), ("status", status)):
            where = "status" if name == "status" else f"spec.{name}"
            intro = f"After this page you know every field of `{where}` of a {kind}. {part['description']}"
            own = [*_messages(part), *_fields(part, where)]
            yield f"{_FOLDER}/{name}.md", page(where, intro, *own)


def _service(definition: _Schema, spec: _Schema) -> str:
    """The page that leads to the parts of a FairInferenceService."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    required = spec.get("required", ())
    rows = [
        (f"[`spec.{name}`]({name}.md)", "yes" if name in required else "")
        for name in spec["properties"]
    ]
    return page(
        "FairInferenceService",
        f"After this page you know the parts of a FairInferenceService. {schema['description']}",
        _names(definition),
        table(("field", "required"), [*rows, ("[`status`](status.md)", "")]),
        *_messages(spec),
    )


def _gateway(definition: _Schema) -> str:
    """The page of a FairInferenceGateway; the parts that a service has too are on the pages of a service."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = (schema["properties"][part] for part in ("spec", "status"))
    own = {k: v for k, v in spec["properties"].items() if k not in ("exposure", "tenancy")}
    shared = (
        "`spec.exposure` and `spec.tenancy` have the fields of [`spec.exposure`](exposure.md) and "
        "[`spec.tenancy`](tenancy.md) of a FairInferenceService."
    )
    return page(
        "FairInferenceGateway",
        f"After this page you know every field of a FairInferenceGateway. {schema['description']}",
        _names(definition),
        shared,
        *_messages(spec),
        *_fields({**spec, "properties": own}, "spec"),
        *_fields(status, "status"),
    )


def _names(definition: _Schema) -> str:
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    columns = bullets(
        f"**{column['name']}**{' (`-o wide`)' if column.get('priority') else ''}: {column['description']}"
        for column in version["additionalPrinterColumns"]
    )
    api = f"{definition['spec']['group']}/{version['name']}"
    return (
        f"`apiVersion: {api}`, `kind: {names['kind']}`, short name {codes(names['shortNames'])}.\n\n"
        f"Columns of `kubectl get`:\n\n{columns}"
    )


def _fields(schema: _Schema, path: str) -> Iterator[str]:
    """An entry for each field below a path; a list's own path ends with `[]`."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        facts = [_kind(field), "required" if name in required else ""]
        yield entry(
            code(where),
            f"*{', '.join(fact for fact in facts if fact)}*",
            field.get("description", ""),
            *_messages(field),
            level=2,
        )
        yield from _fields(field, where)
        yield from _messages(field.get("items", {}))
        yield from _fields(field.get("items", {}), f"{where}[]")


def _kind(schema: _Schema) -> str:
    """The type of a field with its bounds, in words."""
    match schema:
        case {"enum": values}:
            return f"one of {codes(values)}"
        case {"x-kubernetes-int-or-string": True}:
            return "integer or string"
        case {"type": "array", "items": items}:
            keys = schema.get("x-kubernetes-list-map-keys")
            unique = f", unique by {codes(keys)}" if keys else ""
            return f"list of {_kind(items)}{unique}"
        case {"x-kubernetes-preserve-unknown-fields": True}:
            return "object of any fields"
        case {"additionalProperties": values}:
            return f"map of {_kind(values)}"
    kind, low, high = schema["type"], schema.get("minimum"), schema.get("maximum")
    return f"{kind}{bounds(low, high)}"


def _messages(schema: _Schema) -> Iterator[str]:
    """What the API server answers if a rule over this field is broken."""
    messages = [rule["message"] for rule in schema.get(_RULES, ()) if "message" in rule]
    if messages:
        yield "Rules:\n\n" + bullets(dict.fromkeys(messages))
