"""A short `evenkeel demo`: real fleets, a table, a plot and a file of figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("source_path")


def test_a_short_demo_compares_the_policies(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from evenkeel_cli.main import main; main()"),
            *("demo", "--duration", "2", "--quantum", "500", "--out", "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in ("no flood", "round robin + LPM", "D2LPM + DLPM", "TTFT p99", "Jain", "tokens/s"):
        assert word in done.stdout
    report = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert report["client_quantum"] == 500
    assert "clientQuantum 500" in done.stdout
    assert list(report["phases"]) == ["baseline", "round_robin", "evenkeel"]
    for phase in report["phases"].values():
        assert phase["failed"] == 0
        assert phase["requests"] > 0
        assert 0 < phase["ttft_p50_s"] <= phase["ttft_p99_s"] <= phase["latency_p99_s"]
        assert 0 < phase["jain"] <= 1
    assert report["phases"]["round_robin"]["requests"] == report["phases"]["evenkeel"]["requests"]
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
