"""Faults: the path of an invalid value and a message with the fix. They are values, so that all are reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

_SHOWN: Final = 60  # characters of an invalid value that a message repeats
_GUESSED: Final = 80  # longest name to compare with known names; the cost grows with its length


@dataclass(frozen=True, slots=True)
class Fault:
    """One invalid value in a document."""

    path: str
    """Such as `spec.engine.replicas` or `spec.clients[2].name`; empty for the document itself."""
    message: str
    about: tuple[str, ...] = ()
    """Other paths that the rule compared. If one of them is invalid, this fault may follow from that."""
    kept: bool = False
    """The value was not replaced, so faults that compare it are real."""

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.message}"


def show(value: object) -> str:
    """Format a value for a message, short and on one line (a huge int has no `repr`)."""
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
    """`; did you mean X?` if a known word is similar, else an empty text."""
    if len(word) > _GUESSED:
        return ""
    by_fold = {name.casefold(): name for name in known if name.isprintable()}
    close = get_close_matches(word.casefold().replace("_", ""), by_fold, n=1, cutoff=0.6)
    return f"; did you mean {by_fold[close[0]]}?" if close else ""


def without_echoes(found: Iterable[Fault], earlier: Iterable[Fault]) -> Iterator[Fault]:
    """Yield the faults of `found` that do not depend on a value that `earlier` reports as invalid.

    Rules also run on salvaged values. If an input of a rule was replaced, its result means nothing.
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
