"""Decoding: every fault with its path and its fix, whatever the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest
from evenkeel_contract.decode import MAX_DEPTH, MAX_ENTRIES, decode, salvage, to_plain
from evenkeel_contract.values import (
    DNS_LABEL,
    Cidr,
    Fault,
    Length,
    Range,
    UniqueBy,
    Url,
    without_echoes,
)


class Colour(Enum):
    RED = "Red"
    DARK_BLUE = "DarkBlue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: Annotated[str, DNS_LABEL]
    weight: Annotated[int, Range(1, 9)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    title: str
    colour: Colour = Colour.RED
    ratio_s: Annotated[float, Range(above=0)] = 0.5
    on_time: bool = False
    parts: Annotated[tuple[Part, ...], UniqueBy(("name",))] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, object] = field(default_factory=dict)
    nested: Part | None = None
    net: Annotated[str, Cidr()] | None = None
    url: Annotated[str, Url(bare=True)] | None = None
    note: Annotated[str, Length(1, 4)] | None = None


GOOD: dict[str, Any] = {
    "title": "t",
    "colour": "DarkBlue",
    "ratioS": 2,
    "onTime": True,
    "parts": [{"name": "a"}, {"name": "b", "weight": 9}],
    "labels": {"app.kubernetes.io/name": "x"},
    "template": {"spec": {"tolerations": [{"key": None}]}},
    "nested": {"name": "n"},
    "net": "10.0.0.0/8",
    "url": "http://127.0.0.1:80",
    "note": "ü",
}


def test_a_good_document_decodes_and_encodes_back_to_itself() -> None:
    value, faults = decode(Whole, GOOD)
    assert faults == ()
    assert value is not None
    assert value.parts == (Part(name="a"), Part(name="b", weight=9))
    assert (value.colour, value.ratio_s, value.on_time) == (Colour.DARK_BLUE, 2.0, True)
    assert decode(Whole, to_plain(value)) == (value, ())


def test_defaults_fill_what_is_absent_or_null() -> None:
    assert decode(Whole, {"title": "t"}) == decode(Whole, {"title": "t", "parts": None})
    assert decode(Whole, {"title": "t"})[0] == Whole(title="t")


CASES: Mapping[str, tuple[Any, list[str]]] = {
    "a scalar instead of the document": (
        3,
        [
            (
                "document: must be a mapping with title, colour, ratioS, onTime, parts, labels, "
                "template, nested, …, not a number"
            )
        ],
    ),
    "a missing required field": ({}, ["title: is required"]),
    "a null required field": ({"title": None}, ["title: is required"]),
    "a misspelt field": (
        {"title": "t", "colr": "Red"},
        ["colr: unknown field; did you mean colour?"],
    ),
    "a field in snake case": (
        {"title": "t", "on_time": True},
        ["on_time: unknown field; did you mean onTime?"],
    ),
    "a key that is no string": (
        {"title": "t", 1: 2},
        [
            (
                "[1]: unknown field; known fields are title, colour, ratioS, onTime, parts, labels, "
                "template, nested, …"
            )
        ],
    ),
    "a number where a string belongs": (
        {"title": 8},
        ['title: must be a string, not 8; put it in quotes ("…")'],
    ),
    "a quoted number where a number belongs": (
        {"title": "t", "parts": [{"name": "a", "weight": "3"}]},
        ["parts[0].weight: must be an integer, not '3'; drop the quotes"],
    ),
    "a fraction where an integer belongs": (
        {"title": "t", "nested": {"name": "a", "weight": 1.5}},
        ["nested.weight: must be an integer, not 1.5"],
    ),
    "a boolean where an integer belongs": (
        {"title": "t", "nested": {"name": "a", "weight": True}},
        ["nested.weight: must be an integer, not true"],
    ),
    "a boolean where a number belongs": (
        {"title": "t", "ratioS": True},
        ["ratioS: must be a finite number, not true"],
    ),
    "an infinite number": (
        {"title": "t", "ratioS": float("inf")},
        ["ratioS: must be a finite number, not inf"],
    ),
    "a number too large for a float": (
        {"title": "t", "ratioS": 10**5000},
        ["ratioS: must be a finite number, not a huge number"],
    ),
    "a string where a boolean belongs": (
        {"title": "t", "onTime": "yes"},
        ["onTime: must be true or false, not 'yes'"],
    ),
    "an unknown member of an enum": (
        {"title": "t", "colour": "darkblue"},
        ["colour: must be one of Red, DarkBlue, not 'darkblue'; did you mean DarkBlue?"],
    ),
    "a number out of range": (
        {"title": "t", "nested": {"name": "a", "weight": 10}},
        ["nested.weight: must be from 1 to 9, not 10"],
    ),
    "a number at an excluded bound": (
        {"title": "t", "ratioS": 0},
        ["ratioS: must be above 0, not 0.0"],
    ),
    "a string where a list belongs": (
        {"title": "t", "parts": "a"},
        ["parts: must be a list, not a string"],
    ),
    "a list where a mapping belongs": (
        {"title": "t", "labels": []},
        ["labels: must be a mapping, not a list"],
    ),
    "an entry of the wrong type": (
        {"title": "t", "parts": [{"name": "a"}, None]},
        ["parts[1]: must be a mapping with name, weight, not null"],
    ),
    "a wrong value in a map": (
        {"title": "t", "labels": {"a.b/c": 1}},
        ["""labels['a.b/c']: must be a string, not 1; put it in quotes ("…")"""],
    ),
    "a wrong key in a map": (
        {"title": "t", "labels": {True: "x"}},
        ["labels[true]: the key must be a string, not a boolean"],
    ),
    "a wrong key in an opaque value": (
        {"title": "t", "template": {"spec": {7: "x"}}},
        ["template.spec[7]: the key must be a string, not a number"],
    ),
    "an opaque value that is not JSON": (
        {"title": "t", "template": {"at": object()}},
        ["template.at: a value of type object is not JSON"],
    ),
    "names given twice": (
        {"title": "t", "parts": [{"name": "a"}, {"name": "b"}, {"name": "a"}]},
        ["parts[2].name: 'a' is given twice, first in parts[0]"],
    ),
    "two faulty names, which are not each other's twins": (
        {"title": "t", "parts": [{"name": 1}, {"name": 2}]},
        [
            'parts[0].name: must be a string, not 1; put it in quotes ("…")',
            'parts[1].name: must be a string, not 2; put it in quotes ("…")',
        ],
    ),
    "a bad name": (
        {"title": "t", "nested": {"name": "A b"}},
        [
            (
                "nested.name: must be a name of a-z, 0-9 and '-', that starts and ends with a "
                "letter or digit, not 'A b'"
            )
        ],
    ),
    "a text too long": (
        {"title": "t", "note": "12345"},
        ["note: must have at most 4 bytes, not 5"],
    ),
    "an empty text": ({"title": "t", "note": ""}, ["note: must have at least 1 bytes, not 0"]),
    "a network with host bits": (
        {"title": "t", "net": "10.0.0.1/8"},
        ["net: '10.0.0.1/8' is not a network like 10.0.0.0/8; the network is 10.0.0.0/8"],
    ),
    "no network": ({"title": "t", "net": "lan"}, ["net: 'lan' is not a network like 10.0.0.0/8"]),
    "an address with a path": (
        {"title": "t", "url": "http://h:1/v1"},
        ["url: 'http://h:1/v1' must end after host and port: http://h:1"],
    ),
    "an address of another scheme": (
        {"title": "t", "url": "htp://h"},
        [
            (
                "url: 'htp://h' is not an address like http://host:port or https://host:port; "
                "did you mean http?"
            )
        ],
    ),
    "an address that cannot be split": (
        {"title": "t", "url": "http://[::1"},
        ["url: 'http://[::1' is not an address like http://host:port or https://host:port"],
    ),
    "many faults at once, each named": (
        {"colour": 1, "parts": [{}, {"name": "a", "weight": 0}], "x": 1},
        [
            (
                "x: unknown field; known fields are title, colour, ratioS, onTime, parts, labels, "
                "template, nested, …"
            ),
            "title: is required",
            "colour: must be one of Red, DarkBlue, not 1",
            "parts[0].name: is required",
            "parts[1].weight: must be from 1 to 9, not 0",
        ],
    ),
}


@pytest.mark.parametrize(("data", "want"), CASES.values(), ids=CASES.keys())
def test_faults_name_path_and_fix(data: object, want: list[str]) -> None:
    value, faults = decode(Whole, data)
    assert value is None
    assert [str(fault) for fault in faults] == want


def test_salvage_puts_defaults_in_place_of_what_is_faulty() -> None:
    value, faults = salvage(Whole, {"colour": 1, "parts": [{"weight": 2}], "ratioS": -1})
    assert value == Whole(title="", parts=(Part(name="", weight=2),))
    assert len(faults) == 4


def test_an_endless_opaque_value_is_a_fault() -> None:
    loop: list[object] = []
    loop.append(loop)
    (fault,) = decode(Whole, {"title": "t", "template": {"a": loop}})[1]
    assert fault.message == f"must have at most {MAX_DEPTH} levels and {MAX_ENTRIES} entries"


def test_an_opaque_value_that_multiplies_itself_is_one_fault() -> None:
    level: object = "x"
    for _ in range(20):
        level = [level] * 10
    _, faults = decode(Whole, {"title": "t", "template": {"a": level}})
    assert len(faults) == 1


def test_echoes_of_earlier_faults_are_dropped() -> None:
    earlier = [Fault("a.b[1].c", "bad")]
    found = [
        Fault("a.b[1].c", "same"),
        Fault("a.b[1].c.d", "below"),
        Fault("a.b", "above"),
        Fault("x", "compares", about=("a.b[1]",)),
        Fault("a.b[0].c", "beside"),
    ]
    assert [fault.message for fault in without_echoes(found, earlier)] == ["beside"]
