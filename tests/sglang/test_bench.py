"""The harness of `bench/gpu`, short and small, on the CPU: every workload under DLPM, and its three files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.gpu.papers import WORKLOADS
from bench.gpu.report import Measurement
from tests.sglang.engine import ROOT, engine_environment
from tests.sglang.fleet import source_environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_short_run_measures_every_workload(tmp_path: Path) -> None:
    environment = engine_environment()
    if environment is None:
        pytest.skip("the real engine is not installed: make sglang")
    out = tmp_path / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.gpu.run", "papers", "--cpu", str(environment)),
            *("--out", str(out), "--work", str(tmp_path / "work")),
            *("--model", str(environment / "model"), "--scale", str(1 / 32), "--pool", "262144"),
            *("--burst", "4", "--duration", "6", "--engines", "dlpm"),
            *("--limit", "1700", "--patience", "3"),
        ],
        cwd=ROOT,
        env=source_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = msgspec.json.decode((out / "figures.json").read_bytes(), type=Measurement)
    assert {(run.workload, run.policy) for run in found.runs} == {
        (workload, "DLPM") for workload in WORKLOADS
    }
    for run in found.runs:
        assert run.well_behaved is not None
        assert 0 < run.summary.jain_index <= 1
    # Documents do not outlive the toy's pool until their next question; trees and conversations find what they left.
    hit_rates = {run.workload: run.summary.hit_rate for run in found.runs}
    assert min(hit_rates["tot-s1"], hit_rates["multi-turn"]) > 0.5
    assert (out / "table.md").read_text().count("\n") == 2 + len(found.runs)
    assert (out / "figures.png").exists()
