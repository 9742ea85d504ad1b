"""Requests drawn from ServeGen's tables of production clients: rates by ten minutes, lengths by quarters of a day.

Two CSV files, plain or gzip, made from the `chunk-*-trace.csv` and `chunk-*-dataset.json` of ServeGen's repository:

- rates: `client,t_s,iat_family,shape,scale`, the distribution of the time between two arrivals (Gamma or Weibull) from `t_s` on;
- lengths: `client,window_start_s,field,p0,…,p100`, quantiles of `input_tokens` and `output_tokens` (other fields are ignored).

Between quantiles lengths are uniform. The tables say nothing about prefixes, so nothing is shared.

Some rows of the published tables cannot be drawn: a window without arrivals has no shape and no scale, and there are other families.
They are skipped and counted. A client without any lengths is skipped as a whole.
"""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import isfinite
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from evenkeel_simulator.traffic.traces import TraceError, read_text
from evenkeel_simulator.traffic.workload import Call, Program

WINDOW_S: Final = 600.0
"""Validity of a row of rates."""
_FIELDS: Final = ("input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution by its quantiles, both ascending; `shares` from 0 to 1."""

    shares: Sequence[float]
    values: Sequence[float]

    def draw(self, rng: Random) -> int:
        """A random length, at least 1."""
        share = rng.random()
        above = max(1, bisect_left(self.shares, share))
        low, high = self.shares[above - 1], self.shares[above]
        part = (share - low) / (high - low)
        value = self.values[above - 1] + part * (self.values[above] - self.values[above - 1])
        return max(1, round(value))


@dataclass(frozen=True, slots=True)
class _Source:
    """One client of the tables."""

    gaps: dict[float, Callable[[Random], float]] = field(default_factory=dict)
    """Start of a window → draws the time to the next arrival in it."""
    lengths: dict[str, dict[float, Quantiles]] = field(
        default_factory=lambda: {name: {} for name in _FIELDS}
    )

    def arrivals(self, start_s: float, end_s: float, load: float, rng: Random) -> Iterator[float]:
        """Times of arrivals, ascending. Each window begins anew, in the middle of a gap."""
        for window_s in sorted(self.gaps):
            draw = self.gaps[window_s]
            now_s = max(start_s, window_s)
            until_s = min(end_s, window_s + WINDOW_S)
            if now_s < until_s:
                now_s += draw(rng) / load * rng.random()
            while now_s < until_s:
                yield now_s
                now_s += draw(rng) / load

    def length(self, name: str, at_s: float, rng: Random) -> int:
        """A length from the latest window that has begun, else from the first."""
        windows = sorted(self.lengths[name])
        place = max(0, bisect_right(windows, at_s) - 1)
        return self.lengths[name][windows[place]].draw(rng)


@dataclass(frozen=True, slots=True)
class Tables:
    """What two tables say that can be drawn."""

    sources: Mapping[str, _Source]
    skipped: Sequence[str]
    """One sentence for each kind of rows that cannot be drawn, with their number and the first one."""

    def programs(
        self, *, start_s: float, duration_s: float, load: float, seed: int
    ) -> Iterator[list[Program]]:
        """One list for each client, in the order of arrivals, with times from 0.

        `start_s`: time of the day. `load`: factor on every client's rate.
        """
        for client, source in self.sources.items():
            rng = Random(f"{seed}/{client}")
            programs = []
            times_s = source.arrivals(start_s, start_s + duration_s, load, rng)
            for number, at_s in enumerate(times_s):
                input_tokens, output_tokens = (source.length(name, at_s, rng) for name in _FIELDS)
                call = Call(input_tokens, output_tokens, max_output_tokens=output_tokens)
                name = f"client-{client}"
                programs.append(Program(f"{name}.{number}", name, at_s - start_s, (call,)))
            yield programs


def read_tables(rates: Path, lengths: Path) -> Tables:
    """Read both tables. Raises `TraceError` if one is no table, or if nothing can be drawn."""
    sources: defaultdict[str, _Source] = defaultdict(_Source)
    skipped: list[str] = []
    rows = _rows(rates, ("client", "t_s", "iat_family", "shape", "scale"))
    for row, (start_s, gap) in _drawable(rates, rows, _window_of_rates, skipped):
        sources[row["client"]].gaps[start_s] = gap
    rows = _rows(lengths, ("client", "window_start_s", "field", "p0", "p100"))
    used = (row for row in rows if row["field"] in _FIELDS)
    for row, (start_s, quantiles) in _drawable(lengths, used, _window_of_lengths, skipped):
        sources[row["client"]].lengths[row["field"]][start_s] = quantiles
    arriving = {client: source for client, source in sources.items() if source.gaps}
    complete = {name: one for name, one in arriving.items() if all(one.lengths.values())}
    if without := [client for client in arriving if client not in complete]:
        skipped.append(
            f"{lengths}: {len(without)} of {len(arriving)} clients have no lengths and were skipped, "
            f"the first: client {without[0]}"
        )
    if not complete:
        raise TraceError("; ".join(skipped) or f"{rates}: no rows")
    return Tables(complete, skipped)


_Window = TypeVar("_Window")


def _drawable(
    path: Path, rows: Iterable[_Row], read: Callable[[_Row], _Window], skipped: list[str]
) -> list[tuple[_Row, _Window]]:
    """Rows with what they say; those that cannot be drawn are counted in `skipped`."""
    found: list[tuple[_Row, _Window]] = []
    faults: list[str] = []
    for row in rows:
        try:
            found.append((row, read(row)))
        except _CannotBeDrawn as error:
            faults.append(str(error))
    if faults:
        skipped.append(
            f"{path}: {len(faults)} of {len(faults) + len(found)} rows cannot be drawn and were skipped, "
            f"the first: {faults[0]}"
        )
    return found


def _window_of_rates(row: _Row) -> tuple[float, Callable[[Random], float]]:
    return row.number("t_s"), _gap(row)


def _window_of_lengths(row: _Row) -> tuple[float, Quantiles]:
    return row.number("window_start_s"), _quantiles(row)


class _CannotBeDrawn(ValueError):
    """A row without a distribution; the message names its line and field."""


class _Row(dict[str, str]):
    """A row of a table; `place` is its line."""

    place: str

    def number(self, name: str) -> float:
        try:
            if isfinite(value := float(self[name])):
                return value
        except (TypeError, ValueError):
            pass
        raise _CannotBeDrawn(f"{self.place}: {name} is {self[name]!r}, not a number")


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    reader = csv.DictReader(StringIO(read_text(path)))
    missing = [name for name in columns if name not in (reader.fieldnames or [])]
    if missing:
        raise TraceError(f"{path}: no column {', '.join(missing)}; a table has {','.join(columns)}")
    for values in reader:
        row = _Row(values)
        row.place = f"line {reader.line_num}"
        yield row


def _gap(row: _Row) -> Callable[[Random], float]:
    shape, scale = row.number("shape"), row.number("scale")
    if min(shape, scale) <= 0:
        raise _CannotBeDrawn(f"{row.place}: shape and scale must be above 0")
    if row["iat_family"] == "Gamma":
        return lambda rng: rng.gammavariate(shape, scale)
    if row["iat_family"] == "Weibull":
        return lambda rng: rng.weibullvariate(scale, shape)
    raise _CannotBeDrawn(f"{row.place}: iat_family is {row['iat_family']!r}, not Gamma or Weibull")


def _quantiles(row: _Row) -> Quantiles:
    names = [name for name in row if name[:1] == "p" and name[1:].isdecimal()]
    names.sort(key=lambda name: int(name[1:]))
    values = [row.number(name) for name in names]
    if values != sorted(values) or values[0] < 0:
        raise _CannotBeDrawn(f"{row.place}: quantiles must ascend from 0 or more")
    return Quantiles([int(name[1:]) / 100 for name in names], values)
