"""The harness for a real engine against a simulated replica, which speaks the same `/generate`."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from evenkeel_laboratory.experiments.workload_file import read_spec
from evenkeel_simulator.server.app import running_server

from bench.closed_loop import read_loop
from bench.gpu.fit import fit
from bench.gpu.fleet import GPU_ATTEMPTS, Engines, shape_of
from bench.gpu.journal import Journal, read_records
from bench.gpu.load import burst, shrunk
from bench.gpu.loops import figures_of, play, scaled
from bench.gpu.measuring import Engine, MeasurementPlan, measure
from bench.gpu.papers import WORKLOADS
from bench.gpu.profiling import grid, profile
from bench.gpu.report import RunResult
from bench.gpu.run import measured
from bench.gpu.sending import open_session
from bench.gpu.steps import WORKLOADS as LOOPS
from bench.gpu.steps import Context
from tests.support.replicas import settings

VOCABULARY = 1000


async def test_every_call_is_made_and_finds_what_its_parents_left() -> None:
    programs = burst(shrunk(read_spec(WORKLOADS["multi-turn"]), 8), 6, seed=1)
    async with running_server(settings()) as server, open_session() as session:
        engine = Engine(server.url, session, VOCABULARY)
        run, _ = await engine.run("w", programs, over=lambda _: False)
    assert len(run.records) == sum(len(program.calls) for program in programs)
    assert not run.open
    calls = {f"{p.id}.{n}": call for p in programs for n, call in enumerate(p.calls)}
    for record in run.records:
        call = calls[record.id]
        assert (record.input_tokens, record.output_tokens) == (
            call.input_tokens,
            call.output_tokens,
        )
        if call.after:  # all of the parent's context but for its last page
            parent = calls[f"{record.program}.{call.after[0]}"]
            context_tokens = parent.input_tokens + parent.output_tokens
            assert record.cached_tokens >= (context_tokens - 16) // 16 * 16


async def test_a_run_ends_with_the_ordinary_clients_and_counts_the_flood_s_rest() -> None:
    plan = MeasurementPlan(
        workloads={"judge-s1": shrunk(read_spec(WORKLOADS["judge-s1"]), 16)},
        burst_programs=8,
        load=3.0,
        duration_s=2.0,
        seed=2,
        vocabulary=VOCABULARY,
    )
    results: list[RunResult] = []
    capacities: dict[str, float] = {}
    async with running_server(settings(replica_policy="DLPM", speed=20.0)) as server:
        found = await measure(
            server.url, "DLPM", plan, capacities=capacities, report=results.append
        )
        again = await measure(
            server.url, "DLPM", plan, capacities=capacities, report=results.append
        )
    assert results == [*found, *again]
    (run,) = found
    assert run.programs_per_s == pytest.approx(3 * capacities["judge-s1"])
    assert again[0].capacity_programs_per_s == run.capacity_programs_per_s
    assert run.well_behaved is not None
    assert run.summary.hit_rate > 0.3


async def test_a_closed_loop_gives_figures_and_a_record_of_each_request() -> None:
    spec = read_loop(LOOPS / "flood.yaml")
    spec = scaled(spec, tokens=0.02, seconds=0.1, most_open=6)
    notes: list[Mapping[str, Any]] = []
    async with running_server(settings(speed=20.0)) as server, open_session() as session:
        figures = await play(
            session, server.url, spec, scene="flood", vocabulary=VOCABULARY, note=notes.append
        )
    measured, rival = figures_of(figures, spec)
    assert {note["client"] for note in notes} == {"measured", "rival"}
    assert len(notes) == sum(len(own.finished) for own in figures.values())
    for note in notes:
        output = 16 if note["client"] == "measured" else 8
        assert len(note["token_ms"]) <= output
        assert note["token_ms"] == sorted(note["token_ms"])
        assert 0 <= note["cached_tokens"] < note["input_tokens"]
    assert measured.requests_per_s > 0
    assert rival.requests_per_s > 0


async def test_a_profile_can_be_fitted() -> None:
    shape = {"pool_tokens": 4000, "chunk_tokens": 512}
    points = grid(scale=0.1, pool_tokens=4000, context_tokens=4000, max_running=64)
    notes: list[Mapping[str, Any]] = [{"kind": "plan", **shape}]
    async with running_server(settings()) as server, open_session() as session:
        await profile(session, server.url, points, vocabulary=VOCABULARY, note=notes.append)
    assert [note["kind"] for note in notes[1:]] == [
        *["prefill"] * len(points.prompts),
        *["decode"] * len(points.batches),
    ]
    assert len(fit(notes).points) == len(notes) - 1


async def test_a_step_that_runs_out_of_time_keeps_what_it_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "results.jsonl")
    options = Namespace(scale=0.02, pace=1.0, patience=0.04)  # 2.2 s of 55
    engines = Engines(
        python=tmp_path,
        model=tmp_path,
        shape=shape_of(scale=0.1, pool_tokens=40_000),
        attempts=GPU_ATTEMPTS,
        work=tmp_path,
        site=tmp_path,
        cpu=True,
        flags=(),
        note=journal.note,
        deadline_s=time.monotonic() + 60,
    )
    context = Context(options, journal, VOCABULARY)
    async with running_server(settings(speed=20.0)) as server:
        engines.urls["dlpm"] = server.url
        assert not await asyncio.to_thread(measured, context, engines, "flood", "dlpm")
        assert not await asyncio.to_thread(measured, context, engines, "flood", "lpm")
    *requests, failed, left_out = [
        record for record in read_records([journal.path]) if record["kind"] != "metrics"
    ]
    assert requests
    assert {record["kind"] for record in requests} == {"request"}
    assert (failed["status"], failed["error"]) == ("failed", "not done in 2 s")
    assert (left_out["status"], left_out["error"]) == ("left out", "the engine did not start")
