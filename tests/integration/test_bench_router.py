"""The router benchmark end to end, on the router that needs nothing but this environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the benchmark needs two cores")
def test_a_short_round_is_measured_checked_and_written(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "contract"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.router.run", "--out", str(tmp_path)),
            *("--routers", "bare-proxy", "--scenarios", "mixed 300/s"),
            *("--rounds", "1", "--seconds", "1", "--warmup-s", "0.5"),
            *("--events", "8", "--prompt-bytes", "500"),
        ],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "bench-router.json").read_text())["runs"]
    assert run["figures"]["errors"] == {} and run["figures"]["requests"] > 0
    assert run["figures"]["cpu_us_per_request"] > 0 and run["figures"]["least_share"] > 0.4
    assert "| bare-proxy |" in (tmp_path / "bench-router.md").read_text()
    assert (tmp_path / "bench-router.svg").stat().st_size > 1000
