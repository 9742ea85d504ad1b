"""Both sides of every constraint of the CRDs' schemas, and texts that two readers may take differently.

The objects are derived from the schema: for every constraint of every field, a value just inside and one just outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.crd_documents import GONE, Document, changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Objects on both sides of one constraint of the schema."""

    path: str
    """As Kubernetes writes it."""
    constraint: str
    outside: Document
    inside: Document | None
    """None where any good object is inside."""


def boundaries(document: Document, schema: Mapping[str, Any]) -> Iterator[Boundary]:
    """Of every constraint of every field that `document` has."""
    yield from _boundaries(document, schema["properties"]["spec"], "spec")


def _boundaries(document: Document, node: Mapping[str, Any], path: str) -> Iterator[Boundary]:
    value = _at(document, path)
    for constraint, outside, inside in _sides(node, value):
        yield Boundary(
            path=_kubernetes(path),
            constraint=constraint,
            outside=changed(document, {path: outside}),
            inside=None if inside is GONE else changed(document, {path: inside}),
        )
    for name in node.get("required", ()):
        child = f"{path}.{name}"
        gone = changed(document, {child: GONE})
        yield Boundary(path=_kubernetes(child), constraint="required", outside=gone, inside=None)
    if "properties" in node:
        child = f"{path}.nonsense"
        odd = changed(document, {child: 1})
        yield Boundary(path=_kubernetes(child), constraint="unknown", outside=odd, inside=None)
    for name, part in node.get("properties", {}).items():
        if name in value:
            yield from _boundaries(document, part, f"{path}.{name}")
    if node.get("type") == "array":
        yield from _boundaries(document, node["items"], f"{path}.0")


def _sides(node: Mapping[str, Any], value: Any) -> Iterator[tuple[str, object, object]]:
    """(constraint, a value outside, a value inside or GONE)."""
    wrong = {"string": 5, "integer": "x", "object": "x", "array": "x", "boolean": "x"}
    yield "type", wrong.get(node.get("type", ""), True), GONE
    if "minimum" in node:
        yield "minimum", node["minimum"] - 1, node["minimum"]
        yield "maximum", node["maximum"] + 1, node["maximum"]
    if node.get("type") == "integer":
        yield "integer", 1.5, GONE
    if "enum" in node:
        # Another runtime needs other fields.
        yield "enum", "Nonsense", value if "External" in node["enum"] else node["enum"][-1]
    if "pattern" in node:
        yield "pattern", "\u0007", GONE
    if "minLength" in node:
        yield "minLength", "", "a"
    if "maxLength" in node:
        yield "maxLength", "a" * (node["maxLength"] + 1), "a" * node["maxLength"]
    if "minItems" in node:
        yield "minItems", [], GONE
    keys = node.get("x-kubernetes-list-map-keys", ())
    if keys:
        yield "unique", [value[0], value[0]], GONE
    if "maxItems" in node:
        entries = [_renamed(value[0], keys, i) for i in range(node["maxItems"] + 1)]
        yield "maxItems", entries, entries[:-1]


def _renamed(entry: Any, keys: Sequence[str], number: int) -> Any:
    if not keys:
        return entry
    names: Document = {key: f"n{number}" for key in keys}
    if "secretRef" in entry:  # no two keys may share one
        names["secretRef"] = {"name": "keys", "key": f"n{number}"}
    return {**entry, **names}


NASTY: Final = (
    # Blanks, ends of lines, letters and digits of other scripts.
    *("", " ", "a\n", "\n", "ü", "a\u00a0b", "a\u2028", "\ufeffa", "٣s", "１s", "1٣Gi", "\u007f"),
    # Numbers as some read them.
    *("1", "+1", "-1", "1.5", "1.", ".5", "0x10", "1_0", "007", "1e3", "1E", "1E3", "1e+3", "1e-3"),
    *("1e99", "1E99", "0.0000000001", "999999999999999999", "9223372036854775807", "9Ei", "1e"),
    # Durations, quantities, percentages.
    *("1.5h", "1.s", ".5s", "1h1h", "1us", "1ns", "1d", "1H", "0.0001ms", "2540400h10m10.1s", "0s"),
    *("0.000000001ms", "1 s", "1s ", "1Ki", "1ki", "1gi", "1GiB", "1 Gi", "1u", "1n", "0.1m", "0m"),
    *("5%", "05%", "0%", "100%", "101%", "-1%", "1.5%", "%", "5 %"),
    # Addresses.
    *("http://", "http://a:b", "http://a b", "HTTP://a", "http://a:", "http://a:0", "http://a:080"),
    *("http://[::1", "http://[::1]:1", "http://u:p@a", "http://ü", "http://a/\u0007", "http:/a"),
    *("//a", "http:a", "http://a?b#c", "http://a%zz", "http://a/%zz", "http://:80", "http://a:-1"),
    *(
        "https://a.b/c#d",
        "https://a.b/c",
        "http://a:99999999999999999999",
        "http://[a]",
        "http://a\\b",
        "http://a,b",
        "http://a#c",
    ),
    # Networks.
    *("10.0.0.0/33", "10.0.0.0/8", "10.0.0.0/08", "010.0.0.1", "1.2.3", "::ffff:10.0.0.0/104"),
    *("::ffff:10.0.0.1", "fe80::1%eth0", "::/0", "::1/0", "1::/129", "10.0.0.0/", "/8", "1:2"),
    *("0::0/0", "FD00::/8", "1.2.3.4/32", "::1.2.3.4", "::1.2.3.4/128", "1::2::3"),
    # Names and sources.
    *("A", "a..b", "-a", "a-", "a.b", "a.", "*.a", "*", "*.*.a", "x" * 63, "x" * 64, "a_b", "a/b"),
    *("hf://a/b", "hf://a/b@", "hf://a/b@c", "hf://ü/b", "hf://a/b/c", "hf:/a/b", "hf://a"),
    *("pvc://a", "pvc://a/ b", "pvc://a/ü", "pvc://A", "file:///", "file://a", "file:///a\nb"),
    # What YAML may have meant otherwise.
    *(
        "true",
        "null",
        "~",
        "In",
        "SGLang",
        "--x",
        "--x=1\n2",
        "--",
        "-",
        "--=",
        "--t",
        "--tp",
        "--tp ",
    ),
)
"""Texts that two readers may take differently; in every field that takes a text."""


def texts(document: Document, schema: Mapping[str, Any]) -> Iterator[str]:
    """The paths of every field of `document` that takes a text."""
    yield from _texts(document["spec"], schema["properties"]["spec"], "spec")


def _texts(value: Any, node: Mapping[str, Any], path: str) -> Iterator[str]:
    if node.get("type") == "string" or node.get("x-kubernetes-int-or-string"):
        yield path
    for name, part in node.get("properties", {}).items():
        if name in value:
            yield from _texts(value[name], part, f"{path}.{name}")
    if node.get("type") == "array":
        yield from _texts(value[0], node["items"], f"{path}.0")
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _texts(value["a"], node["additionalProperties"], f"{path}.a")


def _at(document: Document, path: str) -> Any:
    place: Any = document
    for part in path.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    return place


def _kubernetes(path: str) -> str:
    """`spec.clients.0.name` → `spec.clients[0].name`."""
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in path.split(".")).removeprefix(".")
