"""Durations, quantities and percentages in the text format of Kubernetes, with their numbers.

Each value keeps its text and writes the same text again. Two values are equal if their texts are equal
(`2m` differs from `120s`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar, Final, Self

from evenkeel_contract.faults import show

_MAX_DURATION_S: Final = 100 * 365 * 24 * 3600
_MAX_QUANTITY: Final = (
    2**63 - 1
)  # Kubernetes reduces larger values to this one, so it is not valid itself
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
class Duration:
    """A length of time above zero, in Go's format: `120s`, `1500ms`, `1h30m`."""

    EXAMPLE: ClassVar[str] = "120s"
    PATTERN: ClassVar[str] = _DURATION.pattern
    text: str
    seconds: float

    @classmethod
    def from_plain(cls, data: object) -> Self:
        """Read one; raises `ValueError`."""
        match = isinstance(data, str) and len(data) <= MAX_TEXT and _DURATION.fullmatch(data)
        if not isinstance(data, str) or not match:
            raise ValueError(f"must be a duration such as 120s, 1500ms or 5m, not {show(data)}")
        parts = _DURATION_PART.findall(data)
        # As in Go: each part is rounded down to whole nanoseconds.
        nanoseconds = sum(int(Fraction(number) * _NANOSECONDS[unit]) for number, unit in parts)
        if not 0 < nanoseconds <= _MAX_DURATION_S * 10**9:
            raise ValueError(f"must be above 0 and at most 100 years, not {show(data)}")
        return cls(data, nanoseconds / 10**9)

    def to_plain(self) -> str:
        """The text that was read."""
        return self.text


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number above zero with a Kubernetes suffix: `16Mi`, `100Gi`, `500m`, `3`."""

    EXAMPLE: ClassVar[str] = "16Mi"
    PATTERN: ClassVar[str] = _QUANTITY.pattern
    spelling: str | int
    value: Fraction

    @classmethod
    def from_plain(cls, data: object) -> Self:
        """Read one; raises `ValueError`."""
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

    def to_plain(self) -> str | int:
        """The text that was read."""
        return self.spelling


@dataclass(frozen=True, slots=True)
class CountOrPercent:
    """A whole number (`3`) or a percentage (`50%`)."""

    EXAMPLE: ClassVar[str] = "50%"
    PATTERN: ClassVar[str] = _PERCENT.pattern
    spelling: str | int
    count: int | None
    """None for a percentage."""
    percent: int | None

    @classmethod
    def from_plain(cls, data: object) -> Self:
        """Read one; raises `ValueError`."""
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

    def to_plain(self) -> str | int:
        """The text that was read."""
        return self.spelling
