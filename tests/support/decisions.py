"""Tables of decisions: what a pure part of the product answers to drawn inputs, a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from random import Random
from typing import Any

import msgspec


def draws(seed: int, count: int, **choices: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """So many choices of a value for each name, the same ones each time."""
    rng = Random(seed)
    lists = {name: list(values) for name, values in choices.items()}
    for _ in range(count):
        yield {name: rng.choice(values) for name, values in lists.items()}


def text(value: object) -> str:
    """A value as the tables have it: fields that are not at their default, floats to nine digits."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{text(key)}: {text(one)}' for key, one in value.items())}}}"
    if (members := _members(value)) is not None:
        shown = (f"{name}={text(one)}" for name, one, default in members if one != default)
        return f"({' '.join(shown)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, set | frozenset):
        return f"[{', '.join(sorted(map(text, value)))}]"
    return _plain(value)


def _plain(value: object) -> str:
    match value:
        case None:
            return "-"
        case Enum():
            return str(value.value)
        case float():
            return f"{value:.9g}"
        case datetime():
            return value.strftime("%H:%M:%S")
        case timedelta():
            return f"{value.total_seconds():g}s"
    return str(value)


def _members(value: Any) -> list[tuple[str, object, object]] | None:
    """Name, value and default of the fields of a record; None for what is no record."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(name, getattr(value, name), ()) for name in value._fields]
    if isinstance(value, msgspec.Struct):
        listed: Iterable[Any] = msgspec.structs.fields(value)
    elif is_dataclass(value):
        listed = fields(value)
    else:
        return None
    return [(one.name, getattr(value, one.name), one.default) for one in listed]


def row(given: Mapping[str, object], answer: object) -> str:
    """One line: what was given, and the answer."""
    return f"{' '.join(f'{name}={text(value)}' for name, value in given.items())} => {text(answer)}"
