"""Gates of several routers, each a process of its own, in front of a simulated replica without reports (R12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gate import GATE, noted_logs
from bench.gate_ingress import ROWS, SIMULATED, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REQUESTS = 400
"""One request more or less of one tenant is then far less than the 5 %."""


@pytest.mark.parametrize(
    "row", [name for name, one in ROWS.items() if len(one.streams["light"]) > 1]
)
def test_shares_are_right_wherever_requests_enter(row: str, tmp_path: Path) -> None:
    setup, log = SIMULATED.setups[GATE], tmp_path / "engine.log"
    with noted_logs(tmp_path), SIMULATED.start(setup, tmp_path, log, {}) as engine:
        figures = measure(
            SIMULATED,
            engine,
            tmp_path,
            traffic=ROWS[row],
            shared=True,
            warmup_s=8.0,
            seconds=0.0,
            requests=REQUESTS,
        )
    assert figures.light == pytest.approx(ROWS[row].owed, rel=0.05)
