"""The results of a measurement: `figures.json` for programs, a table and a plot for people.

The measures are those of `evenkeel simulate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import matplotlib
import msgspec
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import Summary, summarise

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_COLUMNS: Final = (
    ("workload", "policy", "tokens/s", "hit", "Jain", "TTFT p50", "TTFT p99")
    + ("latency p50", "latency p99", "unfinished")
)  # fmt: skip


class WellBehaved(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of the clients that ask for no more than their share, together. Seconds."""

    finished: int
    ttft_p50_s: float
    ttft_p99_s: float
    latency_p50_s: float
    latency_p99_s: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One workload under one policy."""

    workload: str
    policy: str
    programs_per_s: float
    """That arrived, over all clients."""
    capacity_programs_per_s: float
    """Throughput of the engine when all requests were due at once."""
    well_behaved: WellBehaved | None
    """None where none of their requests finished."""
    unfinished: dict[str, int]
    """Requests in flight at the end, by client; requests of the flood are not awaited."""
    summary: Summary


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `figures.json`."""

    engine: str
    """SGLang's version."""
    device: str
    model: str
    flags: tuple[str, ...]
    shrink: float
    load: float
    duration_s: float
    seed: int
    runs: tuple[RunResult, ...]


def figures_of(
    records: Collection[Record],
    *,
    workload: str,
    policy: str,
    misbehaving: Collection[str],
    open_calls: Iterable[tuple[str, int]],
    programs_per_s: float,
    capacity_programs_per_s: float,
    elapsed_s: float,
) -> RunResult:
    """All figures of one run."""
    return RunResult(
        workload=workload,
        policy=policy,
        programs_per_s=programs_per_s,
        capacity_programs_per_s=capacity_programs_per_s,
        well_behaved=_well_behaved(
            [record for record in records if record.client not in misbehaving]
        ),
        unfinished=dict(sorted(Counter(client for client, _ in open_calls).items())),
        summary=summarise(records, elapsed_s),
    )


def table_of(runs: Iterable[RunResult]) -> str:
    """A Markdown table, a row per run."""
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|---|---|" + "---:|" * (len(_COLUMNS) - 2)]
    for run in runs:
        summary, well = run.summary, run.well_behaved
        times = (
            ("–",) * 4
            if well is None
            else tuple(
                f"{value:.2f} s"
                for value in (
                    well.ttft_p50_s,
                    well.ttft_p99_s,
                    well.latency_p50_s,
                    well.latency_p99_s,
                )
            )
        )
        cells = (
            run.workload,
            run.policy,
            f"{summary.throughput_tokens_per_s:,.0f}",
            f"{summary.hit_rate:.1%}",
            f"{summary.jain_index:.3f}",
            *times,
            str(sum(run.unfinished.values())),
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def write(measurement: Measurement, out: Path) -> None:
    """Write all three files; raises `OSError`."""
    out.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(measurement), indent=2)
    (out / "figures.json").write_bytes(text + b"\n")
    (out / "table.md").write_text(table_of(measurement.runs), encoding="utf-8")
    _plot(measurement, out / "figures.png")


def _well_behaved(records: Sequence[Record]) -> WellBehaved | None:
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    latencies = [record.latency_s for record in records if record.latency_s is not None]
    if not latencies:
        return None
    return WellBehaved(
        finished=len(latencies),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p99_s=percentile(ttfts, 99),
        latency_p50_s=percentile(latencies, 50),
        latency_p99_s=percentile(latencies, 99),
    )


def _plot(measurement: Measurement, path: Path) -> None:
    """Four panels: throughput, Jain's index, well-behaved p50 and p99; bars by policy, groups by workload."""
    workloads = list(dict.fromkeys(run.workload for run in measurement.runs))
    policies = list(dict.fromkeys(run.policy for run in measurement.runs))
    panels = (
        ("tokens/s", lambda run: run.summary.throughput_tokens_per_s),
        ("Jain's index (service rate)", lambda run: run.summary.jain_index),
        ("latency p50, well-behaved, s", lambda run: _or_zero(run, "latency_p50_s")),
        ("latency p99, well-behaved, s", lambda run: _or_zero(run, "latency_p99_s")),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6))
    width = 0.8 / len(policies)
    for axis, (title, value) in zip(axes, panels, strict=True):
        for place, policy in enumerate(policies):
            runs = {run.workload: run for run in measurement.runs if run.policy == policy}
            known = [(at, runs[name]) for at, name in enumerate(workloads) if name in runs]
            axis.bar(
                [at + (place - (len(policies) - 1) / 2) * width for at, _ in known],
                [value(run) for _, run in known],
                width,
                label=policy,
            )
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(workloads)), workloads, fontsize=8, rotation=20)
    axes[0].legend(fontsize=8)
    figure.suptitle(f"{measurement.model} on {measurement.device}, SGLang {measurement.engine}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _or_zero(run: RunResult, name: str) -> float:
    return 0.0 if run.well_behaved is None else float(getattr(run.well_behaved, name))
