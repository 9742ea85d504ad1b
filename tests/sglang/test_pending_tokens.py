"""The waiting tokens in the engine's log are those that SGLang's own function adds up, and no pass of it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sglang.engine import Engine
from tests.sglang.fidelity import Scenario

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

# Imported as the engine's Python starts: each answer of the hook is written beside SGLang's, and how often SGLang's was asked.
BESIDE = """
import sys
from evenkeel_sglang import hooks

ours = hooks.pending_tokens

def both(original, inquirer, chunk_deduct=0):
    asked = []
    def counted(*arguments):
        asked.append(arguments)
        return original(*arguments)
    number = ours(counted, inquirer, chunk_deduct)
    own = original(inquirer, chunk_deduct)
    chunked = int(inquirer.get_chunked_req() is not None)
    print(f"pending {number} {own} {len(asked)} {chunked}", file=sys.stderr, flush=True)
    return number

hooks.pending_tokens = both
"""


@pytest.mark.parametrize("sglang", [None, "0.5.21"])
async def test_the_number_is_sglangs_own(
    start: Callable[..., Engine], tmp_path: Path, sglang: str | None
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BESIDE)
    engine = start(
        *("--schedule-policy", "dlpm", "--chunked-prefill-size", "96"),
        *("--max-total-tokens", "1024", "--max-running-requests", "12"),
        *("--schedule-conservativeness", "0.1"),
        environment={"PYTHONPATH": str(tmp_path)},
        sglang=sglang,
    )
    await engine.run_queue(Scenario("bets", 4, 8, most_output_tokens=300, bets=True).asks())
    lines = re.findall(r"^pending (\d+) (\d+) (\d+) (\d+)$", engine.log, re.MULTILINE)
    answers = [tuple(map(int, line)) for line in lines]
    assert all(number == own for number, own, _, _ in answers)
    without_sum = [line for line in answers if line[0] and not line[2]]
    assert len(without_sum) > 20
    assert any(chunked for *_, chunked in without_sum)
    assert "Retract requests" in engine.log
