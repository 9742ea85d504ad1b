"""Generates a structural schema from type hints and constraints, as the API server reads it.

An object whose fields have defaults has a default itself. So the API server fills in the whole tree, and CEL can read
`self.router.state.store` without checks for each part.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Final

from evenkeel_contract.crd.rule import Rule
from evenkeel_contract.crd.rules import ITEM_RULES, OBJECT_RULES
from evenkeel_contract.crd.scalars import BARE_URL, SCALAR_RULES
from evenkeel_contract.decode import Field, Shape, fields_of, shape_of, to_camel, to_plain
from evenkeel_contract.queueorder import IsolationSetting, QuantumSetting
from evenkeel_contract.values import (
    MAX_TEXT,
    Cidr,
    CountOrPercent,
    Duration,
    Length,
    Pattern,
    Quantity,
    Range,
    Timestamp,
    UniqueBy,
    Url,
)

Schema = dict[str, Any]

_RULES: Final = "x-kubernetes-validations"
_INT32: Final = 2**31 - 1

NOT_STORED: Final = frozenset(
    {"clientQuantum", "workerQuantum", "order", "undeclaredTenants", "undeclaredTenantWeight"}
)
"""Fields whose default the API server does not store. After a rollback, older versions have to read services that were made with
this version. Version 0.1 takes only numbers as quanta. Version 0.2 does not know `order`, version 0.3 not what is said of undeclared
tenants."""


def object_schema(cls: type, *, defaults: bool = True) -> Schema:
    """The schema of a dataclass. Without `defaults` (a status), absent fields stay absent."""
    schema: Schema = {"description": " ".join((cls.__doc__ or "").split()), "type": "object"}
    fields = fields_of(cls)
    required = [wire for wire, field in fields.items() if field.default is None]
    if required:
        schema["required"] = required
    properties = {wire: _field(cls, field, defaults=defaults) for wire, field in fields.items()}
    for wire in NOT_STORED & properties.keys():
        properties[wire].pop("default", None)
    schema["properties"] = properties
    return _with_rules(schema, OBJECT_RULES.get(cls, ()))


def _field(cls: type, field: Field, *, defaults: bool) -> Schema:
    schema = {"description": "", **value_schema(field.hint, defaults=defaults)}
    item_rules = ITEM_RULES.get((cls, field.name))
    if item_rules:
        _with_rules(schema["items"], item_rules)
    default = _default(field) if defaults else None
    schema = {**schema, "description": field_docs(cls)[field.name] + _default_text(default)}
    if default is not None:
        schema["default"] = default
    return schema


def _default_text(default: object) -> str:
    """The sentence about a default; empty for objects, whose fields have their own."""
    if isinstance(default, list) and all(isinstance(entry, str) for entry in default):
        default = ", ".join(default)
    return f" Default: {default}." if isinstance(default, str | int) else ""


def _default(field: Field) -> object:
    """The default on the wire; None if an absent field means the same.

    Objects are written out, as CEL sees a default before the defaults within it are filled in.
    """
    plain = _without_empty(to_plain(None if field.default is None else field.default()))
    return None if plain in ([], {}) else plain


def _without_empty(plain: Any) -> Any:
    if not isinstance(plain, Mapping):
        return plain
    kept = ((name, _without_empty(entry)) for name, entry in plain.items())
    return {name: entry for name, entry in kept if entry not in ([], {}) and name not in NOT_STORED}


def value_schema(hint: Any, *, defaults: bool) -> Schema:
    """The schema of a type hint, without description and default."""
    shape, inner = shape_of(hint)
    makers: Mapping[Shape, Callable[[], Schema]] = {
        Shape.CONSTRAINED: lambda: _constrained(inner, defaults=defaults),
        Shape.OPTIONAL: lambda: value_schema(inner, defaults=defaults),
        Shape.LIST: lambda: _list(inner, defaults=defaults),
        Shape.MAPPING: lambda: _mapping(inner, defaults=defaults),
        Shape.ENUM: lambda: {"type": "string", "enum": [member.value for member in inner]},
        Shape.SCALAR: lambda: _scalar(inner),
        Shape.OBJECT: lambda: object_schema(inner, defaults=defaults),
        Shape.PRIMITIVE: lambda: {"type": _TYPES[inner]},
    }
    return makers[shape]()


# No float: Kubernetes' API conventions forbid floats in a resource.
_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}


def _list(hint: Any, *, defaults: bool) -> Schema:
    items = value_schema(hint, defaults=defaults)
    return {"type": "array", "x-kubernetes-list-type": "atomic", "items": items}


def _mapping(hint: Any, *, defaults: bool) -> Schema:
    if hint is object:  # the API server checks it when it is used
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    values = value_schema(hint, defaults=defaults)
    return {"type": "object", "additionalProperties": values}


def _scalar(cls: type) -> Schema:
    if cls in (Duration, IsolationSetting):
        schema: Schema = {"type": "string"}
    else:
        assert cls in (Quantity, CountOrPercent, QuantumSetting), cls
        schema = {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
        }
    schema |= {"maxLength": MAX_TEXT, "pattern": _whole(cls.PATTERN)}
    if cls in (CountOrPercent, QuantumSetting):
        schema |= {"minimum": int(cls is QuantumSetting), "maximum": _INT32}
    return _with_rules(schema, SCALAR_RULES.get(cls, ()))


def _constrained(args: tuple[Any, ...], *, defaults: bool) -> Schema:
    hint, *marks = args
    schema = value_schema(hint, defaults=defaults)
    for mark in marks:
        added = _mark(mark, schema)
        assert not schema.keys() & added.keys() - {"x-kubernetes-list-type", _RULES}, schema
        schema |= added
    return schema


def _mark(mark: object, schema: Schema) -> Schema:
    match mark:
        case Range():
            return _range(mark)
        case Pattern():
            return {"pattern": _whole(mark.regex)}
        case Length():
            return _length(mark, "Items" if schema["type"] == "array" else "Length")
        case UniqueBy():
            keys = [to_camel(name) for name in mark.keys]
            return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
        case Timestamp():
            return {"format": "date-time"}
        case Cidr() | Url():
            rules = [*SCALAR_RULES[type(mark)]]
            if isinstance(mark, Url) and mark.bare:
                rules.append(BARE_URL)
            return {_RULES: [rule.to_plain() for rule in rules]}
        case _:
            raise TypeError(f"{mark} has no counterpart in a schema")


def _range(mark: Range) -> Schema:
    assert mark.minimum is not None and mark.maximum is not None and mark.above is None, mark
    size = "int32" if mark.maximum <= _INT32 else "int64"
    return {"format": size, "minimum": mark.minimum, "maximum": mark.maximum}


def _length(mark: Length, unit: str) -> Schema:
    """Length of a text: the API server counts characters, `decode` counts bytes, which is stricter."""
    bounds: Schema = {f"min{unit}": mark.minimum} if mark.minimum else {}
    return bounds | ({} if mark.maximum is None else {f"max{unit}": mark.maximum})


def _whole(regex: str) -> str:
    """A pattern for the whole text. UTF-8 has no surrogates, neither at the API server nor in RE2."""
    regex = regex.replace(r"\ud800-\udfff", "")
    return f"^({regex})$" if "|" in regex else f"^{regex}$"


def _with_rules(schema: Schema, rules: Sequence[Rule]) -> Schema:
    if rules:
        schema.setdefault(_RULES, []).extend(rule.to_plain() for rule in rules)
    return schema


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Field → the docstring under it, on one line, from the source: Python does not keep it."""
    return _module_docs(sys.modules[cls.__module__])[cls.__name__]


@cache
def _module_docs(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(cls: ast.ClassDef) -> Mapping[str, str]:
    found = {}
    for field, doc in zip(cls.body, cls.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            found[field.target.id] = " ".join(str(doc.value.value).split())
    return found
