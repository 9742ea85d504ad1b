"""What pure parts of the product decide, over drawn inputs: tables that a reader can check line by line.

Inputs are drawn near the bounds that the code has. If a change is meant, write the files anew and read the difference in review:

    EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_decisions.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import (
    decisions_clients,
    decisions_contract,
    decisions_fairshare,
    decisions_fleet,
    decisions_ledger,
    decisions_operator,
    decisions_requests,
    decisions_router,
    decisions_shares,
    decisions_simulator,
)

GOLDEN = Path(__file__).parent / "decisions"
ROOMS = (
    decisions_clients,
    decisions_contract,
    decisions_operator,
    decisions_fairshare,
    decisions_fleet,
    decisions_ledger,
    decisions_requests,
    decisions_router,
    decisions_shares,
    decisions_simulator,
)
TABLES = {name: table for room in ROOMS for name, table in room.TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
def test_decisions_are_those_of_the_table(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = "".join(f"{line.rstrip()}\n" for line in TABLES[name]())
    if os.environ.get("EVENKEEL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text.splitlines() == path.read_text().splitlines()


def test_each_file_is_of_a_table() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == TABLES.keys()
