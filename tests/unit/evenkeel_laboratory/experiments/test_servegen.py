import os
from pathlib import Path
from statistics import fmean, median

import pytest
from evenkeel_laboratory.experiments.servegen import Tables, read_tables
from evenkeel_laboratory.experiments.workload_file import WorkloadError, make_workload, read_spec
from evenkeel_simulator.traffic.traces import TraceError
from evenkeel_simulator.traffic.workload import Program

ROOT = Path(__file__).resolve().parents[4]
TRACES = Path(os.environ.get("EVENKEEL_DATA", ROOT.parent / "shared" / "data"))
RATES = """client,t_s,rate_rps,iat_cv,iat_family,shape,scale
a,0,2,1,Gamma,1,0.5
a,600,20,1,Weibull,1,0.05
b,600,1,1,Gamma,1,1
"""
LENGTHS = """client,window_start_s,field,mean,p0,p50,p100
a,0,input_tokens,1,100,200,400
a,600,input_tokens,1,1000,2000,4000
a,0,output_tokens,1,5,5,5
b,0,input_tokens,1,1,1,1
b,0,output_tokens,1,0,0,0
b,0,reason_ratio,0.5,0,x,1
"""


def draw(
    folder: Path, *, rates: str = RATES, lengths: str = LENGTHS, **changes: float
) -> dict[str, list[Program]]:
    options = {"start_s": 0.0, "duration_s": 1200.0, "load": 1.0, "seed": 1, **changes}
    drawn = tables(folder, rates=rates, lengths=lengths).programs(**options)  # type: ignore[arg-type]
    return {programs[0].client: programs for programs in drawn if programs}


def tables(folder: Path, *, rates: str = RATES, lengths: str = LENGTHS) -> Tables:
    (folder / "rates.csv").write_text(rates)
    (folder / "lengths.csv").write_text(lengths)
    return read_tables(folder / "rates.csv", folder / "lengths.csv")


def test_each_client_has_its_rates_and_lengths_by_window(tmp_path: Path) -> None:
    drawn = draw(tmp_path)
    early = [p for p in drawn["client-a"] if p.arrival_s < 600]
    late = [p for p in drawn["client-a"] if p.arrival_s >= 600]
    assert (len(early), len(late)) == (pytest.approx(1200, rel=0.15), pytest.approx(12000, rel=0.1))
    assert all(p.arrival_s >= 600 for p in drawn["client-b"])
    assert median(p.calls[0].input_tokens for p in early) == pytest.approx(200, rel=0.1)
    assert fmean(p.calls[0].input_tokens for p in early) == pytest.approx(225, rel=0.1)
    assert median(p.calls[0].input_tokens for p in late) == pytest.approx(2000, rel=0.1)
    assert {p.calls[0].output_tokens for p in early} == {5}
    assert {p.calls[0].output_tokens for p in drawn["client-b"]} == {1}


def test_arrivals_ascend_from_the_start_within_the_duration(tmp_path: Path) -> None:
    for programs in draw(tmp_path, start_s=500.0, duration_s=300.0).values():
        times = [program.arrival_s for program in programs]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] < 300


def test_load_multiplies_rates_and_the_same_seed_gives_the_same_requests(tmp_path: Path) -> None:
    once = draw(tmp_path)
    assert once == draw(tmp_path)
    assert once != draw(tmp_path, seed=2)
    assert len(draw(tmp_path, load=3.0)["client-a"]) == pytest.approx(
        3 * len(once["client-a"]), rel=0.1
    )


@pytest.mark.parametrize(
    ("table", "old", "new", "want"),
    [
        ("rates", "a,0,2", "a,x,2", "line 2: t_s is 'x', not a number"),
        ("rates", "Weibull,1", "Weibull,0", "line 3: shape and scale must be above 0"),
        ("rates", "Weibull,1,0.05", "Weibull,,", "line 3: shape is '', not a number"),
        ("rates", "Weibull,1,0.05", "Weibull", "line 3: shape is None, not a number"),
        ("rates", "Weibull", "Pareto", "line 3: iat_family is 'Pareto', not Gamma or Weibull"),
        ("lengths", "100,200,400", "100,90,400", "line 2: quantiles must ascend from 0 or more"),
        ("lengths", "100,200,400", "100,nan,400", "line 2: p50 is 'nan', not a number"),
    ],
)
def test_rows_that_cannot_be_drawn_are_skipped_and_counted(
    tmp_path: Path, table: str, old: str, new: str, want: str
) -> None:
    text = {"rates": RATES, "lengths": LENGTHS}[table].replace(old, new, 1)
    read = tables(tmp_path, **{table: text})
    rows = {"rates": 3, "lengths": 5}[table]
    (note,) = read.skipped
    assert note == (
        f"{tmp_path / table}.csv: 1 of {rows} rows cannot be drawn and were skipped, the first: {want}"
    )
    assert {*read.sources} == {"a", "b"}, "each has other rows"


def test_the_others_of_a_client_are_drawn_as_before(tmp_path: Path) -> None:
    whole, without = draw(tmp_path), draw(tmp_path, rates=RATES.replace("Weibull,1", "Weibull,nan"))
    early = [program for program in whole["client-a"] if program.arrival_s < 600]
    assert without == whole | {"client-a": early}


def test_a_client_without_lengths_is_skipped_and_counted(tmp_path: Path) -> None:
    read = tables(tmp_path, lengths=LENGTHS.replace("b,0,out", "c,0,out"))
    assert read.skipped == [
        f"{tmp_path}/lengths.csv: 1 of 2 clients have no lengths and were skipped, the first: client b"
    ]
    assert {*read.sources} == {"a"}


@pytest.mark.parametrize(
    ("rates", "want"),
    [
        (RATES.replace("shape,", ""), "rates.csv: no column shape; a table has client,t_s"),
        (RATES.replace("Gamma", "X").replace("Weibull", "X"), "3 of 3 rows cannot be drawn"),
        (RATES.partition("\n")[0], "rates.csv: no rows"),
    ],
)
def test_tables_of_which_nothing_can_be_drawn_are_refused(
    tmp_path: Path, rates: str, want: str
) -> None:
    with pytest.raises(TraceError, match=want):
        tables(tmp_path, rates=rates)


def test_a_workload_file_names_the_tables(tmp_path: Path) -> None:
    draw(tmp_path)
    (tmp_path / "w.yaml").write_text(
        "about: two clients\nprofile: a100-llama3.1-8b\nduration_s: 700\n"
        "servegen: {rates: rates.csv, lengths: lengths.csv, start_s: 100}\n"
    )
    spec = read_spec(tmp_path / "w.yaml")
    assert spec.files == ("rates.csv", "lengths.csv")
    programs = list(make_workload("w", spec, seed=0, traces=tmp_path).programs)
    assert {program.client for program in programs} == {"client-a", "client-b"}
    assert [p.arrival_s for p in programs] == sorted(p.arrival_s for p in programs)


def test_a_workload_has_one_source(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("about: none\nprofile: a100-llama3.1-8b\n")
    with pytest.raises(WorkloadError, match="exactly one of clients, trace and servegen"):
        read_spec(tmp_path / "w.yaml")


@pytest.mark.skipif(not (TRACES / "servegen_r1_rates.csv.gz").exists(), reason="no ServeGen tables")
def test_the_published_tables_are_read() -> None:
    spec = read_spec(ROOT / "bench" / "workloads" / "servegen.yaml")
    programs = list(make_workload("servegen", spec, seed=0, traces=TRACES).programs)
    assert len({program.client for program in programs}) > 10
    assert 2000 < fmean(program.calls[0].output_tokens for program in programs) < 4000
