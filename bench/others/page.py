"""The page of the load generators of others. All its figures are theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from bench.others.tools import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOOLS, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet, and whether another tenant floods it."""

    title: str
    replica_policy: str = "DLPM"
    fleet_policy: str = "D2LPM"
    flood: bool = True


ALONE: Final = "alone"
STOCK: Final = "stock"
EVENKEEL: Final = "evenkeel"
SETUPS: Final[Mapping[str, Setup]] = MappingProxyType(
    {
        ALONE: Setup(title="no flood", flood=False),
        STOCK: Setup(
            title="a flood, round robin + FCFS", replica_policy="FCFS", fleet_policy="RoundRobin"
        ),
        EVENKEEL: Setup(title="a flood, D2LPM + DLPM"),
    }
)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says of the run of one program."""

    version: str
    commit: str
    date: str
    load_before: float
    load_after: float
    flood_answers_per_s: Mapping[str, float]
    """Setup → answers of the other tenant while the program ran."""


_PAGE: Final = """\
# Load generators of others against a simulated fleet

What AIPerf, GuideLLM and inference-perf measure with their own clocks, alone and while another tenant floods the fleet. Every figure
below is from the program's own report.

| program | fleet | answered | TTFT p50 | p95 of {requests} | between tokens p50 | latency p50 | flood answers/s |
|---|---|---:|---:|---:|---:|---:|---:|
{rows}

{words}

The 95th percentile of {requests} requests is about the second slowest of them, so it varies more between runs than the median.

Each program sends {requests} requests, {concurrency} at a time, of {input} input and {output} output tokens, by its own tokenizer; inference-perf sends
completions, the others chats. The fleet is one of `evenkeel up`: two simulated replicas (profile `a10g-llama2-7b`) and a router, in real
time. The flood keeps 64 requests of 1,000 input and 96 output tokens open, with the key of another tenant of equal weight. The programs
define the time between tokens differently: AIPerf's and GuideLLM's is a mean of each request, inference-perf's of each token.

{runs}

[How to run them](../../docs/how-to/benchmarks-of-others.md). The reports are in `others/`, compressed; `python -m bench.others --page` writes this page from
them again.
"""


def page(kept: Mapping[str, tuple[Facts, Mapping[str, Result]]]) -> str:
    """The page. `kept`: program → facts, and figures by setup."""
    return _PAGE.format(
        rows="\n".join(_rows(kept)),
        words="\n".join(_words(kept)),
        requests=REQUESTS,
        concurrency=CONCURRENCY,
        input=INPUT_TOKENS,
        output=OUTPUT_TOKENS,
        runs="\n".join(_runs(kept)),
    )


def _rows(kept: Mapping[str, tuple[Facts, Mapping[str, Result]]]) -> Iterator[str]:
    for name, (facts, results) in kept.items():
        for key, one in results.items():
            cells = (
                TOOLS[name].title,
                SETUPS[key].title,
                f"{one.requests} of {one.requests + one.errors}",
                *(_ms(one.ttft_p50_ms), _ms(one.ttft_p95_ms), _ms(one.itl_p50_ms)),
                _ms(one.latency_p50_ms),
                f"{facts.flood_answers_per_s[key]:.1f}" if SETUPS[key].flood else "–",
            )
            yield f"| {' | '.join(cells)} |"


def _words(kept: Mapping[str, tuple[Facts, Mapping[str, Result]]]) -> Iterator[str]:
    for name, (facts, results) in kept.items():
        alone, stock, fair = (results[key].ttft_p50_ms for key in (ALONE, STOCK, EVENKEEL))
        flood = facts.flood_answers_per_s
        yield (
            f"- {TOOLS[name].title}: the flood made the median time to first token {stock / alone:,.0f} times as long with round robin + FCFS, "
            f"and {fair / alone:,.1f} times as long with D2LPM + DLPM. "
            f"The flood got {flood[STOCK]:.1f} answers per second with the former and {flood[EVENKEEL]:.1f} with the latter "
            f"({100 * (flood[EVENKEEL] / flood[STOCK] - 1):+.0f} %)."
        )


def _runs(kept: Mapping[str, tuple[Facts, Mapping[str, Result]]]) -> Iterator[str]:
    for name, (facts, _) in kept.items():
        yield (
            f"- {TOOLS[name].title} {facts.version}: `make others-{name}` at commit {facts.commit}, {facts.date}, load average "
            f"{facts.load_before:.1f} before and {facts.load_after:.1f} after."
        )


def _ms(value: float) -> str:
    """Milliseconds, from one second on in seconds."""
    return f"{value / 1e3:.1f} s" if value >= 999.5 else f"{value:.0f} ms"
