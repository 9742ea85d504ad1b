"""The scaling laboratory of `evenkeel simulate --autoscale FILE`: one workload, several scalers, a table and plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import write_json
from evenkeel_cli.trace_options import UsageError
from evenkeel_cli.yamlfile import Document, read_documents
from evenkeel_contract.render import router_config
from evenkeel_contract.routerconfig import ListenConfig
from evenkeel_contract.spec.autoscaling import Autoscaling
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant
from evenkeel_contract.validate import parse_service, parse_tenant
from evenkeel_contract.values import Fault
from evenkeel_operator.core.recommendation import Parts, parts_of
from evenkeel_router.ledger.totals import DemandMeter
from evenkeel_simulator.traffic.workload import Workload
from rich.console import Console

from evenkeel_laboratory.commands.scalers import (
    OperatorScaler,
    PanicScaler,
    QueueScaler,
    StaticScaler,
)
from evenkeel_laboratory.experiments.plots import DPI, scaling_figure
from evenkeel_laboratory.experiments.scaling import Scaler, ScalingFigures, run_scaled
from evenkeel_laboratory.experiments.setup import Setup

DEFAULT_TTFT_S: Final = 2.0
"""Time to first token of a service without `slo.ttft`."""
PLOT: Final = "scaling.png"
FIGURES: Final = "scaling.json"

Changes = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """What the file says."""

    scaling: Autoscaling
    parts: Parts
    threshold_s: float

    @property
    def first(self) -> int:
        """Replicas at the start. The laboratory has at least one."""
        return max(1, self.scaling.min_replicas)


def read_terms(path: Path) -> ServiceTerms:
    """Terms of the only FairInferenceService of a file and of its tenants; raises `UsageError` and `YamlFault`."""
    services: list[FairInferenceService] = []
    tenants: list[InferenceTenant] = []
    faults: list[str] = []
    for document in read_documents(path):
        kind = document.data.get("kind") if isinstance(document.data, dict) else None
        found: tuple[Any, tuple[Fault, ...]] = (None, ())
        if kind == "FairInferenceService":
            found = parse_service(document.data)
            services += [found[0]] if found[0] else []
        elif kind == "InferenceTenant":
            found = parse_tenant(document.data)
            tenants += [found[0]] if found[0] else []
        faults += _lines(path, document, found[1])
    if faults:
        raise UsageError("\n".join(faults))
    if len(services) != 1:
        raise UsageError(
            f"--autoscale {path}: has {len(services)} documents of kind FairInferenceService, must have one"
        )
    (service,) = services
    if service.spec.autoscaling is None:
        raise UsageError(f"--autoscale {path}: spec.autoscaling is not set; set maxReplicas in it")
    config = router_config(service, tenants=tenants, key_hashes={}, listen=ListenConfig())
    slo = service.spec.slo.ttft
    return ServiceTerms(
        scaling=service.spec.autoscaling,
        parts=parts_of(config.tenancy.tenants),
        threshold_s=DEFAULT_TTFT_S if slo is None else slo.threshold.seconds,
    )


def _lines(path: Path, document: Document, faults: Sequence[Fault]) -> Iterator[str]:
    for fault in faults:
        yield f"{path}:{document.position_of(fault.path).line}: {fault.path}: {fault.message}"


def scalers(terms: ServiceTerms, *, queue_target: float, concurrency_target: float) -> list[Scaler]:
    """The operator's core first, then the scalers that it is compared with."""
    scaling = terms.scaling
    sizes = sorted({scaling.max_replicas, max(1, scaling.max_replicas // 2)}, reverse=True)
    return [
        OperatorScaler(scaling, terms.parts, replicas=terms.first),
        QueueScaler(scaling, target=queue_target, replicas=terms.first),
        PanicScaler(scaling, target=concurrency_target),
        *(StaticScaler(size) for size in sizes),
    ]


def compare(
    setup: Setup,
    work: Workload,
    terms: ServiceTerms,
    candidates: Sequence[Scaler],
    *,
    startup_s: float,
) -> tuple[list[ScalingFigures], dict[str, Changes]]:
    """(figures, replicas over time) of each scaler under the same workload."""
    work = replace(work, programs=list(work.programs))
    found: list[ScalingFigures] = []
    over_time: dict[str, Changes] = {}
    for scaler in candidates:
        first = scaler.replicas if isinstance(scaler, StaticScaler) else terms.first
        figures, changes, _ = run_scaled(
            replace(setup, replicas=first).fleet(),
            work,
            scaler=scaler,
            meter=DemandMeter(),
            startup_s=startup_s,
            threshold_s=terms.threshold_s,
        )
        found.append(figures)
        over_time[scaler.name] = changes
    return found, over_time


def write(
    found: list[ScalingFigures], over_time: dict[str, Changes], out: Path, *, title: str | None
) -> None:
    """`scaling.json`, and `scaling.png` unless `title` is None; raises `UsageError`."""
    try:
        write_json(found, out / FIGURES)
        if title is not None:
            points = {one.scaler: (one.gpu_s, one.attainment or 0.0) for one in found}
            scaling_figure(over_time, points, title=title).savefig(out / PLOT, dpi=DPI)
    except OSError as error:
        raise UsageError(f"--out {out}: {error}") from error


def report(found: Sequence[ScalingFigures], console: Console, *, threshold_s: float) -> None:
    """The table of all runs."""
    within = f"in {threshold_s:g} s"
    table = make_table("scaler", "GPU hours", within, "TTFT p50", "p99", "starts", "flaps", "peak")
    for one in found:
        table.add_row(
            one.scaler,
            f"{one.gpu_s / 3600:,.2f}",
            "-" if one.attainment is None else f"{one.attainment:.1%}",
            f"{one.ttft_p50_s:,.2f} s",
            f"{one.ttft_p99_s:,.2f} s",
            f"{one.starts}",
            f"{one.flaps}",
            f"{one.peak}",
        )
    console.print(FittedTable(table))
    console.print(
        "\nLatency counts requests of clients within their share: no more than twice their weighted part of what all ask for in "
        "a minute.",
        highlight=False,
    )
