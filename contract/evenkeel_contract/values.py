"""Single values of a document: text formats with their numbers, constraints, and the fault of an invalid value.

A fault is a value with a path and a message that names the fix, so all faults are reported at once. A constraint
checks one value that has the right type; `decode` and the CRD generator read constraints from `typing.Annotated`.
A check of two fields is a rule in `validate`.

Durations, quantities and percentages have the text format of Kubernetes. Each keeps its text and writes the same text
again. Two values are equal if their texts are equal (`2m` differs from `120s`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fractions import Fraction
from ipaddress import ip_network
from math import ceil
from types import NoneType
from typing import ClassVar, Final, Protocol, Self
from urllib.parse import urlsplit

_SHOWN: Final = 60  # characters of an invalid value that a message repeats
_GUESSED: Final = 80  # longest name to compare with known names; the cost grows with its length


@dataclass(frozen=True, slots=True)
class Fault:
    """One invalid value in a document."""

    path: str
    """Path of the value, such as `spec.engine.replicas` or `spec.clients[2].name`; empty for the document itself."""
    message: str
    about: tuple[str, ...] = ()
    """Other paths that the rule compared. If one of them is invalid, this fault may follow from that."""
    kept: bool = False
    """The value was not replaced, so faults that compare it are real."""

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.message}"


def show(value: object) -> str:
    """Format a value for a message, short and on one line (a huge int has no `repr`)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…")
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"
    return repr(value) if isinstance(value, int | float) else kind(value)


_KINDS: Final = (
    (NoneType, "null"), (bool, "a boolean"), (int | float, "a number"), (str, "a string"),
    (list | tuple, "a list"), (dict, "a mapping"),
)  # fmt: skip


def kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = (name for types, name in _KINDS if isinstance(value, types))
    return next(names, f"a value of type {type(value).__name__}")


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


_MAX_DURATION_S: Final = 100 * 365 * 24 * 3600
# Kubernetes reduces larger values to this one, so it is not valid itself.
_MAX_QUANTITY: Final = 2**63 - 1
MAX_TEXT: Final = 64  # characters of any value
_DIGITS: Final = r"[0-9]{1,18}"

_DURATION_PART: Final = re.compile(rf"({_DIGITS}(?:\.[0-9]{{1,9}})?)(ms|s|m|h)")
_DURATION: Final = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_NANOSECONDS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}

_QUANTITY: Final = re.compile(
    rf"({_DIGITS}(?:\.[0-9]{{1,9}})?)([KMGTPE]i|[mkMGTPE]|[eE][0-9]{{1,2}})?"
)
_FACTORS: Final = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}

_PERCENT: Final = re.compile(r"(100|[1-9]?[0-9])%")


@dataclass(frozen=True, slots=True)
class Spelled:
    """A value with a text format of its own."""

    text: str | int

    def to_plain(self) -> str | int:
        """The text, or the number, that was read."""
        return self.text


@dataclass(frozen=True, slots=True)
class Duration(Spelled):
    """A length of time above zero, in Go's format: `120s`, `1500ms`, `1h30m`."""

    EXAMPLE: ClassVar[str] = "120s"
    PATTERN: ClassVar[str] = _DURATION.pattern
    seconds: float

    @classmethod
    def from_plain(cls, data: object) -> Self:
        match = isinstance(data, str) and len(data) <= MAX_TEXT and _DURATION.fullmatch(data)
        if not isinstance(data, str) or not match:
            raise ValueError(f"must be a duration such as 120s, 1500ms or 5m, not {show(data)}")
        parts = _DURATION_PART.findall(data)
        # As in Go: each part is rounded down to whole nanoseconds.
        nanoseconds = sum(int(Fraction(number) * _NANOSECONDS[unit]) for number, unit in parts)
        if not 0 < nanoseconds <= _MAX_DURATION_S * 10**9:
            raise ValueError(f"must be above 0 and at most 100 years, not {show(data)}")
        return cls(data, nanoseconds / 10**9)


