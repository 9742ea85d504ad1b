"""JSON by a client's schema: an instance chosen by chance that the schema accepts.

The writer walks the schema and draws a value for each part. What it does not read (`not`, `if`, `contains` beyond its first
item) is left to chance, so every instance is checked by `jsonschema` and drawn again if it fails. A schema for which no draw
succeeds is refused; the simulator never sends an instance that its schema rejects.
"""

from __future__ import annotations

import json
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from jsonschema import SchemaError as InvalidSchema
from jsonschema import validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from evenkeel_simulator.server.patterns import UnsupportedPattern, text_by_pattern

Schema = Mapping[str, Any] | bool

ANY_OBJECT: Final[Schema] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
"""What the simulator writes for `json_object`, which fixes no keys."""

_DRAWS: Final = 20
_DEEP: Final = 4
"""Depth from which an instance gets no optional parts, so that recursive schemas end."""
_MAX_DEPTH: Final = 40
_MAX_PARTS: Final = 10_000
"""Parts and characters of one instance."""
_CPU_LIMIT_S: Final = 0.5
"""Processor time of one instance: some patterns take exponential time, and every other request of the replica waits."""
_SPREAD: Final = 100
"""Numbers with one bound, or none, are drawn from a range of this size."""
_WORDS: Final = (
    *("sea", "sky", "oar", "dam", "net", "cod", "fog", "ice", "bay"),
    *("sun", "oil", "cat", "hay", "day", "end", "way", "red", "low"),
)


class SchemaError(ValueError):
    """The simulator cannot write JSON by this schema; the message says why."""


class _TooLarge(SchemaError):
    """No further draw is worth its time."""


def write_json(schema: Schema, rng: Random) -> str:
    """The text of an instance of `schema`. Raises `SchemaError`."""
    if not isinstance(schema, bool) and not isinstance(schema.get("$schema", ""), str):
        raise SchemaError("the schema is invalid: $schema is not a string")
    try:
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        kind.check_schema(schema)  # type: ignore[arg-type]  # a boolean is a schema too
        # An empty registry, because the default one would fetch references from the network.
        accepts = kind(schema, registry=Registry()).is_valid
        with _cpu_limit():
            value = _accepted(schema, rng, accepts)
    except InvalidSchema as error:
        raise SchemaError(f"the schema is invalid: {error.message}") from error
    except (UnsupportedPattern, Unresolvable, re.error, RecursionError, OverflowError) as error:
        raise SchemaError(f"the simulator cannot write JSON by this schema: {error}") from error
    return json.dumps(value, ensure_ascii=False)


