"""Prometheus' text format, one series at a time.

A metrics library renders a whole registry in one call, which stops every stream for as long as it takes. Here each
family is an iterator of lines, so that the caller may pause between any two (`slices.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from evenkeel_router.ledger.totals import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "evenkeel_router_"
Lines = Iterator[str]
"""Lines of the format, each with its line end; an empty text only marks a place to pause."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def labels(**values: str) -> str:
    """The labels of a series, as they stand between the braces."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())


def counter(name: str, help_text: str, series: Iterable[tuple[str, float | None]]) -> Lines:
    """A total; `series` are labels and value. A series without a value is left out."""
    return gauge(f"{name}_total", help_text, series, kind="counter")


def gauge(
    name: str, help_text: str, series: Iterable[tuple[str, float | None]], kind: str = "gauge"
) -> Lines:
    """A state; `series` as for a counter."""
    yield _head(name, kind, help_text)
    begin = f"{PREFIX}{name}{{"
    for own, value in series:
        if value is not None:
            yield f"{begin}{own}}} {float(value)!r}\n"


def summary(name: str, help_text: str, series: Iterable[tuple[str, tuple[float, int]]]) -> Lines:
    """Sum and count of observations; `series` are labels, and these two."""
    yield _head(name, "summary", help_text)
    for own, (total, count) in series:
        yield (
            f"{PREFIX}{name}_sum{{{own}}} {float(total)!r}\n"
            f"{PREFIX}{name}_count{{{own}}} {float(count)!r}\n"
        )


def histogram(name: str, help_text: str, series: Iterable[tuple[str, Histogram | None]]) -> Lines:
    """Cumulative counts by upper bound. Each histogram is one piece, so its counts and its sum agree."""
    yield _head(name, "histogram", help_text)
    for own, seen in series:
        if seen is None:
            continue
        bounds = (*(repr(float(bound)) for bound in seen.bounds), "+Inf")
        counts = list(accumulate(seen.counts))
        buckets = "".join(
            f'{PREFIX}{name}_bucket{{le="{bound}",{own}}} {float(count)!r}\n'
            for bound, count in zip(bounds, counts, strict=True)
        )
        yield (
            f"{buckets}{PREFIX}{name}_sum{{{own}}} {float(seen.total)!r}\n"
            f"{PREFIX}{name}_count{{{own}}} {float(counts[-1])!r}\n"
        )


def merged(parts: Sequence[Lines]) -> Lines:
    """Several texts of the same families as one: each family's head once, then its series from each."""
    heads = [""] * len(parts)

    def until_head(number: int) -> Lines:
        heads[number] = ""
        for line in parts[number]:
            if line.startswith("# HELP "):
                heads[number] = line
                return
            yield line

    for number in range(len(parts)):
        yield from until_head(number)
    while parts and heads[0]:
        yield heads[0]
        for number in range(len(parts)):
            yield from until_head(number)


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {PREFIX}{name} {help_text}\n# TYPE {PREFIX}{name} {kind}\n"
