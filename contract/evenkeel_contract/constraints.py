"""Constraints on one field, for `typing.Annotated`. `decode` and the CRD generator read them.

A constraint checks a single value. A check of two fields is a rule in `validate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_network
from typing import Final, Protocol
from urllib.parse import urlsplit

from evenkeel_contract.faults import Fault, did_you_mean, show


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
        low = f"above {self.above}" if self.above is not None else None
        if self.minimum is not None:
            low = f"at least {self.minimum}"
        if self.maximum is None:
            return low or "a number"
        if self.minimum is not None:
            return f"from {self.minimum} to {self.maximum}"
        high = f"at most {self.maximum}"
        return f"{low} and {high}" if low else high


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
                yield Fault(
                    where,
                    f"{show(what)} is given twice, first in {path}[{seen}]",
                    about=(f"{path}[{seen}].{self.keys[-1]}",),
                    kept=True,
                )


# No dotted netmask and no zone: the API server and proxies do not accept them.
_CIDR: Final = re.compile(r"[0-9a-fA-F.:]{2,45}(/(0|[1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True)
class Cidr:
    """A network such as 10.0.0.0/8, or a single address."""

    def faults(self, value: object, path: str) -> Iterator[Fault]:
        assert isinstance(value, str)
        hint = ""
        try:
            network = ip_network(value) if _CIDR.fullmatch(value) else None
            mapped = network and getattr(network.network_address, "ipv4_mapped", None)
            if network and mapped is None:
                return
            hint = f"; write it as IPv4, {mapped}" if mapped else ""
        except ValueError as error:
            if "host bits" in str(error):
                hint = f"; the network is {ip_network(value, strict=False)}"
        yield Fault(path, f"{show(value)} is not a network like 10.0.0.0/8{hint}")


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


_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII
)


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
DNS_NAME: Final = Pattern(rf"{_LABEL}(\.{_LABEL})*", "a DNS name such as llm.example.com")
PRINTABLE: Final = Pattern(r"[^\x00-\x1f\x7f\ud800-\udfff]*", "text without control characters")
SHA256: Final = Pattern(r"[0-9a-f]{64}", "a SHA-256 in 64 lower-case hexadecimal digits")
PORT: Final = Range(0, 65535)
