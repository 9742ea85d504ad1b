"""Faults: what is wrong, where, and how to mend it. Values, never exceptions, so that all come at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

_SHOWN: Final = 60  # characters of a faulty value that a message repeats
_GUESSED: Final = 80  # a longer name is no slip of the finger, and comparing it costs its length


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a document."""

    path: str
    """Like `spec.engine.replicas` or `spec.clients[2].name`; empty for the document itself."""
    message: str
    about: tuple[str, ...] = ()
    """Other paths that a rule compared; where one of them is faulty itself, this fault may be its echo."""
    kept: bool = False
    """The value is what was given, so that nothing which compares it is an echo of this."""

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.message}"


def show(value: object) -> str:
    """A value for a message: short, on one line, whatever it is (a huge int has no `repr`)."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a huge number"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…")
    if isinstance(value, int | float):
        return repr(value)
    return kind(value)


def kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return names.get(type(value), f"a value of type {type(value).__name__}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where some known word is close, else nothing."""
    if len(word) > _GUESSED:
        return ""
    by_fold = {name.casefold(): name for name in known if name.isprintable()}
    close = get_close_matches(word.casefold().replace("_", ""), by_fold, n=1, cutoff=0.6)
    return f"; did you mean {by_fold[close[0]]}?" if close else ""


def without_echoes(found: Iterable[Fault], earlier: Iterable[Fault]) -> Iterator[Fault]:
    """Those of `found` that do not touch anything that `earlier` already calls faulty.

    A rule runs on salvaged values too; where one of its inputs was made up, its verdict says nothing.
    """
    faulty = {fault.path for fault in earlier if not fault.kept}
    holding = {above for path in faulty for above in _ancestors(path)}
    for fault in found:
        touched = (fault.path, *fault.about)
        inside = any(not faulty.isdisjoint((path, *_ancestors(path))) for path in touched)
        if not inside and holding.isdisjoint(touched):
            yield fault


def _ancestors(path: str) -> Iterator[str]:
    while path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
        yield path
