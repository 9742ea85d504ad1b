"""Fits a cost profile of the simulator to the points of the step `profile`: `python -m bench.gpu.fit results.jsonl [--out FILE]`.

    prefill = Σ over chunks (P0 + P1·tokens + P2·tokens·context at the chunk's end)
    decode step = D0 + D1·batch + D2·batch·context

Least squares of relative errors, with no negative coefficient. Prints the profile, and measured and fitted milliseconds of each point.
A time to the first token includes the engine's processes and the connection; P0 has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
from evenkeel_simulator.engine.profiles import CostProfile

from bench.gpu.journal import read_records
from bench.gpu.profiling import DecodePoint, PrefillPoint

_READ_AT_ONCE: Final = 0.2
"""A decode step below this part of the median step was not measured: the client was busy, and read all tokens at once."""
_LEAST_MS: Final = 1e-6
"""P1 and D0 of zero would stop the simulator's clock."""


class FitError(ValueError):
    """The records do not determine a profile; the message names what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPoint:
    """One point, measured and by the profile."""

    name: str
    measured_ms: float
    fitted_ms: float

    @property
    def error(self) -> float:
        """Relative to the measured time."""
        return self.fitted_ms / self.measured_ms - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A profile and how well it meets its points."""

    profile: CostProfile
    points: tuple[FittedPoint, ...]
    left_out: tuple[DecodePoint, ...] = ()
    """Points whose tokens were read at once."""

    def rms(self, kind: str = "") -> float:
        """Root of the mean squared relative error of the points whose name begins so."""
        errors = [point.error for point in self.points if point.name.startswith(kind)]
        return float(np.sqrt(np.mean(np.square(errors))))


def chunk_terms(tokens: int, chunk_tokens: int) -> tuple[int, int, int]:
    """(iterations, tokens, Σ tokens·context) of a prompt in chunks, as the simulator counts them."""
    ends = [*range(chunk_tokens, tokens, chunk_tokens), tokens]
    chunks = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return len(ends), tokens, sum(chunk * end for chunk, end in zip(chunks, ends, strict=True))


def non_negative(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The coefficients of at least 0 with the least sum of squared relative errors. For few columns: every subset is tried."""
    weights = 1 / np.asarray(values)
    matrix, target = np.asarray(rows, dtype=float) * weights[:, None], np.ones(len(values))
    width = matrix.shape[1]
    best, least = np.zeros(width), float("inf")
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            found = np.linalg.lstsq(matrix[:, columns], target, rcond=None)[0]
            error = float(np.sum(np.square(matrix[:, columns] @ found - target)))
            if np.all(found >= 0) and error < least - 1e-12:
                best, least = np.zeros(width), error
                best[list(columns)] = found
    return [float(one) for one in best]


def fit(records: Iterable[Mapping[str, Any]]) -> Fit:
    """Fit the records of one or more runs of the same shape; raises `FitError`."""
    plan: Mapping[str, Any] | None = None
    prefills: list[PrefillPoint] = []
    decodes: list[DecodePoint] = []
    for record in records:
        if record["kind"] == "plan":
            plan = record
        elif record["kind"] == "prefill":
            prefills.append(msgspec.convert(record, PrefillPoint))
        elif record["kind"] == "decode":
            decodes.append(msgspec.convert(record, DecodePoint))
    if plan is None or len(prefills) < 3 or len(decodes) < 3:
        raise FitError(
            f"needs a plan, 3 prefill points and 3 decode points; there are {len(prefills)} and "
            f"{len(decodes)}: run the step `profile`"
        )
    typical_ms = median(median(point.ms) for point in decodes)
    kept = [point for point in decodes if median(point.ms) >= _READ_AT_ONCE * typical_ms]
    left_out = tuple(point for point in decodes if point not in kept)
    return replace(_fitted(plan, prefills, kept), left_out=left_out)


def _fitted(
    plan: Mapping[str, Any], prefills: Sequence[PrefillPoint], decodes: Sequence[DecodePoint]
) -> Fit:
    prefill_rows = [chunk_terms(point.tokens, plan["chunk_tokens"]) for point in prefills]
    prefill_ms = [median(point.ms) for point in prefills]
    decode_rows = [(1.0, point.batch, point.batch * point.context) for point in decodes]
    decode_ms = [median(point.ms) for point in decodes]
    p = non_negative(prefill_rows, prefill_ms)
    d = non_negative(decode_rows, decode_ms)
    profile = CostProfile(
        prefill_ms=p[0],
        prefill_token_ms=max(p[1], _LEAST_MS),
        prefill_attention_ms=p[2],
        decode_ms=max(d[0], _LEAST_MS),
        decode_request_ms=d[1],
        decode_kv_token_ms=d[2],
        kv_tokens=plan["pool_tokens"],
    )
    names = [
        *(f"prefill {point.tokens}" for point in prefills),
        *(f"decode {point.batch} x {point.context:.0f}" for point in decodes),
    ]
    fitted = [
        *(float(np.dot(row, p)) for row in prefill_rows),
        *(float(np.dot(row, d)) for row in decode_rows),
    ]
    points = tuple(
        FittedPoint(name=name, measured_ms=measured, fitted_ms=value)
        for name, measured, value in zip(names, [*prefill_ms, *decode_ms], fitted, strict=True)
    )
    return Fit(profile=profile, points=points)


def table_of(found: Fit) -> str:
    """A Markdown table of the points, and the errors in all."""
    rows = ["| point | measured, ms | fitted, ms | error |", "|---|---:|---:|---:|"]
    rows += [
        f"| {point.name} | {point.measured_ms:.2f} | {point.fitted_ms:.2f} | {point.error:+.1%} |"
        for point in found.points
    ]
    worst = max(found.points, key=lambda point: abs(point.error))
    errors = f"prefill {found.rms('prefill'):.1%}, decode {found.rms('decode'):.1%}"
    worst_one = f"{worst.name}, {worst.error:+.1%}"
    last = f"Root mean square of the relative errors: {errors}; worst: {worst_one}."
    lost = [f"{point.batch} x {point.context:.0f}" for point in found.left_out]
    note = [f"Left out, tokens read at once: decode {', '.join(lost)}."] if lost else []
    return "\n".join([*rows, "", last, *note]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="bench.gpu.fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, help="write the profile as JSON")
    options = parser.parse_args(arguments)
    try:
        found = fit(read_records(options.results))
    except (FitError, OSError, msgspec.ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = msgspec.json.format(msgspec.json.encode(found.profile), indent=2)
    print(f"{text.decode()}\n\n{table_of(found)}")
    if options.out:
        options.out.write_bytes(text + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
