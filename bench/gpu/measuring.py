"""One engine, one policy: every workload in turn, first as a burst if its capacity is not known yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec
from evenkeel_simulator.traffic.workload import Program

from bench.gpu.load import burst, paced
from bench.gpu.report import RunResult, figures_of
from bench.gpu.sending import Run, clear, open_session

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """Settings of a measurement."""

    workloads: Mapping[str, WorkloadSpec]
    burst_programs: int
    load: float
    """Arrival rate, in multiples of the engine's throughput."""
    duration_s: float
    seed: int
    vocabulary: int
    """Token ids are below it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that runs, and its client."""

    url: str
    session: aiohttp.ClientSession
    vocabulary: int

    async def run(
        self, name: str, programs: Sequence[Program], *, over: Callable[[Run], bool]
    ) -> tuple[Run, float]:
        """Send all until all have ended or it is `over`; returns (records, seconds). The cache is empty at first."""
        await clear(self.session, self.url)
        began_s = time.monotonic()
        run = Run(
            url=self.url,
            name=name,
            vocabulary=self.vocabulary,
            session=self.session,
            now_s=lambda: time.monotonic() - began_s,
        )
        sending = asyncio.create_task(run.send_all(programs))
        while not sending.done() and not over(run):
            await asyncio.wait([sending], timeout=_LOOK_S)
        elapsed_s = run.now_s()
        if sending.done():
            sending.result()  # a failure is one
        sending.cancel()
        await asyncio.wait([sending])
        return run, elapsed_s


async def measure(
    url: str,
    policy: str,
    plan: MeasurementPlan,
    *,
    capacities: dict[str, float],
    report: Callable[[RunResult], None],
) -> list[RunResult]:
    """Every workload; `capacities` (programs/s) gets those that are not in it yet, `report` each result at once."""
    found = []
    async with open_session() as session:
        engine = Engine(url, session, plan.vocabulary)
        for name, spec in plan.workloads.items():
            if name not in capacities:
                capacities[name] = await _capacity(engine, name, spec, plan)
            found.append(await _measured(engine, name, spec, plan, policy, capacities[name]))
            report(found[-1])
    return found


async def _capacity(engine: Engine, name: str, spec: WorkloadSpec, plan: MeasurementPlan) -> float:
    programs = burst(spec, plan.burst_programs, seed=plan.seed)
    _, elapsed_s = await engine.run(f"{name}-burst", programs, over=lambda _: False)
    return len(programs) / elapsed_s


async def _measured(
    engine: Engine,
    name: str,
    spec: WorkloadSpec,
    plan: MeasurementPlan,
    policy: str,
    capacity: float,
) -> RunResult:
    rate = plan.load * capacity
    programs = paced(spec, programs_per_s=rate, duration_s=plan.duration_s, seed=plan.seed)
    awaited = sum(len(p.calls) for p in programs if p.client not in spec.misbehaving)

    def over(run: Run) -> bool:
        ended = sum(record.client not in spec.misbehaving for record in run.records)
        patience_s = plan.duration_s if ended == awaited else 2 * plan.duration_s
        return run.now_s() >= patience_s

    run, elapsed_s = await engine.run(name, programs, over=over)
    return figures_of(
        run.records,
        workload=name,
        policy=policy,
        misbehaving=spec.misbehaving,
        open_calls=run.open,
        programs_per_s=rate,
        capacity_programs_per_s=capacity,
        elapsed_s=elapsed_s,
    )
