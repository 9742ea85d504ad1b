"""Table 2 of the VTC paper, by the engine and the accounts of its artifact, on the arena trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evenkeel_laboratory.experiments.setup import Setup, simulate
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.summary import summarise
from evenkeel_simulator.traffic.traces import named_clients, programs, read_trace
from evenkeel_simulator.traffic.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
TRACE = Path(os.environ.get("EVENKEEL_DATA", ROOT.parent / "shared" / "data")) / "arena27.csv.gz"


@pytest.mark.skipif(not TRACE.exists(), reason="the arena trace is not here")
@pytest.mark.parametrize(
    ("policy", "limit", "want_average", "want_throughput"),
    [
        ("FCFS", None, 433.53, 777),
        ("LCF", None, 323.82, 778),
        ("VTC", None, 251.66, 779),
        ("VTCPredict", None, 240.33, 773),
        ("VTCOracle", None, 227.51, 781),
        ("RPM", 5, 83.58, 340),
        ("RPM", 20, 195.71, 694),
        ("RPM", 30, 309.45, 747),
    ],
)
def test_average_service_difference_and_throughput_are_the_paper_s(
    policy: str, limit: int | None, want_average: float, want_throughput: float
) -> None:
    rows = read_trace(TRACE)
    setup = Setup(
        profile=PROFILES["a10g-llama2-7b-slora"],
        replica_policy=policy,
        requests_per_minute=limit or 1,
        fleet_policy="RoundRobin",
        artifact_rules=True,
    )
    records, makespan_s = simulate(setup, Workload("arena", programs(rows, named_clients(TRACE))))
    summary = summarise(records, makespan_s)
    assert summary.finished + summary.rejected == 1500
    assert (summary.rejected > 0) == (limit is not None)
    assert summary.service_difference.avg == pytest.approx(want_average, rel=0.10)
    assert summary.throughput_tokens_per_s == pytest.approx(want_throughput, rel=0.03)
