"""Whatever vLLM's own scheduler does to its requests, the plug-in's books have the same ones, and each ends (docs/design/books)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from evenkeel_contract.render import OFFLINE_ENVIRONMENT
from evenkeel_contract.vllm import COMMON_ENVIRONMENT, CPU_ENVIRONMENT

from bench.vllm_engine import VERSION_VARIABLE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]


def lived(environment: Path, seed: int, events: int, *, lag: int) -> Mapping[str, int]:
    """How often each thing happened in a scheduler of vLLM's with the plug-in (`scheduler_alone`)."""
    script = Path(__file__).with_name("scheduler_alone.py")
    path = {"PYTHONPATH": folder} if (folder := os.environ.get(VERSION_VARIABLE)) else {}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            environment / "bin/python",
            script,
            environment / "model",
            str(seed),
            str(events),
            str(lag),
        ],
        env={**kept, **COMMON_ENVIRONMENT, **CPU_ENVIRONMENT, **OFFLINE_ENVIRONMENT, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts: Mapping[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert counts["comparisons"] >= events
    assert "stalls" not in counts, "the books had to be rebuilt"
    assert "bypassed" not in counts
    happened = ("answered", "abort", "abort_all", "preempted", "preempt_all", "flush", "update_weights", "pause_new", "pause_all")  # fmt: skip
    assert all(counts.get(name, 0) > 0 for name in happened), counts
    return counts


@pytest.mark.parametrize("lag", [0, 1])
def test_books_equal_those_of_vllms_scheduler_after_each_event(environment: Path, lag: int) -> None:
    lived(environment, 35, 1500, lag=lag)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_over_100_000_events_each_request_of_vllm_ends(environment: Path, lag: int) -> None:
    lived(environment, 36, 50_000, lag=lag)
