"""`evenkeel simulate` from the outside: its files and its error messages."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from evenkeel_cli.main import build
from typer.testing import CliRunner, Result

WORKLOAD = """
about: four clients, little to do
profile: a10g-llama3.2-3b
replicas: 2
duration_s: 20
clients:
  - name: flooder
    misbehaves: true
    arrivals: {rate_per_s: 6}
    program: {kind: single, input_tokens: 600, prefix_tokens: 500, output_tokens: 60, spread: 0.5}
  - name: ordinary
    count: 3
    arrivals: {rate_per_s: 0.5}
    program: {kind: tree-of-thoughts, branches: 2, output_tokens: 30}
"""
TRACE = "client,arrival_s,input_tokens,output_tokens\na,0,100,5\nb,0.5,100,5\n"


def simulate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build(["simulate"]), ["simulate", *map(str, arguments)])


def test_a_workload_writes_requests_summary_and_plots(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    result = simulate("--workload", tmp_path / "w.yaml", "--out", tmp_path / "out", "--seed", 3)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    with (tmp_path / "out" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == summary["requests"] == summary["finished"]
    assert set(summary["clients"]) == {"flooder", "ordinary-1", "ordinary-2", "ordinary-3"}
    assert set(summary["service_difference"]) == {"max", "avg", "var"}
    for key in (
        "throughput_tokens_per_s",
        "accumulated_difference_max",
        "jain_index",
        "jain_index_service_rate",
        "hit_rate",
        "makespan_s",
    ):
        assert summary[key] > 0
    client = summary["clients"]["flooder"]
    mine = [row for row in rows if row["client"] == "flooder"]
    served = sum(int(row["extend_tokens"]) + 2 * int(row["output_tokens"]) for row in mine)
    assert client["service"] == served
    assert client["requested"] > client["service"]
    assert 0 < client["ttft_p50_s"] < client["ttft_p99_s"] < client["latency_p99_s"]
    for name in ("service.png", "latency.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    for out in ("one", "two"):
        simulate("--workload", tmp_path / "w.yaml", "--out", tmp_path / out, "--seed", 3)
    for name in ("requests.csv", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ([], "give exactly one of --trace and --workload"),
        (["--workload", "nothing"], "workload 'nothing' is not one of agents"),
        (["--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--trace", "t.csv", "--profile", "tpu"], "profile 'tpu' is neither"),
        (["--trace", "t.csv", "--replica-policy", "SJF"], "replica policy 'SJF' is not one of"),
        (["--trace", "t.csv", "--fleet-policy", "x"], "fleet policy 'x' is not one of"),
        (["--trace", "t.csv", "--order", "newest"], "order 'newest' is not one of LongestMatch"),
        (["--trace", "t.csv", "--replicas", "0"], "replicas is 0, must be from 1 to 1024"),
        (["--trace", "t.csv", "--out", "t.csv/o"], "--out t.csv/o: Not a directory"),
        (["--trace", "t.csv", "--clients", "zipf"], "--clients is 'zipf', must be hash:N"),
        (["--trace", "t.csv", "--speed", "0"], "--speed is 0.0, must be above 0"),
        (["--trace", "t.csv", "--kv-tokens", "0"], "kv_tokens is 0, must be at least 1"),
        (["--trace", "t.csv", "--max-running", "0"], "max_running is 0, must be at least 1"),
        (["--trace", "t.csv", "--quantum", "0"], "quantum is 0.0"),
        (["--trace", "t.csv", "--worker-quantum", "nan"], "worker_quantum is nan"),
        (["--trace", "t.csv", "--input-weight", "-1"], "input_weight is -1.0, must be at least 0"),
        (["--trace", "t.csv", "--kv-time", "-1"], "kv_time is -1.0, must be at least 0"),
        (["--trace", "t.csv", "--warmup", "-1"], "warmup_s is -1.0, must be at least 0"),
        (["--trace", "t.csv", "--weight", "a"], "--weight is 'a', must be NAME=WEIGHT"),
        (["--trace", "t.csv", "--weight", "c=2"], "weights names c, which is no client"),
        (["--workload", "flood", "--speed", "2"], "--speed is for --trace"),
        (["--workload", "flood", "--weight", "a=2"], "--weight is for --trace"),
        (["--trace", "t.csv", "--out", "t.csv"], "--out t.csv:"),
        (["--trace", "bad.csv"], "bad.csv, line 2: output_tokens is 'x', not a whole number"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], want: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE)
    Path("bad.csv").write_text(TRACE.replace("100,5\nb", "100,x\nb"))
    result = simulate(*arguments)
    assert result.exit_code == 2, result.output
    assert want in result.output
    assert "Traceback" not in result.output


def test_another_order_lets_a_short_prompt_go_first(tmp_path: Path) -> None:
    """Two prompts wait while the first one runs: a long one with 512 cached tokens, and a short one."""
    prompts = {"a": range(2), "long": (0, *range(10, 29)), "short": range(2, 4)}
    lines = [
        f"{name},0.00{n},{512 * len(blocks)},50,{' '.join(map(str, blocks))}"
        for n, (name, blocks) in enumerate(prompts.items())
    ]
    (tmp_path / "t.csv").write_text(
        "\n".join(["client,arrival_s,input_tokens,output_tokens,hash_ids", *lines])
    )
    trace, served = ("--trace", tmp_path / "t.csv", "--max-running", 1, "--no-plots"), {}
    for order in ("LongestMatch", "match-octaves"):
        result = simulate(*trace, "--order", order, "--out", tmp_path / order)
        assert result.exit_code == 0, result.output
        with (tmp_path / order / "requests.csv").open() as file:
            served[order] = [row["client"] for row in csv.DictReader(file)]
    assert served == {
        "LongestMatch": ["a", "long", "short"],
        "match-octaves": ["a", "short", "long"],
    }


def test_a_client_whose_requests_do_not_fit_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE + "big,1,300000,5\n")
    result = simulate("--trace", tmp_path / "t.csv", "--kv-tokens", 9999, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "1 requests were refused because they do not fit an empty replica" in result.output
    assert "clients without a served request: big" in result.output
    assert "0 of 1" in result.output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["jain_index"] == 1.0


def test_a_trace_counts_from_its_first_arrival(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text(TRACE)
    (tmp_path / "2124.csv").write_text(TRACE.replace("a,0,", "a,2124,").replace("0.5", "2124.5"))
    summaries = []
    for name in ("0", "2124"):
        result = simulate("--trace", tmp_path / f"{name}.csv", "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        summaries.append((tmp_path / name / "summary.json").read_text())
    assert summaries[0] == summaries[1]


FLOODED = "client,arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{client},{n / 10},{tokens},50\n"
    for n in range(300)
    for client, tokens in (("ns/t/flood", 2000), ("ns/u/modest", 400))
)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ([], "Fair: every client that waited was given at least"),
        (["--replica-policy", "FCFS"], "hurt: ns/u/modest (given "),
        (["--weight", "ns/u=50", "--replica-policy", "FCFS"], "hurt: ns/u/modest (given "),
    ],
)
def test_a_run_ends_with_a_verdict(tmp_path: Path, options: list[str], want: str) -> None:
    (tmp_path / "t.csv").write_text(FLOODED)
    arguments = ["--trace", tmp_path / "t.csv", "--kv-tokens", 9000, "--out", tmp_path / "out"]
    result = simulate(*arguments, *options)
    assert result.exit_code == 0, result.output
    assert want in " ".join(result.output.split())


def test_the_weight_of_a_tenant_is_owed_to_its_clients(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(FLOODED)
    owed = []
    for weight in ("ns/u=1", "ns/u=50"):
        arguments = ["--trace", tmp_path / "t.csv", "--kv-tokens", 9000, "--weight", weight]
        simulate(*arguments, "--replica-policy", "FCFS", "--out", tmp_path / "out")
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        owed.append(summary["clients"]["ns/u/modest"]["owed"])
    assert owed[1] > 1.2 * owed[0]


def test_without_plots_the_plots_of_an_earlier_run_go(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    for options in ([], ["--no-plots"]):
        simulate("--trace", tmp_path / "t.csv", "--out", tmp_path / "out", *options)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"requests.csv", "summary.json"}


def test_a_run_without_a_served_request_fails(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    result = simulate("--trace", tmp_path / "t.csv", "--kv-tokens", 50, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "2 requests were refused because they do not fit an empty replica" in result.output
    assert "no request was served" in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"requests.csv", "summary.json"}


def test_output_into_a_pipe_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a worker of a parallel run has it
    name = "a-client-with-a-name-that-is-longer-than-half-of-a-terminal-of-80-columns"
    (tmp_path / "t.csv").write_text(TRACE + f"{name},1,30000,500\n")
    result = simulate("--trace", tmp_path / "t.csv", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.output.splitlines() if line.startswith(name))
    assert "31,000" in row
    assert "…" not in result.output


def test_a_missing_trace_of_a_workload_is_reported_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVENKEEL_DATA", raising=False)
    result = simulate("--workload", "mooncake-conversation", "--traces", tmp_path)
    assert result.exit_code == 2
    assert (
        f"mooncake_conversation.public.jsonl.gz of the workload is not in {tmp_path}"
        in result.output
    )
    assert "--traces FOLDER or EVENKEEL_DATA" in result.output
    assert "bench/results/experiments.md" in result.output
