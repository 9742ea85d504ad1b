"""The harness for a real engine: what it sends, how much of it, and what it says at its end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest
from evenkeel_laboratory.experiments.generators import Chat, DocumentQa, TreeOfThoughts
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec, read_spec
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Program

from bench.gpu.load import burst, longest_call, paced, shrunk
from bench.gpu.papers import WORKLOADS
from bench.gpu.prompts import Prompts
from bench.gpu.report import Measurement, RunResult, figures_of, table_of, write

VOCABULARY = 1024


@pytest.fixture(params=sorted(WORKLOADS))
def spec(request: pytest.FixtureRequest) -> WorkloadSpec:
    return read_spec(WORKLOADS[request.param])


def test_a_shrunk_workload_asks_as_many_calls_with_fewer_tokens(spec: WorkloadSpec) -> None:
    small = shrunk(spec, 16)
    before, after = burst(spec, 8, seed=3), burst(small, 8, seed=3)
    assert [len(program.calls) for program in before] == [len(program.calls) for program in after]
    assert longest_call(after) < longest_call(before) / 8
    assert all(call.output_tokens >= 1 for program in after for call in program.calls)


def test_arrivals_have_the_rate_that_is_asked_for_in_the_clients_ratio(spec: WorkloadSpec) -> None:
    programs = paced(spec, programs_per_s=20, duration_s=200, seed=1)
    assert len(programs) == pytest.approx(4000, rel=0.05)
    got = Counter(program.client for program in programs)
    rates = {name: client.arrivals.rate_per_s for client in spec.clients for name in client.names()}
    for name, rate in rates.items():
        assert got[name] / len(programs) == pytest.approx(rate / sum(rates.values()), rel=0.15)


def test_a_burst_is_due_at_once(spec: WorkloadSpec) -> None:
    assert {program.arrival_s for program in burst(spec, 12, seed=0)} == {0.0}


def program_of(spec: Chat | TreeOfThoughts | DocumentQa) -> Program:

    return Program("p", "c", 0.0, spec.calls("p", "c", Random(0)))


def answer(prompts: Prompts, number: int, output: list[int]) -> list[int]:
    ids = prompts.input_ids(number)
    prompts.answered(number, ids, output)
    return ids


def test_a_turn_holds_what_was_really_answered() -> None:
    program = program_of(Chat(system_tokens=5, turns=3, turn_tokens=4, output_tokens=3, spread=0))
    prompts = Prompts(program, vocabulary=VOCABULARY)
    first = answer(prompts, 0, [7, 7, 7])
    second = answer(prompts, 1, [8, 8, 8])
    third = answer(prompts, 2, [9, 9, 9])
    assert second[: len(first) + 3] == [*first, 7, 7, 7]
    assert third[: len(second) + 3] == [*second, 8, 8, 8]
    assert [len(ids) for ids in (first, second, third)] == [
        call.input_tokens for call in program.calls
    ]


def test_a_node_of_a_tree_holds_its_own_parent_s_thought() -> None:
    program = program_of(TreeOfThoughts(branches=2, output_tokens=2, spread=0))
    prompts = Prompts(program, vocabulary=VOCABULARY)
    for number, call in enumerate(program.calls):
        ids = answer(prompts, number, [number + 2] * 2)
        assert len(ids) == call.input_tokens
        for parent in call.after:
            length = program.calls[parent].input_tokens
            assert ids[length : length + 2] == [parent + 2] * 2


def test_questions_on_a_document_share_it_and_no_answer() -> None:
    program = program_of(DocumentQa(document_tokens=50, question_tokens=6, questions=2, spread=0))
    prompts = Prompts(program, vocabulary=VOCABULARY)
    first, second = answer(prompts, 0, [1] * 15), prompts.input_ids(1)
    assert first[:50] == second[:50]
    assert first[50:] != second[50:]
    assert all(2 <= word < VOCABULARY for word in first)


def record(client: str, number: int, *, latency_s: float) -> Record:
    return Record(
        id=f"{client}.{number}",
        program=f"{client}.{number}",
        client=client,
        replica=0,
        status="finished",
        arrival_s=float(number),
        admitted_s=None,
        first_token_s=number + latency_s / 2,
        finished_s=number + latency_s,
        input_tokens=100,
        cached_tokens=60,
        extend_tokens=40,
        output_tokens=10,
        retractions=0,
    )


def figures(policy: str) -> RunResult:
    records = [
        *(record("flooder", number, latency_s=50.0) for number in range(10)),
        *(record("ordinary", number, latency_s=1.0 + number) for number in range(3)),
    ]
    return figures_of(
        records,
        workload="w",
        policy=policy,
        misbehaving={"flooder"},
        open_calls=[("flooder", 1), ("flooder", 2)],
        programs_per_s=2.0,
        capacity_programs_per_s=1.0,
        elapsed_s=100.0,
    )


def test_the_flood_s_latency_is_not_the_others() -> None:
    found = figures("DLPM")
    assert found.well_behaved is not None
    assert found.well_behaved.finished == 3
    assert found.well_behaved.latency_p50_s == 2.0
    assert found.well_behaved.latency_p99_s < 3.01
    assert found.unfinished == {"flooder": 2}
    assert found.summary.throughput_tokens_per_s == pytest.approx(13 * 110 / 100)
    assert found.summary.hit_rate == pytest.approx(0.6)


def test_a_run_in_which_no_ordinary_request_ended_is_reported() -> None:
    found = figures_of(
        [record("flooder", 0, latency_s=1.0)],
        workload="w",
        policy="LPM",
        misbehaving={"flooder"},
        open_calls=[("ordinary", 1)],
        programs_per_s=1.0,
        capacity_programs_per_s=1.0,
        elapsed_s=10.0,
    )
    assert found.well_behaved is None
    assert "| – | – | – | – | 1 |" in table_of([found])


def test_three_files_hold_a_measurement(tmp_path: Path) -> None:
    measurement = Measurement(
        engine="0.5.23",
        device="cpu",
        model="m",
        flags=(),
        shrink=16.0,
        load=2.0,
        duration_s=20.0,
        seed=0,
        runs=(figures("LPM"), figures("DLPM")),
    )
    write(measurement, tmp_path / "out")
    read = msgspec.json.decode((tmp_path / "out" / "figures.json").read_bytes(), type=Measurement)
    assert read == measurement
    assert (tmp_path / "out" / "table.md").read_text().count("\n") == 4
    assert (tmp_path / "out" / "figures.png").read_bytes().startswith(b"\x89PNG")
