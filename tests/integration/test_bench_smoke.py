"""Every benchmark of a single part runs to its end at a small size. Its figures mean nothing then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "bench_dlpm_pass": "--waiting 64 --repeat 1",
    "bench_index_eviction": "--requests 200",
    "bench_ledger": "--clients 50 --replicas 2 --changed 5",
    "bench_ledger_stalls": "--clients 50 --replicas 2 --active 5",
    "bench_match_select": "--blocks 2000 --replicas 2 --prompts 5",
    "bench_scrape": "--clients 2 --tenants 2 --rounds 1 --window-s 0.2",
    "bench_simulated_replica": "--streams 2 --tokens 4",
    "bench_simulator": "--duration 5",
    "bench_tokens": "--blocks 2000 --replicas 2 --prompts 5",
    "bench_tracing": "--requests 5 --rounds 1",
}


def test_every_benchmark_has_a_small_size() -> None:
    assert {path.stem for path in (ROOT / "bench").glob("bench_*.py")} == SMALL.keys()


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_to_its_end_and_prints_figures(name: str, source_path: None) -> None:
    command = [sys.executable, "-m", f"bench.{name}", *SMALL[name].split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(character.isdigit() for character in done.stdout)
