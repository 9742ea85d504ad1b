"""Requests drawn from ServeGen's tables of production clients: rates by ten minutes, lengths by quarters of a day.

Two CSV files, plain or gzip, made from the `chunk-*-trace.csv` and `chunk-*-dataset.json` of ServeGen's repository:

- rates: `client,t_s,iat_family,shape,scale`, the distribution of the time between two arrivals (Gamma or Weibull) from `t_s` on;
- lengths: `client,window_start_s,field,p0,…,p100`, quantiles of `input_tokens` and `output_tokens` (other fields are ignored).

Between quantiles lengths are uniform. The tables say nothing about prefixes, so nothing is shared.
"""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from random import Random
from typing import Final

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


def servegen_programs(
    rates: Path, lengths: Path, *, start_s: float, duration_s: float, load: float, seed: int
) -> Iterator[list[Program]]:
    """One list for each client, in the order of arrivals, with times from 0. Raises `TraceError`.

    `start_s`: time of the day. `load`: factor on every client's rate.
    """
    for client, source in _read(rates, lengths).items():
        rng = Random(f"{seed}/{client}")
        programs = []
        for number, at_s in enumerate(source.arrivals(start_s, start_s + duration_s, load, rng)):
            input_tokens, output_tokens = (source.length(name, at_s, rng) for name in _FIELDS)
            call = Call(input_tokens, output_tokens, max_output_tokens=output_tokens)
            name = f"client-{client}"
            programs.append(Program(f"{name}.{number}", name, at_s - start_s, (call,)))
        yield programs


def _read(rates: Path, lengths: Path) -> Mapping[str, _Source]:
    sources: defaultdict[str, _Source] = defaultdict(_Source)
    for row in _rows(rates, ("client", "t_s", "iat_family", "shape", "scale")):
        sources[row["client"]].gaps[row.number("t_s")] = _gap(row)
    for row in _rows(lengths, ("client", "window_start_s", "field", "p0", "p100")):
        if row["field"] in _FIELDS:
            known = sources[row["client"]].lengths[row["field"]]
            known[row.number("window_start_s")] = _quantiles(row)
    for client, source in sources.items():
        for name in _FIELDS:
            if source.gaps and not source.lengths[name]:
                raise TraceError(f"{lengths}: no {name} of client {client}")
    return sources


class _Row(dict[str, str]):
    """A row of a table; `place` is its file and line."""

    place: str

    def number(self, name: str) -> float:
        try:
            return float(self[name])
        except (TypeError, ValueError):
            raise TraceError(f"{self.place}: {name} is {self[name]!r}, not a number") from None


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    reader = csv.DictReader(StringIO(read_text(path)))
    missing = [name for name in columns if name not in (reader.fieldnames or [])]
    if missing:
        raise TraceError(f"{path}: no column {', '.join(missing)}; a table has {','.join(columns)}")
    for values in reader:
        row = _Row(values)
        row.place = f"{path}, line {reader.line_num}"
        yield row


def _gap(row: _Row) -> Callable[[Random], float]:
    shape, scale = row.number("shape"), row.number("scale")
    if not (0 < shape < float("inf") and 0 < scale < float("inf")):
        raise TraceError(f"{row.place}: shape and scale must be above 0 and finite")
    if row["iat_family"] == "Gamma":
        return lambda rng: rng.gammavariate(shape, scale)
    if row["iat_family"] == "Weibull":
        return lambda rng: rng.weibullvariate(scale, shape)
    raise TraceError(f"{row.place}: iat_family is {row['iat_family']!r}, not Gamma or Weibull")


def _quantiles(row: _Row) -> Quantiles:
    names = [name for name in row if name[:1] == "p" and name[1:].isdecimal()]
    names.sort(key=lambda name: int(name[1:]))
    values = [row.number(name) for name in names]
    if values != sorted(values) or not 0 <= values[0] <= values[-1] < float("inf"):
        raise TraceError(f"{row.place}: quantiles must ascend from 0 or more")
    return Quantiles([int(name[1:]) / 100 for name in names], values)
