"""The waiting tokens in the engine's log are those that SGLang's own function adds up, and no pass of it does."""

from __future__ import annotations

import re

import pytest

from tests.sglang.fidelity import Scenario
from tests.sglang.shared import SharedEngine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

MOST_QUEUES = 5


async def test_the_number_is_sglangs_own(tight: SharedEngine) -> None:
    await compare(tight)


async def test_the_number_is_the_older_versions_own(older: SharedEngine) -> None:
    await compare(older)


async def compare(engine: SharedEngine) -> None:
    """`shared.BESIDE` writes both numbers down. Queues follow until a request was retracted: whether one is depends on times (R13)."""
    told = len(engine.log)
    for number in range(MOST_QUEUES):
        queue = Scenario(f"bets-{number}", 4, 8, most_output_tokens=300, bets=True)
        await engine.run_queue(queue.asks())
        if "Retract requests" in engine.log[told:]:
            break
    lines = re.findall(r"^pending (\d+) (\d+) (\d+) (\d+)$", engine.log[told:], re.MULTILINE)
    answers = [tuple(map(int, line)) for line in lines]
    assert all(number == own for number, own, _, _ in answers)
    without_sum = [line for line in answers if line[0] and not line[2]]
    assert len(without_sum) > 20
    assert any(chunked for *_, chunked in without_sum)
    assert "Retract requests" in engine.log[told:]
