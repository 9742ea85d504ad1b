"""The head to head runs to its end at a small size: real engines' processes, routers and clients, without LiteLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.versus import raw
from bench.versus.workloads import TEAMS

ROOT = Path(__file__).parents[2]
NAMES = ("lpm", "limits", "turns", "gate", "evenkeel")


def test_every_contender_serves_both_teams_and_gets_a_page(
    source_path: None, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bench.versus", "--contenders", *NAMES, "--workloads", "swarm"]
    command += ["--seconds", "8", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts, trials = raw.read(tmp_path / "versus")
    assert facts.seconds == 8.0
    assert tuple(trials["swarm"]) == NAMES
    for trial in trials["swarm"].values():
        assert {one.error for one in trial.seen} == {""}
        assert {one.team for one in trial.seen} == set(TEAMS)
        assert any(one.ended_s is not None and one.output_tokens > 1 for one in trial.seen)
        assert max(sum(one.held) for one in trial.samples) > 0
    assert (tmp_path / "images" / "versus.png").stat().st_size > 10_000
    assert "## A swarm of agents" in (tmp_path / "versus.md").read_text(encoding="utf-8")
