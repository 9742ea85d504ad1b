"""The page of RouterConfig, from its dataclasses and the docstrings of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evenkeel_contract.crd.schema import field_docs
from evenkeel_contract.decode import Field, Shape, fields_of, shape_of, to_plain
from evenkeel_contract.routerconfig import PoolConfig, RouterConfig
from evenkeel_contract.values import Length, Range

from docs.generate.pages import bounds, code, codes, entry, page


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the pages."""
    intro = (
        "After this page you can read the configuration of a router. It is a JSON document, which the operator and "
        "`evenkeel up` write. Durations are seconds, and sizes are bytes. The router reloads the document after a change."
    )
    fields = list(_fields(RouterConfig, ""))
    tenancy = [field for field in fields if field.startswith("## `tenancy.")]
    fleet = [field for field in fields if field.startswith(("## `replicas", "## `cluster"))]
    pools = [field for field in fields if field.startswith("## `pools")]
    rest = [field for field in fields if field not in (*tenancy, *fleet, *pools)]
    yield "reference/router-config.md", page("RouterConfig", intro, *rest)
    intro = "After this page you can read the replicas in the [configuration of a router](router-config.md)."
    yield "reference/router-config-fleet.md", page("RouterConfig: replicas", intro, *fleet)
    intro = "After this page you can read the tenants in the [configuration of a router](router-config.md)."
    yield "reference/router-config-tenancy.md", page("RouterConfig: tenancy", intro, *tenancy)
    intro = (
        "After this page you can read the services in the [configuration of a router](router-config.md) of several. Fields below "
        "those of a pool are those of the same field of the whole configuration."
    )
    yield "reference/router-config-pools.md", page("RouterConfig: pools", intro, *pools)


def _fields(cls: type, path: str) -> Iterator[str]:
    docs, shared = field_docs(cls), field_docs(RouterConfig) if cls is PoolConfig else {}
    for wire, field in fields_of(cls).items():
        where = f"{path}{wire}"
        kind, inner = _kind(field.hint)
        about = docs.get(field.name) or shared.get(field.name, "")
        about = about or " ".join((inner.__doc__ or "").split() if inner else ())
        yield entry(code(where), f"*{kind}{_default(field)}*", about, level=2)
        if inner is not None and cls is not PoolConfig:
            is_list = kind.startswith("list")
            yield from _fields(inner, f"{where}{'[]' if is_list else ''}.")


def _kind(hint: Any) -> tuple[str, type | None]:
    """The type in words, and the dataclass of an object or of a list's entries."""
    shape, inner = shape_of(hint)
    match shape:
        case Shape.CONSTRAINED:
            words, cls = _kind(inner[0])
            bounds = "".join(_bounds(mark) for mark in inner[1:])
            return words + bounds, cls
        case Shape.OPTIONAL:
            words, cls = _kind(inner)
            return f"{words}, optional", cls
        case Shape.LIST:
            words, cls = _kind(inner)
            return f"list of {words}", cls
        case Shape.ENUM:
            return f"one of {codes(member.value for member in inner)}", None
        case Shape.OBJECT:
            return "object", inner
        case _:
            return {"str": "string", "int": "integer", "float": "number"}[inner.__name__], None


def _bounds(mark: object) -> str:
    if isinstance(mark, Range):
        return (
            f" above {mark.above:g}"
            if mark.above is not None
            else bounds(mark.minimum, mark.maximum)
        )
    if isinstance(mark, Length) and mark.maximum is not None:
        return f", at most {mark.maximum} long"
    return ""


def _default(field: Field) -> str:
    if field.default is None:
        return ", required"
    plain = to_plain(field.default())
    return f", default {code(plain)}" if isinstance(plain, str | int | float) else ""
