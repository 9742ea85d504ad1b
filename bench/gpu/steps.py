"""The steps of a measurement: what each sends to which engine, and how long it may take."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from bench.closed_loop import LoopSpec, read_loop
from bench.gpu.fleet import Engines, shape_of
from bench.gpu.journal import Journal
from bench.gpu.loops import alone, figures_of, play, scaled
from bench.gpu.papers import measure_papers, plan_of
from bench.gpu.profiling import grid, profile
from bench.gpu.report import RunResult
from bench.gpu.routed import running_router
from bench.gpu.sending import clear, open_session

WORKLOADS: Final = Path(__file__).parent / "workloads"
TOY_OPEN: Final = 200
"""Most open requests of a client on a toy."""


@dataclass(slots=True)
class Context:
    """What the steps share."""

    options: argparse.Namespace
    journal: Journal
    vocabulary: int
    capacities: dict[str, float] = field(default_factory=dict)
    papers: list[RunResult] = field(default_factory=list)

    def spec(self, name: str) -> LoopSpec:
        """A closed loop, at the scale of this run."""
        options = self.options
        spec = read_loop(WORKLOADS / f"{name}.yaml")
        if options.scale == 1 and options.pace == 1:
            return spec
        most_open = TOY_OPEN if options.scale < 1 else 10**9
        return scaled(spec, tokens=options.scale, seconds=options.pace, most_open=most_open)


Measure = Callable[[Context, str, Engines], Awaitable[None]]
"""(context, name of the engine, all engines)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One experiment."""

    limit_s: float
    """The most seconds for each engine, at pace 1."""
    engines: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """Engines that must run too."""
    otherwise: str = ""
    """The engine that is measured instead if the first does not start."""
    measure: Measure


async def _profile(context: Context, name: str, engines: Engines) -> None:
    options = context.options
    shape = shape_of(scale=options.scale, pool_tokens=options.pool)
    points = grid(
        scale=options.scale,
        pool_tokens=shape.pool_tokens,
        context_tokens=shape.context_tokens,
        max_running=shape.max_running,
    )
    async with open_session() as session:
        await profile(
            session,
            engines.urls[name],
            points,
            vocabulary=context.vocabulary,
            note=context.journal.note,
        )


def _scenes(*names: str, beside_nobody: bool = True) -> Measure:
    async def measure(context: Context, name: str, engines: Engines) -> None:
        url = engines.urls[name]
        for scene in names:
            spec = context.spec(scene)
            if beside_nobody:
                await _play(context, f"{scene}-alone", alone(spec), url, engines=[url])
            await _play(context, scene, spec, url, engines=[url])

    return measure


async def _play(
    context: Context, scene: str, spec: LoopSpec, url: str, *, engines: Sequence[str]
) -> None:
    """Play a workload at `url`. `engines`: addresses of the engines behind it, which are empty before and after."""
    context.journal.context["scene"] = scene
    try:
        async with open_session() as session:
            for engine in engines:
                await clear(session, engine)
            figures = await play(
                session,
                url,
                spec,
                scene=scene,
                vocabulary=context.vocabulary,
                note=context.journal.note,
            )
            for row in figures_of(figures, spec):
                context.journal.note({"kind": "figures", **msgspec.to_builtins(row)})
            for engine in engines:
                await clear(session, engine)
    finally:
        del context.journal.context["scene"]


async def _papers(context: Context, name: str, engines: Engines) -> None:
    plan = plan_of(context.options, tokens=context.options.scale, vocabulary=context.vocabulary)

    def report(found: RunResult) -> None:
        context.papers.append(found)
        context.journal.note({"kind": "paper", **msgspec.to_builtins(found)})

    await measure_papers(
        engines.urls[name], name.upper(), plan, capacities=context.capacities, report=report
    )


async def _replicas(context: Context, name: str, engines: Engines) -> None:
    spec = context.spec("flood")
    replicas = {one: (engines.urls[one], engines.reports[one]) for one in (name, "dlpm-2")}
    clients = [client.name for client in spec.clients]
    with running_router(replicas, clients, log=context.options.work / "router.log") as url:
        await _play(context, "replicas", spec, url, engines=[one for one, _ in replicas.values()])


_THREE: Final = ("dlpm", "fcfs", "lpm")
STEPS: Final[Mapping[str, Step]] = {
    "profile": Step(limit_s=90, engines=("dlpm",), otherwise="fcfs", measure=_profile),
    "flood": Step(limit_s=55, engines=_THREE, measure=_scenes("flood")),
    "runner": Step(limit_s=40, engines=_THREE, measure=_scenes("runner")),
    "queue": Step(limit_s=45, engines=_THREE, measure=_scenes("queue", beside_nobody=False)),
    "long": Step(limit_s=125, engines=_THREE, measure=_scenes("long")),
    "papers": Step(limit_s=500, engines=("lpm", "vtc", "dlpm"), measure=_papers),
    "replicas": Step(limit_s=60, engines=("dlpm",), beside=("dlpm-2",), measure=_replicas),
}
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "smoke": ("profile",),
    "policies": ("flood", "runner", "queue"),
}
"""Steps that one call of the runbook makes."""


def plan_of_steps(
    names: Sequence[str], *, side_by_side: bool, engines: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """(step, engine) in order. Engines one after another are started once each."""
    steps = [step for name in names for step in GROUPS.get(name, (name,))]
    pairs = [
        (step, engine)
        for step in steps
        for engine in STEPS[step].engines
        if engines is None or engine in engines
    ]
    if not side_by_side:
        order = list(dict.fromkeys(engine for _, engine in pairs))
        pairs.sort(key=lambda pair: order.index(pair[1]))
    return pairs


def engines_at(
    pairs: Sequence[tuple[str, str]], place: int, *, side_by_side: bool
) -> tuple[str, ...]:
    """The engines that may run during the pair at `place`, that of the pair first. The memory of one card has room for three."""
    step, name = pairs[place]
    wanted = [name, *STEPS[step].beside]
    if side_by_side and not STEPS[step].beside:
        wanted += [engine for _, engine in pairs[place:]]
    return tuple(dict.fromkeys(wanted))
