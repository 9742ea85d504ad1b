"""JSON by a schema: every instance is valid, equal for equal seeds, or the schema is refused with a reason."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from evenkeel_simulator.server.patterns import UnsupportedPattern, text_by_pattern
from evenkeel_simulator.server.structured import ANY_OBJECT, Schema, SchemaError, write_json
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

SEEDS = range(40)
TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "children", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}

SCHEMAS: list[Schema] = [
    True,
    {},
    ANY_OBJECT,
    {"type": "object"},
    {"const": {"a": [1, None]}},
    {"enum": ["a", 1, None]},
    {"type": ["string", "null"]},
    {"type": "integer", "minimum": -3, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
    {"type": "integer", "minimum": 2**62},
    {"type": "integer", "multipleOf": 7, "minimum": 50, "maximum": 60},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "number", "maximum": -5},
    {"type": "string", "minLength": 30, "maxLength": 31},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}(\.(jpg|png))?$"},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 12, "maxLength": 20},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "string"}, {"const": 1}], "items": False},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^n_": {"type": "null"}}, "required": ["n_1"]},
    {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1},
    {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    {"anyOf": [{"required": ["a"]}, {}], "properties": {"a": False, "b": {}}},
    {"allOf": [{"minimum": 3}, {"type": "integer", "maximum": 4}]},
    {
        "allOf": [
            {"properties": {"a": {"minimum": 1}}, "required": ["a"]},
            {"properties": {"a": {"type": "integer", "maximum": 2}, "b": {"type": "string"}}},
        ]
    },
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 0.5, "maximum": 3.5}]},
    {"anyOf": [False, {"const": 1}]},
    {"type": "integer", "not": {"const": 0}, "minimum": 0, "maximum": 1},
    {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}},
    TREE,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_every_instance_is_valid(schema: Schema) -> None:
    validator = Draft202012Validator(schema)
    for seed in SEEDS:
        validator.validate(json.loads(write_json(schema, Random(seed))))


@pytest.mark.parametrize(
    "name",
    ["date", "date-time", "time", "duration", "uuid", "email", "ipv4", "ipv6", "uri", "hostname"],
)
def test_formats_are_kept(name: str) -> None:
    shapes = {
        "date": r"\d{4}-\d\d-\d\d",
        "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
        "time": r"\d\d:\d\d:\d\dZ",
        "duration": r"PT\d+M",
        "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
        "email": r"\w+\.\d+@example\.com",
        "ipv4": r"192\.0\.2\.\d+",
        "ipv6": r"2001:db8::\d+",
        "uri": r"https://example\.com/\w+/\d+",
        "hostname": r"\w+-\d+\.example\.com",
    }
    for seed in SEEDS:
        value = json.loads(write_json({"type": "string", "format": name}, Random(seed)))
        assert re.fullmatch(shapes[name], value)
        Draft202012Validator(
            {"format": name}, format_checker=Draft202012Validator.FORMAT_CHECKER
        ).validate(value)


REFUSED: list[tuple[Any, str]] = [
    (False, "`false` has no instance"),
    ({"type": 5}, "the schema is invalid"),
    ({"$schema": []}, "$schema is not a string"),
    ({"enum": []}, "enum without values"),
    ({"not": {}}, "found no instance"),
    ({"$ref": "#"}, "nested too deeply"),
    ({"$ref": "#/$defs/none"}, "points to nothing"),
    ({"$ref": "https://example.com/a"}, "only references within the schema"),
    (
        {"anyOf": [{"$ref": "https://example.com/a"}, {"type": "integer", "minimum": 1}]},
        "https://example.com/a",
    ),
    ({"$ref": "#/title", "title": "a"}, "points to no schema"),
    ({"type": "string", "pattern": "(?=a)b"}, "the pattern uses assert"),
    ({"type": "string", "pattern": "a{5000}"}, "more than 2000 characters"),
    ({"type": "string", "minLength": 10**9}, "parts"),
    ({"type": "array", "minItems": 10**9}, "parts"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "minItems is greater"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no number is within"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "exclude each other"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_a_schema_that_cannot_be_written_is_refused_with_the_reason(
    schema: Any, reason: str
) -> None:
    with pytest.raises(SchemaError, match=re.escape(reason)):
        write_json(schema, Random(1))


def test_equal_seeds_write_equal_texts_and_others_do_not() -> None:
    texts = [write_json(TREE, Random(seed)) for seed in SEEDS]
    assert texts == [write_json(TREE, Random(seed)) for seed in SEEDS]
    assert len(set(texts)) > len(SEEDS) // 2


NAMES = st.sampled_from(["a", "b", "c", "d e"])
LEAVES = st.one_of(
    st.builds(
        lambda low, size, kind: {"type": kind, "minimum": low, "maximum": low + size},
        st.integers(-50, 50),
        st.integers(1, 20),
        st.sampled_from(["integer", "number"]),
    ),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 12),
        st.integers(0, 12),
    ),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["integer", "null"]},
            {"type": "string", "format": "date"},
            {"type": "string", "pattern": r"^\d{2}[a-f]*$"},
            {"$ref": "#/$defs/shared"},
        ]
    ),
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.none()), min_size=1).map(
        lambda values: {"enum": values}
    ),
)


def nested(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.builds(
        lambda properties, required, closed: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            "additionalProperties": not closed,
        },
        st.dictionaries(NAMES, children, max_size=4),
        st.sets(NAMES),
        st.booleans(),
    )
    arrays = st.builds(
        lambda items, least, more: {
            "type": "array",
            "items": items,
            "minItems": least,
            "maxItems": least + more,
        },
        children,
        st.integers(0, 3),
        st.integers(0, 3),
    )
    choices = st.lists(children, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
    return st.one_of(objects, arrays, choices)


@given(st.recursive(LEAVES, nested, max_leaves=12), st.integers(0, 2**32))
def test_any_schema_of_the_subset_gets_a_valid_instance(schema: dict[str, Any], seed: int) -> None:
    whole = {**schema, "$defs": {"shared": {"type": "object", "properties": {"a": {}}}}}
    Draft202012Validator(whole).validate(json.loads(write_json(whole, Random(seed))))


KEYWORDS = st.sampled_from(
    ["type", "enum", "items", "properties", "required", "minimum", "maximum", "multipleOf", "minItems",
     "pattern", "anyOf", "allOf", "$ref", "$defs", "minLength", "maxLength", "prefixItems", "not",
     "additionalProperties", "patternProperties", "maxProperties", "uniqueItems", "contains", "$id",
     "$schema"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["#", "#/$defs/a", "string", "object", "array", "integer", "[", "a+", ""]),
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(st.one_of(KEYWORDS, NAMES), children, max_size=4),
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, ANYTHING, max_size=5), st.integers(0, 10))
def test_any_json_is_a_schema_with_a_valid_instance_or_is_refused(schema: Any, seed: int) -> None:
    try:
        value = write_json(schema, Random(seed))
    except SchemaError as error:
        assert str(error)
    else:
        assert Draft202012Validator(schema, registry=Registry()).is_valid(json.loads(value))


@pytest.mark.parametrize(
    "pattern",
    ["", "abc", "^a?b*c+$", r"\w\d\s\S\D\W", "[^a-z]", "[^a]b.", "(x|yz){2,3}?", "[\\-é]", "a{,2}"],
)
def test_a_text_by_a_pattern_matches_it(pattern: str) -> None:
    for seed in SEEDS:
        assert re.match(pattern, text_by_pattern(pattern, Random(seed)))


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?!a)", r"[^\s\S]"])
def test_a_pattern_that_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        text_by_pattern(pattern, Random(1))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$", "enum": ["a" * 40 + "!"]},
        {"type": "string", "allOf": [{"pattern": "^a{40,60}$"}, {"pattern": "^(a+)+b$"}]},
    ],
)
def test_a_pattern_that_takes_exponential_time_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="simplify its patterns"):
        write_json(schema, Random(1))
