"""The scheduler's process has no HTTP server: what it counts is on the page of the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

COUNTS = """
from evenkeel_vllm.metrics import of_scheduler, register
register()
metrics = of_scheduler()
metrics.active("DLPM")
metrics.refused("missing")
metrics.refused("missing")
"""
FIRST_PROCESS = f"""
import multiprocessing, sys
from evenkeel_vllm.metrics import register
from prometheus_client import REGISTRY, generate_latest
if __name__ == "__main__":
    register()
    register()
    child = multiprocessing.get_context(sys.argv[1]).Process(target=exec, args=({COUNTS!r}, {{}}))
    child.start()
    child.join()
    print(generate_latest(REGISTRY).decode())
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_first_process_shows_what_the_schedulers_process_counts(method: str) -> None:
    command = [sys.executable, "-c", FIRST_PROCESS, method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines.count('evenkeel_engine_policy_active{policy="DLPM"} 1.0') == 1
    assert 'evenkeel_engine_client_key_refused_total{reason="missing"} 2.0' in lines
    assert "evenkeel_engine_policy_bypassed_total 0.0" in lines
    assert any(line.startswith("process_start_time_seconds ") for line in lines)


def test_the_folder_that_vllm_made_for_several_servers_is_used(tmp_path: Path) -> None:
    """vLLM's own page shows the values of that folder."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FIRST_PROCESS, "spawn"]
    subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    shown = CollectorRegistry()
    MultiProcessCollector(shown, str(tmp_path))  # type: ignore[no-untyped-call]
    refused = {"reason": "missing"}
    assert shown.get_sample_value("evenkeel_engine_client_key_refused_total", refused) == 2