def _accepted(schema: Schema, rng: Random, accepts: Callable[[Any], bool]) -> Any:
    fault = SchemaError(f"the simulator found no instance of this schema in {_DRAWS} draws")
    for _ in range(_DRAWS):
        try:
            value = _Writer(schema, rng).value(schema, 0)
        except _TooLarge:
            raise
        except SchemaError as error:  # another draw may take another branch
            fault = error
            continue
        if accepts(value):
            return value
    raise fault


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise `_TooLarge` after `_CPU_LIMIT_S` of the process's CPU time, also within `re`. No limit outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLarge(
            f"writing JSON by this schema takes over {_CPU_LIMIT_S} s; simplify its patterns"
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _Writer:
    """Draws one instance of a schema."""

    def __init__(self, root: Schema, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._parts_left = _MAX_PARTS

    def value(self, schema: Schema, depth: int) -> Any:
        flat = self._flat(schema, depth)
        if "const" in flat:
            return flat["const"]
        if "enum" in flat:
            if not flat["enum"]:
                raise SchemaError("an enum without values has no instance")
            return self._rng.choice(flat["enum"])
        return self._of_type(self._type(flat, depth), flat, depth)

    def _of_type(self, kind: str, flat: Mapping[str, Any], depth: int) -> Any:
        match kind:
            case "object":
                return self._object(flat, depth)
            case "array":
                return self._array(flat, depth)
            case "integer" | "number":
                return self._number(flat, step=1 if kind == "integer" else None)
            case "boolean" | "null":
                return None if kind == "null" else self._rng.random() < 0.5
        return self._string(flat)

    # Keywords of one place, after references and combinations

    def _flat(self, schema: Schema, depth: int) -> dict[str, Any]:
        self._take(1)
        if depth > _MAX_DEPTH:
            raise SchemaError("every instance of this schema is nested too deeply")
        if isinstance(schema, bool):
            if not schema:
                raise SchemaError("the schema `false` has no instance")
            return {}
        flat = dict(schema)
        parts: list[Schema] = list(flat.pop("allOf", ()))
        if "$ref" in flat:
            parts.append(self._resolved(flat.pop("$ref")))
        for choice in ("anyOf", "oneOf"):
            if choice in flat:
                parts.append(self._branch(flat.pop(choice), depth))
        for part in parts:
            flat = _merged(flat, self._flat(part, depth + 1))
        return flat

    def _resolved(self, reference: str) -> Schema:
        if not reference.startswith("#"):
            raise SchemaError(f"$ref {reference!r}: only references within the schema are followed")
        found: Any = self._root
        for name in filter(None, reference[1:].split("/")):
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise SchemaError(f"$ref {reference!r} points to nothing")
        if not isinstance(found, Mapping | bool):
            raise SchemaError(f"$ref {reference!r} points to no schema")
        return found

    def _branch(self, branches: Sequence[Schema], depth: int) -> Schema:
        if depth < _DEEP:
            return self._rng.choice(branches)
        return min(
            branches, key=lambda branch: ("$ref" in json.dumps(branch), len(json.dumps(branch)))
        )

    def _type(self, flat: Mapping[str, Any], depth: int) -> str:
        given = _types(flat)
        if given is None:
            return next((kind for keyword, kind in _TYPE_BY_KEYWORD if keyword in flat), "string")
        if not given:
            raise SchemaError("the types of combined schemas exclude each other")
        if "null" in given and len(given) > 1:
            if depth >= _DEEP or self._rng.random() < 0.2:
                return "null"
            given = [kind for kind in given if kind != "null"]
        return self._rng.choice(given)

    # Values by type

    def _object(self, flat: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties: Mapping[str, Schema] = flat.get("properties", {})
        required: list[str] = flat.get("required", [])
        least = max(flat.get("minProperties", 0), len(required))
        most = flat.get("maxProperties", math.inf)
        optional = [
            name for name in properties if name not in required and properties[name] is not False
        ]
        self._rng.shuffle(optional)
        wanted = sum(self._rng.random() < 0.7 for _ in optional) if depth < _DEEP else 0
        room = min(max(wanted, least - len(required)), most - len(required))
        chosen = {*required, *optional[: max(0, int(room))]}
        names = [name for name in properties if name in chosen]
        names += [name for name in required if name not in properties]
        free = flat.get("additionalProperties", True)
        if not names and isinstance(free, Mapping) and depth < _DEEP and most > 0:
            least = max(least, 1)  # a map: an empty one would say little
        while len(names) < least:
            names.append(f"{self._rng.choice(_WORDS)}_{len(names)}")
        return {name: self.value(_property_schema(flat, name, free), depth + 1) for name in names}

    def _array(self, flat: Mapping[str, Any], depth: int) -> list[Any]:
        rest: Any = flat.get("items", True)
        first: list[Schema] = list(flat.get("prefixItems", ()))
        if isinstance(rest, list):  # drafts before 2020-12
            first, rest = rest, flat.get("additionalItems", True)
        least = flat.get("minItems", 0)
        if "contains" in flat and not first:
            first = [{"allOf": [flat["contains"], rest]}]
            least = max(least, 1)
        usual = max(least, len(first))
        most = usual if depth >= _DEEP or rest is False else usual + 2
        most = min(most, flat.get("maxItems", most))
        if least > most:
            raise SchemaError("minItems is greater than maxItems")
        length = self._rng.randint(max(least, min(1, most)), most)
        made: list[Any] = []
        for index in range(length):
            schema = first[index] if index < len(first) else rest
            item = self.value(schema, depth + 1)
            for _ in range(_DRAWS if flat.get("uniqueItems") else 0):
                if item not in made:
                    break
                item = self.value(schema, depth + 1)
            if not (flat.get("uniqueItems") and item in made and len(made) >= least):
                made.append(item)
        return made

    def _string(self, flat: Mapping[str, Any]) -> str:
        least, most = flat.get("minLength", 0), flat.get("maxLength", math.inf)
        if "pattern" in flat:
            return self._by_pattern(flat["pattern"], least, most)
        if flat.get("format") in _FORMATS:
            return self._formatted(flat["format"])
        self._take(least)
        text = " ".join(self._rng.choice(_WORDS) for _ in range(self._rng.randint(1, 6)))
        while len(text) < least:
            text += f" {self._rng.choice(_WORDS)}"
        if len(text) > most:
            text = text[: int(most)]
            text = text[:-1] + "a" if text.endswith(" ") else text
        return text

    def _by_pattern(self, pattern: str, least: int, most: float) -> str:
        text = ""
        for _ in range(_DRAWS):
            text = text_by_pattern(pattern, self._rng, longest=min(max(2 * least, 8), 1000))
            self._take(len(text))
            if least <= len(text) <= most:
                break
        return text

    def _formatted(self, name: str) -> str:
        rng = self._rng
        day = date(2020, 1, 1) + timedelta(days=rng.randrange(3650))
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}Z"
        values = {
            "word": rng.choice(_WORDS),
            "number": rng.randrange(1, 255),
            "day": day.isoformat(),
            "clock": clock,
            "uuid": UUID(int=rng.getrandbits(128), version=4),
        }
        return _FORMATS[name].format_map(values)

    def _number(self, flat: Mapping[str, Any], *, step: int | None) -> float:
        low, high = _bounds(flat)
        every = flat.get("multipleOf", step)
        if every is not None:
            if step is not None and every != int(every):
                every = step  # an integer that is a multiple of a fraction: left to the check
            first, last = int(-(-low // every)), int(high // every)
            first += flat.get("exclusiveMinimum") == first * every
            last -= flat.get("exclusiveMaximum") == last * every
            if first > last:
                raise SchemaError("no number is within the schema's bounds")
            drawn = self._rng.randint(first, last) * every
            return int(drawn) if step is not None else drawn
        drawn = low + (high - low) * self._rng.uniform(0.05, 0.95)
        rounded = round(drawn, 2)
        return rounded if low < rounded < high else drawn

    def _take(self, parts: int) -> None:
        self._parts_left -= parts
        if self._parts_left < 0:
            raise _TooLarge(f"an instance of this schema has more than {_MAX_PARTS} parts")


_TYPE_BY_KEYWORD: Final = (
    ("properties", "object"),
    ("required", "object"),
    ("additionalProperties", "object"),
    ("items", "array"),
    ("prefixItems", "array"),
    ("minItems", "array"),
    ("minimum", "number"),
    ("maximum", "number"),
    ("multipleOf", "number"),
)
"""The type of a schema that names none, by the first keyword that it has."""

_FORMATS: Final = {
    "date": "{day}",
    "date-time": "{day}T{clock}",
    "time": "{clock}",
    "duration": "PT{number}M",
    "uuid": "{uuid}",
    "email": "{word}.{number}@example.com",
    "hostname": "{word}-{number}.example.com",
    "uri": "https://example.com/{word}/{number}",
    "uri-reference": "/{word}/{number}",
    "ipv4": "192.0.2.{number}",
    "ipv6": "2001:db8::{number}",
}
"""Format → instances of it. Other formats are annotations only, as JSON Schema allows."""


def _types(flat: Mapping[str, Any]) -> list[str] | None:
    given = flat.get("type")
    return [given] if isinstance(given, str) else given


def _property_schema(flat: Mapping[str, Any], name: str, free: Schema) -> Schema:
    found = [
        schema
        for pattern, schema in flat.get("patternProperties", {}).items()
        if re.search(pattern, name)
    ]
    if name in flat.get("properties", {}):
        found.append(flat["properties"][name])
    return {"allOf": found} if found else free


def _bounds(flat: Mapping[str, Any]) -> tuple[float, float]:
    """Least and greatest; an exclusive bound counts as a bound."""
    lows = [flat[name] for name in ("minimum", "exclusiveMinimum") if name in flat]
    highs = [flat[name] for name in ("maximum", "exclusiveMaximum") if name in flat]
    low = max(lows) if lows else min([0, *(high - _SPREAD for high in highs)])
    high = min(highs) if highs else max(low + _SPREAD, 0)
    return low, high


def _merged(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that both schemas' instances must follow; what cannot be combined is left to the check."""
    merged = dict(one)
    for keyword, value in other.items():
        if keyword not in merged:
            merged[keyword] = value
            continue
        before = merged[keyword]
        if keyword == "properties":
            both = before.keys() & value.keys()
            merged[keyword] = {
                **before,
                **value,
                **{name: {"allOf": [before[name], value[name]]} for name in both},
            }
        elif keyword == "required":
            merged[keyword] = list(dict.fromkeys([*before, *value]))
        elif keyword == "enum":
            merged[keyword] = [item for item in before if item in value] or before
        elif keyword == "type":
            merged[keyword] = _common_types(_types(merged) or [], _types(other) or [])
        elif keyword.startswith(("min", "exclusiveMin")):
            merged[keyword] = max(before, value)
        elif keyword.startswith(("max", "exclusiveMax")):
            merged[keyword] = min(before, value)
        elif keyword in ("items", "additionalProperties") and before != value:
            merged[keyword] = {"allOf": [before, value]}
    return merged


def _common_types(one: Sequence[str], other: Sequence[str]) -> list[str]:
    both = [kind for kind in one if kind in other]
    if not both and "integer" in (*one, *other) and "number" in (*one, *other):
        return ["integer"]
    return both
