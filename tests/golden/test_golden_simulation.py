"""A small fleet, request by request: any change of the engine, a policy or a workload shows here.

If a change is meant, write the file anew and read the difference in review:

    EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_simulation.py
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile, simulate
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec, make_workload
from evenkeel_simulator.traffic.records import write_csv

GOLDEN = Path(__file__).parent / "simulation"
SPEC = {
    "about": "every kind of program, little memory, so that all that an engine does happens",
    "profile": "a10g-llama3.2-3b",
    "replicas": 2,
    "duration_s": 6,
    "kv_tokens": 3000,
    "clients": [
        {
            "name": "tree",
            "arrivals": {"rate_per_s": 0.4},
            "program": {"kind": "tree-of-thoughts", "branches": 2, "output_tokens": 64},
        },
        {
            "name": "chat",
            "weight": 2,
            "count": 2,
            "arrivals": {"rate_per_s": 0.5},
            "program": {
                "kind": "chat",
                "system_tokens": 300,
                "turns": 3,
                "turn_tokens": 40,
                "output_tokens": 80,
            },
        },
        {
            "name": "judge",
            "arrivals": {"rate_per_s": 0.4},
            "program": {
                "kind": "judge",
                "dimensions": 4,
                "article_tokens": 900,
                "output_tokens": 64,
            },
        },
        {
            "name": "flooder",
            "misbehaves": True,
            "arrivals": {"rate_per_s": 8, "pattern": "uniform"},
            "program": {
                "kind": "single",
                "input_tokens": 400,
                "prefix_tokens": 250,
                "output_tokens": 260,
                "spread": 0.5,
            },
        },
    ],
}


@pytest.mark.parametrize(
    ("fleet", "replica"), [("D2LPM", "DLPM"), ("PerClientRoundRobin", "VTC"), ("RoundRobin", "LPM")]
)
def test_the_small_fleet_does_what_it_did(tmp_path: Path, fleet: str, replica: str) -> None:
    spec = msgspec.convert(SPEC, WorkloadSpec)
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        fleet_policy=fleet,
        replica_policy=replica,
        quantum=2000,
        worker_quantum=3000,
        warmup_s=0,
        printed=True,
        engine=engine_config(kv_tokens=spec.kv_tokens, admission="sglang"),
    )
    records, _ = simulate(setup, make_workload("golden", spec, seed=7, traces=tmp_path))
    assert any(record.retractions for record in records)
    path = tmp_path / "requests.csv"
    write_csv(records, path)
    golden = GOLDEN / f"{fleet}-{replica}.csv".lower()
    if os.environ.get("EVENKEEL_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_bytes(path.read_bytes())
    assert path.read_text() == golden.read_text()
