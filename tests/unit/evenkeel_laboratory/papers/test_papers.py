"""Tables of the papers: their form, their verdicts, and cheap ones run as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from evenkeel_laboratory.papers.andes import _capacity
from evenkeel_laboratory.papers.registry import EXPERIMENTS, PAPERS, pages
from evenkeel_laboratory.papers.results import Table, Verdict, percent, row
from evenkeel_laboratory.papers.runs import Context, scaled
from evenkeel_laboratory.papers.vtc import PROFILE, STEP_SPREAD, _judged, profile_of

WORKLOADS = Path(__file__).resolve().parents[4] / "bench" / "workloads"


def context(**fields) -> Context:
    return Context(workloads=WORKLOADS, traces=Path("/nonexistent"), quick=True, **fields)


def table(*verdicts: bool | Verdict | None) -> Table:
    return Table(
        name="vtc-x",
        title="X",
        about="A table.",
        headings=("run", "here"),
        rows=tuple(row("one", 1234.5, met=met) for met in verdicts),
    )


def test_a_table_counts_rows_that_the_paper_has_numbers_for():
    one = table(True, False, None)
    assert (one.met, one.compared) == (1, 2)
    assert one.rows[2].verdict is Verdict.NOT_COMPARED
    assert one.markdown().splitlines()[-3:] == [
        "| one | 1,234 | met |",
        "| one | 1,234 | not met |",
        "| one | 1,234 | – |",
    ]


def test_a_page_counts_rows_whose_number_lies_within_the_range_apart():
    written = pages({"vtc-x": table(True, Verdict.WITHIN, False)}, seed=0)["vtc"]
    assert "1 of 3 compared rows are met; in 1 more the paper's number lies within" in written


@pytest.mark.parametrize(
    ("average", "throughput", "want"),
    [
        (109, 102, Verdict.MET),
        (112, 102, Verdict.WITHIN),
        (112, 104, Verdict.NOT_MET),
        (131, 100, Verdict.NOT_MET),
    ],
)
def test_a_row_of_the_vtc_paper_is_judged_by_its_median_then_by_the_range(
    average, throughput, want
):
    paper = (0.0, 100.0, 0.0, 100.0)
    spread = (99, average) if average < 130 else (120, 140)
    assert _judged(paper, average=average, throughput=throughput, spread=spread) is want


def test_runs_of_one_server_differ_by_half_a_percent():
    steps_ms = [profile_of(seed).decode_ms for seed in range(5)]
    assert len(set(steps_ms)) == 5
    assert all(abs(one / PROFILE.decode_ms - 1) <= STEP_SPREAD for one in steps_ms)


def test_a_table_survives_its_file():
    one = table(True, None)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Table) == one


def test_a_page_has_the_tables_of_its_paper_only():
    written = pages({"vtc-x": msgspec.structs.replace(table(True, False), quick=True)}, seed=3)
    assert list(written) == ["vtc"]
    assert "1 of 2 compared rows are met." in written["vtc"]
    assert "evenkeel papers --only vtc --seed 3" in written["vtc"]
    assert "A table. Run with `--quick`." in written["vtc"]


def test_every_experiment_has_a_paper_and_a_table_of_its_name():
    assert all(name.split("-")[0] in PAPERS for name in EXPERIMENTS)


def test_percent_is_signed():
    assert percent(110, 100) == "+10.0%"
    assert percent(95, 100) == "-5.0%"


def test_scaling_keeps_the_phases_of_a_workload_in_proportion():
    spec = context().spec("multi-turn-s1")
    half = scaled(spec, load=2, replicas=4, length=0.5)
    assert half.replicas == 4
    assert half.duration_s == spec.duration_s / 2
    before, after = spec.clients[3].arrivals, half.clients[3].arrivals
    assert after.rate_per_s == before.rate_per_s * 4
    assert after.start_s == before.start_s / 2
    assert half.clients[0].arrivals.stop_s == float("inf")


def test_capacity_is_where_quality_falls_below_the_threshold(monkeypatch):
    qualities = {0.5: 1.0, 1.0: 0.95, 2.0: 0.85}
    monkeypatch.setattr("evenkeel_laboratory.papers.andes._mean", lambda value: value)
    results = {load: {"a": quality} for load, quality in qualities.items()}
    assert _capacity(results, "a") == pytest.approx(1.5)
    assert _capacity({0.5: {"a": 1.0}, 1.0: {"a": 0.9}}, "a") == 1.0
    assert _capacity({0.5: {"a": 0.1}, 1.0: {"a": 0.05}}, "a") == 0.5


def test_weighted_clients_get_their_parts_as_in_figure_16():
    names: list[str] = []
    got = EXPERIMENTS["vtc-fig16"](context(note=names.append))
    assert names == ["vtc-fig16"]
    assert got.name == "vtc-fig16"
    assert got.met == got.compared == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in EXPERIMENTS
        if name not in ("vtc-table2", "vtc-table3", "vtc-fig14", "dlpm-fig7")
    ],
)
def test_every_experiment_without_a_trace_runs(name):
    got = EXPERIMENTS[name](context())
    assert got.name == name
    assert got.compared > 0
    widths = {len(one.cells) for one in got.rows}
    assert widths == {len(got.headings)}