@dataclass(frozen=True, slots=True)
class Quantity(Spelled):
    """A number above zero with a Kubernetes suffix: `16Mi`, `100Gi`, `500m`, `3`."""

    EXAMPLE: ClassVar[str] = "16Mi"
    PATTERN: ClassVar[str] = _QUANTITY.pattern
    value: Fraction

    @classmethod
    def from_plain(cls, data: object) -> Self:
        number = isinstance(data, int) and not isinstance(data, bool) and data.bit_length() < 64
        match = _QUANTITY.fullmatch(str(data)) if number or isinstance(data, str) else None
        if not isinstance(data, str | int) or match is None:
            raise ValueError(f"must be a quantity such as 16Mi, 100Gi or 500m, not {show(data)}")
        digits, suffix = match[1], match[2] or ""
        factor = _FACTORS.get(suffix) or Fraction(10) ** int(suffix[1:])
        value = Fraction(digits) * factor
        if not 0 < value < _MAX_QUANTITY:
            raise ValueError(f"must be above 0 and below 2^63, not {show(data)}")
        return cls(data, value)

    @property
    def whole(self) -> int:
        """The value rounded up to an integer, as Kubernetes does."""
        return ceil(self.value)


@dataclass(frozen=True, slots=True)
class CountOrPercent(Spelled):
    """A whole number (`3`) or a percentage (`50%`)."""

    EXAMPLE: ClassVar[str] = "50%"
    PATTERN: ClassVar[str] = _PERCENT.pattern
    count: int | None
    """The whole number; None for a percentage."""
    percent: int | None

    @classmethod
    def from_plain(cls, data: object) -> Self:
        if isinstance(data, int) and not isinstance(data, bool) and 0 <= data < 2**31:
            return cls(data, data, None)
        match = _PERCENT.fullmatch(data) if isinstance(data, str) else None
        if match is None:
            raise ValueError(
                f"must be a whole number such as 3 or a percentage up to 100%, not {show(data)}"
            )
        return cls(match[0], None, int(match[1]))

    def of(self, total: int) -> float:
        """The number, if 100 % is `total`. Not rounded."""
        if self.count is not None:
            return float(self.count)
        return total * (self.percent or 0) / 100


class Constraint(Protocol):
    """A check of one value that has the right type."""

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        """Yield the faults of `value`, found at `path`."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included; `above` excludes its own value."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, int | float)
        if not self._holds(value):
            yield Fault(path, f"must be {self._words()}, not {show(value)}")

    def _holds(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
        )

    def _words(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum} to {self.maximum}"
        bounds = {"at least": self.minimum, "above": self.above, "at most": self.maximum}
        return " and ".join(
            f"{word} {bound}" for word, bound in bounds.items() if bound is not None
        )


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that the whole text must match; `words` describes it in messages.

    The API server uses RE2, so patterns use ASCII classes and no look-around.
    """

    regex: str
    words: str

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str)
        if re.fullmatch(self.regex, value, re.ASCII) is None:
            yield Fault(path, f"must be {self.words}, not {show(value)}")


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of the length of a text in UTF-8 bytes, or of a list in entries."""

    minimum: int = 1
    maximum: int | None = None

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str | tuple)
        if isinstance(value, tuple):
            unit, length = "entries", len(value)
        else:
            unit, length = "bytes", len(value.encode("utf-8", "surrogatepass"))
        if length < self.minimum:
            yield Fault(path, f"must have at least {self.minimum} {unit}, not {length}")
        if self.maximum is not None and length > self.maximum:
            yield Fault(path, f"must have at most {self.maximum} {unit}, not {length}")


@dataclass(frozen=True, slots=True)
class UniqueBy:
    """A list whose entries have unique values in the given fields (a list map of Kubernetes)."""

    keys: tuple[str, ...]

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, tuple)
        first: dict[tuple[object, ...], int] = {}
        for index, entry in enumerate(value):
            key = tuple(getattr(entry, name) for name in self.keys)
            seen = first.setdefault(key, index)
            if seen != index:
                where = f"{path}[{index}].{self.keys[-1]}"
                what = "/".join(str(part) for part in key)
                about = (f"{path}[{seen}].{self.keys[-1]}",)
                message = f"{show(what)} is given twice, first in {path}[{seen}]"
                yield Fault(where, message, about, kept=True)


# No dotted netmask and no zone: the API server and proxies do not accept them.
_CIDR: Final = re.compile(r"[0-9a-fA-F.:]{2,45}(/(0|[1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True)
class Cidr:
    """A network such as 10.0.0.0/8, or a single address."""

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str)
        try:
            network = ip_network(value) if _CIDR.fullmatch(value) else None
            mapped = network and getattr(network.network_address, "ipv4_mapped", None)
            if network and mapped is None:
                return
            hint = f"; write it as IPv4, {mapped}" if mapped else ""
        except ValueError as error:
            whole = "host bits" in str(error) and ip_network(value, strict=False)
            hint = f"; the network is {whole}" if whole else ""
        yield Fault(path, f"{show(value)} is not a network like 10.0.0.0/8{hint}")


_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time as Kubernetes writes it: 2026-01-31T12:00:00Z."""

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str)
        try:
            if _TIMESTAMP.fullmatch(value):
                datetime.fromisoformat(value)
                return
        except ValueError:
            pass
        yield Fault(path, f"{show(value)} is not a time like 2026-01-31T12:00:00Z")


