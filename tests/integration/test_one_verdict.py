"""One run, six tools, one verdict: a flood under LPM, as `simulate`, `replay`, `demo`, `plan`, `top` and the console judge it.

The run is computed once, in virtual time. Each tool gets it in its own form: records, outcomes that a client saw, lines of a recording,
reports of a replica. Those that do not see when a replica admits a request differ by some points in the shares, not in the verdict.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from evenkeel_cli.demo import command as demo_command
from evenkeel_cli.demo.figures import make_figures
from evenkeel_cli.demo.phases import FLOOD, ORDINARY, Flood, PhaseResult, phases
from evenkeel_cli.replay.report import make_report, table_of
from evenkeel_cli.replay.run import Outcome
from evenkeel_cli.replay.sender import Answer
from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import make_view
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.recording import FleetLine, Header, Line, RequestLine, encode_line
from evenkeel_fairshare.ledger import ReplicaRow
from evenkeel_fairshare.verdict import Level
from evenkeel_laboratory.commands import simulate as simulate_command
from evenkeel_laboratory.commands.planning import recorded_figures, today
from evenkeel_laboratory.experiments.recording import read_recording
from evenkeel_laboratory.experiments.setup import Setup, simulate
from evenkeel_router.telemetry.console import now_answer
from evenkeel_router.telemetry.history import History
from evenkeel_router.telemetry.recent import seen
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import router_state
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import summarise
from evenkeel_simulator.traffic.timeline import Span, served
from evenkeel_simulator.traffic.workload import Program, Workload
from rich.console import Console

from tests.support.router_rooms import rooms_of
from tests.support.steps import result_of

LOAD = Flood(duration_s=70.0, ordinary_per_s=0.8)
SETUP = Setup(
    profile=PROFILES["a10g-llama2-7b"], replicas=1, replica_policy="LPM", fleet_policy="RoundRobin"
)


@pytest.fixture(scope="module")
def run() -> tuple[list[Program], list[Record]]:
    programs = LOAD.programs()
    records, _ = simulate(SETUP, Workload("flood", programs))
    return programs, records


def printed(what: object) -> str:
    console = Console(file=io.StringIO(), width=10_000)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def by_simulate(records: Sequence[Record], capsys: pytest.CaptureFixture[str]) -> str:
    summary = summarise(records, max(one.finished_s or 0 for one in records))
    simulate_command._report(summary, Path("out"))
    return capsys.readouterr().out


def outcomes(records: Sequence[Record]) -> list[Outcome]:
    """What a client saw: nothing of when the replica admitted a request."""
    return [
        Outcome(
            program=one.program,
            number=0,
            client=one.client,
            due_s=one.arrival_s,
            answer=Answer(
                sent_s=one.arrival_s,
                ended_s=one.finished_s or 0.0,
                first_token_s=one.first_token_s,
                input_tokens=one.input_tokens,
                cached_tokens=one.cached_tokens,
                output_tokens=one.output_tokens,
            ),
        )
        for one in records
    ]


def by_replay(records: Sequence[Record]) -> str:
    seen = outcomes(records)
    summary = summarise([one.record() for one in seen], max(one.finished_s or 0 for one in records))
    report = make_report(
        seen, summary=summary, url="u", model="m", trace="t", speed=1.0, max_concurrency=0, interrupted=False
    )  # fmt: skip
    return printed(table_of(report, seen))


def by_demo(
    programs: Sequence[Program], records: Sequence[Record], capsys: pytest.CaptureFixture[str]
) -> str:
    _, common, _ = phases(LOAD, "Auto")
    end_s = max(one.finished_s or 0 for one in records)
    result = PhaseResult(
        phase=common, programs=programs, outcomes=outcomes(records), elapsed_s=end_s
    )
    report = demo_command.DemoReport(
        replicas=1, client_quantum="Auto", profile="p", load=LOAD, phases={"x": make_figures(result)}
    )  # fmt: skip
    demo_command._print(report, Console(width=10_000))
    return capsys.readouterr().out


def identity(name: str) -> str:
    return f"ns/{name}/app"


def by_plan(records: Sequence[Record], folder: Path) -> str:
    lines: list[Line] = [
        Header(service="ns/s", model="m", router="r", started_unix=0.0, salt_id="s"),
        FleetLine(at_s=0.0, replicas=("r0",)),
    ]
    for one in records:
        assert one.ttft_s is not None and one.latency_s is not None
        lines.append(
            RequestLine(
                arrival_s=one.arrival_s, client=identity(one.client), api="/v1/completions", streamed=True,
                duration_s=one.latency_s, ttft_s=one.ttft_s, input_tokens=one.input_tokens,
                cached_tokens=one.cached_tokens, output_tokens=one.output_tokens, replica="r0",
            )
        )  # fmt: skip
    path = folder / "recording.jsonl"
    path.write_bytes(b"".join(map(encode_line, lines)))
    recording = read_recording(path)
    settings = today(recording, SETUP.profile, isolation=None)
    return recorded_figures(recording, settings.setup).verdict


def watched(records: Sequence[Record]) -> Rooms:
    """A router that read a report a second, at the moment of its worst verdict."""
    rooms = rooms_of("r0")
    truth, ledger = rooms.service_ledger.fairness, rooms.service_ledger.ledger
    names = [*ORDINARY, FLOOD]
    seconds = int(max(one.finished_s or 0 for one in records)) + 1
    spans = [
        span
        for one in records
        for span in (
            Span(one.client, one.admitted_s or 0, one.first_token_s or 0, one.extend_tokens),
            Span(one.client, one.first_token_s or 0, one.finished_s or 0, 2.0 * one.output_tokens),
        )
    ]
    given = served(spans, [(float(n), float(n + 1)) for n in range(seconds)])
    worst, sums = truth.now, dict.fromkeys(names, 0.0)
    for at_s in range(1, seconds):
        rows = []
        for name in names:
            own = [one for one in records if one.client == name]
            sums[name] += given[name][at_s - 1]
            admitted = sum((one.admitted_s or 0) <= at_s for one in own)
            waiting = sum(one.arrival_s <= at_s < (one.admitted_s or 0) for one in own)
            running = sum((one.admitted_s or 0) <= at_s < (one.finished_s or 0) for one in own)
            rows.append(
                ReplicaRow(identity(name), sums[name], requests=admitted, waiting=waiting, running=running)
            )  # fmt: skip
        ledger.observe("r0-1", since=ledger.sequence("r0-1"), sequence=at_s, rows=rows)
        for _ in truth.steps(["r0-1"], rooms.service_ledger.weights, float(at_s)):
            pass
        if truth.now.window_s >= 59 and truth.now.share_error > worst.share_error:
            worst = truth.now
    truth.now = worst
    return rooms


def by_top(rooms: Rooms) -> str:
    state = decode_state(result_of(router_state(rooms, 70.0, result_of(seen(rooms, 70.0)))))
    return printed(render(make_view(state, None)))


def by_console(rooms: Rooms) -> str:
    state = result_of(now_answer(rooms, History(), 70.0))
    assert state.level == Level.UNFAIR.value
    return state.verdict


def found_in(output: str) -> tuple[set[str], set[str], list[int]]:
    """Who took, who is hurt, and the per cents of the one verdict in an output."""
    (sentence,) = re.findall(r"Unfair: .*", output)
    took, _, hurt = sentence.partition("hurt: ")
    parts = [set(re.findall(r"ada|ben|cleo|flood", part)) for part in (took, hurt)]
    return parts[0], parts[1], [int(one) for one in re.findall(r"(\d+)%", took)]


def test_one_run_has_one_verdict_whatever_tool_gives_it(
    run: tuple[list[Program], list[Record]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "COLUMNS", "400"
    )  # a worker of a parallel run has 80: the sentence would have two lines
    programs, records = run
    rooms = watched(records)
    outputs = {
        "simulate": by_simulate(records, capsys),
        "replay": by_replay(records),
        "demo": by_demo(programs, records, capsys),
        "plan": by_plan(records, tmp_path),
        "top": by_top(rooms),
        "console": by_console(rooms),
    }
    found = {tool: found_in(output) for tool, output in outputs.items()}
    said = json.dumps({tool: re.findall("Unfair: .*", output) for tool, output in outputs.items()})
    for tool, (took, hurt, parts) in found.items():
        assert (took, hurt) == ({FLOOD}, set(ORDINARY)), f"{tool}: {said}"
        assert parts == pytest.approx(found["simulate"][2], abs=5), f"{tool}: {said}"


def test_tools_that_have_the_same_figures_say_the_same_words(
    run: tuple[list[Program], list[Record]], capsys: pytest.CaptureFixture[str]
) -> None:
    programs, records = run
    rooms = watched(records)
    replayed = re.findall(r"Unfair: .*\S", by_replay(records))
    assert replayed == re.findall(r"Unfair: .*\S", by_demo(programs, records, capsys))
    assert re.findall(r"Unfair: .*\.", by_top(rooms)) == [by_console(rooms)]


def test_an_outage_has_one_verdict_too(
    run: tuple[list[Program], list[Record]], capsys: pytest.CaptureFixture[str]
) -> None:
    programs, records = run
    failed = [
        replace(one, answer=replace(one.answer, error="502", first_token_s=None))
        for one in outcomes(records)
    ]
    want = f"No client is served: all {len(failed)} requests that ended failed."
    summary = summarise([one.record() for one in failed], 100.0)
    report = make_report(
        failed, summary=summary, url="u", model="m", trace="t", speed=1.0, max_concurrency=0, interrupted=False
    )  # fmt: skip
    assert want in printed(table_of(report, failed))
    simulate_command._report(summary, Path("out"))
    assert want in capsys.readouterr().out
    _, common, _ = phases(LOAD, "Auto")
    result = PhaseResult(phase=common, programs=programs, outcomes=failed, elapsed_s=100.0)
    figures = make_figures(result)
    demo_command._print(
        demo_command.DemoReport(
            replicas=1, client_quantum="Auto", profile="p", load=LOAD, phases={"x": figures}
        ),
        Console(width=10_000),
    )
    assert want in capsys.readouterr().out
