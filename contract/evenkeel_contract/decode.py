"""Converts plain data to frozen dataclasses and back, and reports every fault with its path.

Fields are `snake_case` in Python and `camelCase` on the wire. An invalid field does not stop decoding: `salvage`
replaces it by a neutral value, so that the rules across fields still run and all faults come at once
(`without_echoes` drops faults about replaced values). No input raises an exception.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from math import isfinite
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from evenkeel_contract.values import Constraint, Fault, did_you_mean, kind, show, without_echoes

_T = TypeVar("_T")

MAX_DEPTH: Final = 64  # of an opaque value; YAML anchors can build endless ones
MAX_ENTRIES: Final = 100_000  # of all opaque values together; YAML anchors can multiply them


class Scalar(Protocol):
    """A value with its own text format (a duration, a quantity)."""

    EXAMPLE: ClassVar[str]
    PATTERN: ClassVar[str]
    """A regular expression that every valid text matches as a whole."""

    @classmethod
    def from_plain(cls, data: object) -> Self:
        """Read one; raises `ValueError` with a message that is shown after the path."""

    def to_plain(self) -> str | int:
        """The text that was read."""


class Shape(Enum):
    """The kinds of type hints that can be decoded."""

    CONSTRAINED = "Annotated[T, constraint, …]"
    OPTIONAL = "T | None"
    LIST = "tuple[T, ...]"
    MAPPING = "Mapping[str, T]"
    OPAQUE = "object"  # any JSON, passed through
    ENUM = "an Enum with string values"
    SCALAR = "a Scalar"
    OBJECT = "a dataclass"
    PRIMITIVE = "str, int, float, bool"


@cache
def shape_of(hint: Any) -> tuple[Shape, Any]:  # noqa: PLR0911 - one return per shape
    """The shape of a hint, and its inner hint: the arguments of Annotated, T, or the class itself."""
    origin = get_origin(hint)
    if origin is Annotated:
        return Shape.CONSTRAINED, get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (arm for arm in get_args(hint) if arm is not type(None))
        return Shape.OPTIONAL, inner
    if origin is tuple:
        return Shape.LIST, get_args(hint)[0]
    if origin is not None and issubclass(origin, Mapping):
        return Shape.MAPPING, get_args(hint)[1]
    if hint is object:
        return Shape.OPAQUE, None
    if issubclass(hint, Enum):
        return Shape.ENUM, hint
    if is_scalar(hint):
        return Shape.SCALAR, hint
    return Shape.OBJECT if dataclasses.is_dataclass(hint) else Shape.PRIMITIVE, hint


def is_scalar(hint: Any) -> bool:
    """Whether a hint is a class with its own text format."""
    return hasattr(hint, "from_plain")


def decode(cls: type[_T], data: object) -> tuple[_T | None, tuple[Fault, ...]]:
    """Decode `data` as a `cls`: a value and no faults, or None and at least one fault."""
    value, faults = salvage(cls, data)
    return (None if faults else value), faults


def salvage(cls: type[_T], data: object) -> tuple[_T, tuple[Fault, ...]]:
    """Like `decode`, but always returns a value: defaults or neutral values replace invalid fields."""
    decoder = _Decoder()
    value = cast(_T, decoder.value(cls, data, ""))
    return value, tuple(decoder.faults)


def to_plain(value: object) -> Any:
    """A decoded value as plain data again; `decode(type(v), to_plain(v)) == (v, ())`. None is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if is_scalar(type(value)):
            return cast(Scalar, value).to_plain()
        pairs = ((to_camel(f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: to_plain(entry) for name, entry in pairs if entry is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    return value


def to_camel(name: str) -> str:
    """`max_replicas` → `maxReplicas`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataclass, with its wire name."""

    name: str
    wire: str
    hint: Any
    default: Callable[[], object] | None
    """Makes the default; None if the field is required."""


@cache
def fields_of(cls: type) -> Mapping[str, Field]:
    """The fields of a dataclass by their wire name."""
    hints = get_type_hints(cls, include_extras=True)
    found = (
        Field(field.name, to_camel(field.name), hints[field.name], _default_of(field))
        for field in dataclasses.fields(cls)
    )
    return {field.wire: field for field in found}


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], object] | None:
    if field.default is not dataclasses.MISSING:
        default = field.default
        return lambda: default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None


class _Decoder:
    """Decodes one document; collects faults in the order of the dataclass's fields."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.entries = 0
        self._readers: Mapping[Shape, Callable[[Any, object, str], object]] = {
            Shape.CONSTRAINED: self._constrained,
            Shape.OPTIONAL: self._optional,
            Shape.LIST: self._list,
            Shape.MAPPING: self._mapping,
            Shape.OPAQUE: lambda _, data, path: self._opaque(data, path, 0),
            Shape.ENUM: self._enum,
            Shape.SCALAR: self._scalar,
            Shape.OBJECT: self._object,
            Shape.PRIMITIVE: self._primitive,
        }

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def value(self, hint: Any, data: object, path: str) -> object:
        """Decode `data` by `hint`; on a fault, record it and return a neutral value."""
        shape, inner = shape_of(hint)
        return self._readers[shape](inner, data, path)

    def _constrained(self, args: tuple[Any, ...], data: object, path: str) -> object:
        hint, *marks = args
        before = len(self.faults)
        value = self.value(hint, data, path)
        constraints = [mark for mark in marks if hasattr(mark, "faults")]
        if isinstance(value, tuple) or len(self.faults) == before:
            found = [
                f for mark in cast(list[Constraint], constraints) for f in mark.faults(value, path)
            ]
            self.faults.extend(without_echoes(found, self.faults[before:]))
        return value

    def _optional(self, hint: Any, data: object, path: str) -> object:
        return None if data is None else self.value(hint, data, path)

    def _object(self, cls: type, data: object, path: str) -> object:
        fields = fields_of(cls)
        if not isinstance(data, Mapping):
            self.fault(path, f"must be a mapping with {_some(fields)}, not {kind(data)}")
            return neutral(cls)
        if not getattr(cls, "OPEN", False):
            self._unknown(data, fields, path)
        values = {}
        for wire, field in fields.items():
            values[field.name] = self._field(field, data.get(wire), _join(path, wire))
        return cls(**values)

    def _field(self, field: Field, data: object, path: str) -> object:
        if data is None:  # null means absent, as for a field with a default in Kubernetes
            if field.default is None:
                self.fault(path, "is required")
                return neutral(field.hint)
            return field.default()
        before = len(self.faults)
        value = self.value(field.hint, data, path)
        whole = any(fault.path == path for fault in self.faults[before:])
        return field.default() if whole and field.default else value

    def _unknown(self, data: Mapping[Any, object], fields: Mapping[str, Field], path: str) -> None:
        for key in data:
            if isinstance(key, str) and key in fields:
                continue
            guess = did_you_mean(key, fields) if isinstance(key, str) else ""
            self.fault(
                _join(path, key), f"unknown field{guess or f'; known fields are {_some(fields)}'}"
            )

    def _list(self, hint: Any, data: object, path: str) -> object:
        if not isinstance(data, list | tuple):
            self.fault(path, f"must be a list, not {kind(data)}")
            return ()
        return tuple(self.value(hint, entry, f"{path}[{i}]") for i, entry in enumerate(data))

    def _mapping(self, hint: Any, data: object, path: str) -> object:
        if not isinstance(data, Mapping):
            self.fault(path, f"must be a mapping, not {kind(data)}")
            return {}
        values: dict[str, object] = {}
        for key, entry in data.items():
            if isinstance(key, str):
                values[key] = self.value(hint, entry, _join(path, key))
            else:
                self.fault(_join(path, key), f"the key must be a string, not {kind(key)}")
        return values

    def _opaque(self, data: object, path: str, depth: int) -> object:
        self.entries += 1
        if depth > MAX_DEPTH or self.entries > MAX_ENTRIES:
            if self.entries <= MAX_ENTRIES + 1:  # once, not for each further entry
                self.fault(path, f"must have at most {MAX_DEPTH} levels and {MAX_ENTRIES} entries")
            return None
        if isinstance(data, Mapping):
            for key in data:
                if not isinstance(key, str):
                    self.fault(_join(path, key), f"the key must be a string, not {kind(key)}")
            items = ((key, entry) for key, entry in data.items() if isinstance(key, str))
            return {k: self._opaque(entry, _join(path, k), depth + 1) for k, entry in items}
        if isinstance(data, list | tuple):
            return [self._opaque(e, f"{path}[{i}]", depth + 1) for i, e in enumerate(data)]
        if data is None or isinstance(data, bool | int | str):
            return data
        if isinstance(data, float) and isfinite(data):
            return data
        self.fault(path, f"{show(data)} is not JSON")
        return None

    def _enum(self, cls: type[Enum], data: object, path: str) -> object:
        allowed = {str(member.value): member for member in cls}
        if isinstance(data, str) and data in allowed:
            return allowed[data]
        guess = did_you_mean(data, allowed) if isinstance(data, str) else ""
        self.fault(path, f"must be one of {', '.join(allowed)}, not {show(data)}{guess}")
        return neutral(cls)

    def _scalar(self, cls: type[Scalar], data: object, path: str) -> object:
        try:
            return cls.from_plain(data)
        except ValueError as error:
            self.fault(path, str(error))
            return neutral(cls)

    def _primitive(self, cls: type, data: object, path: str) -> object:
        if cls is float and isinstance(data, int | float) and not isinstance(data, bool):
            number = _finite(data)
            if number is not None:
                return number
        elif isinstance(data, cls) and (cls is bool or not isinstance(data, bool)):
            return data
        self.fault(path, f"must be {_WORDS[cls]}, not {show(data)}{_quotes(cls, data)}")
        return neutral(cls)


_WORDS: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
}


def neutral(hint: Any) -> object:
    """A value that replaces an invalid one: empty, zero, the first enum member, or the example."""
    shape, inner = shape_of(hint)
    makers: Mapping[Shape, Callable[[], object]] = {
        Shape.CONSTRAINED: lambda: neutral(inner[0]),
        Shape.OPTIONAL: lambda: None,
        Shape.LIST: tuple,
        Shape.MAPPING: dict,
        Shape.OPAQUE: lambda: None,
        Shape.ENUM: lambda: next(iter(inner)),
        Shape.SCALAR: lambda: inner.from_plain(inner.EXAMPLE),
        Shape.OBJECT: lambda: _neutral_object(inner),
        Shape.PRIMITIVE: inner,
    }
    return makers[shape]()


def _neutral_object(cls: Any) -> object:
    fields = fields_of(cls).values()
    return cls(**{f.name: f.default() if f.default else neutral(f.hint) for f in fields})


def _finite(data: float) -> float | None:
    try:
        number = float(data)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _quotes(cls: type, data: object) -> str:
    if cls is str and isinstance(data, int | float | bool):
        return '; put it in quotes ("…")'
    if cls in (int, float) and isinstance(data, str) and data.strip().lstrip("-").isdigit():
        return "; drop the quotes"
    return ""


def _join(path: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier() and len(key) <= 64:
        return f"{path}.{key}" if path else key
    return f"{path}[{show(key)}]"


def _some(fields: Mapping[str, Field]) -> str:
    names = list(fields)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