_HOST: Final = re.compile(r"[a-zA-Z0-9._:-]+")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Url:
    """An absolute URL with one of the schemes and no fragment; with `bare`, without path, query and user."""

    schemes: tuple[str, ...] = ("http", "https")
    bare: bool = False

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str)
        problem = self._problem(value)
        if problem:
            yield Fault(path, f"{show(value)} {problem}")

    def _problem(self, text: str) -> str | None:
        wanted = " or ".join(f"{scheme}://host:port" for scheme in self.schemes)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            return f"is not an address like {wanted}"
        good = (
            parts.scheme in self.schemes
            and _HOST.fullmatch(host or "") is not None
            and port != 0
            and text.isprintable()
            and not any(odd in text for odd in " #")
            and _BAD_ESCAPE.search(parts.netloc + parts.path) is None
        )
        if not good:
            close = did_you_mean(parts.scheme, self.schemes)
            return f"is not an address like {wanted}{close}"
        extra = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
        if self.bare and extra:
            return f"must end after host and port: {parts.scheme}://{parts.netloc.split('@')[-1]}"
        return None


_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

DNS_LABEL: Final = Pattern(
    _LABEL, "a name of a-z, 0-9 and '-', that starts and ends with a letter or digit"
)
SERVICE_NAME: Final = Pattern(  # of a Service (RFC 1035)
    r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?",
    "a name of a-z, 0-9 and '-', that starts with a letter and ends with a letter or digit",
)
DNS_NAME: Final = Pattern(rf"{_LABEL}(\.{_LABEL})*", "a DNS name such as llm.example.com")
ORIGIN: Final = Pattern(  # of a web page (RFC 6454), as browsers write it
    r"\*|[a-z][a-z0-9+.-]{0,31}://[a-z0-9.-]{1,253}(:[0-9]{1,5})?",
    "an origin such as https://app.example.com in lower case and without a path, or '*'",
)
FIELD_NAME: Final = Pattern(r"[A-Za-z0-9_.\[\]-]{1,64}", "the name of a field such as priority")
PRINTABLE: Final = Pattern(r"[^\x00-\x1f\x7f\ud800-\udfff]*", "text without control characters")
SHA256: Final = Pattern(r"[0-9a-f]{64}", "a SHA-256 in 64 lower-case hexadecimal digits")
PORT: Final = Range(0, 65535)
