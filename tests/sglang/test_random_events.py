"""Whatever SGLang's own scheduler does to its requests, the plug-in's books have the same ones, and each is answered (docs/design/books)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sglang.engine import FLAGS, environment_of, installed

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

SMALL = (
    *("--max-total-tokens=700", "--max-running-requests=16", "--chunked-prefill-size=96"),
    *("--max-queued-requests=60", "--schedule-conservativeness=0.1"),
)
"""Requests are cut into chunks, retracted and refused."""
SETTINGS = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "29"}
"""Each 29th decode step retracts a request, whatever memory is free."""


def lived(seed: int, events: int, *flags: str) -> Mapping[str, int]:
    """How often each thing happened in a scheduler of SGLang's with the plug-in (`scheduler_alone`)."""
    folder = installed()
    model = f"--model-path={folder / 'model'}"
    command = [folder / "bin/python", Path(__file__).with_name("scheduler_alone.py")]
    done = subprocess.run(
        [*command, str(seed), str(events), model, *FLAGS, "--schedule-policy=dlpm", *SMALL, *flags],
        env=environment_of(SETTINGS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts: Mapping[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert counts["comparisons"] >= events
    assert "stalls" not in counts, "the books had to be rebuilt"
    assert "bypassed" not in counts
    happened = ("answered", "aborted", "refused", "retracted", "timeout", "update_weights", "flush", "pause", "pause_and_leave")  # fmt: skip
    assert all(counts.get(name, 0) > 0 for name in happened), counts
    return counts


def test_books_equal_those_of_sglangs_scheduler_after_each_event() -> None:
    lived(35, 1000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flags", [(), ("--disable-overlap-schedule",)])
def test_over_100_000_events_each_request_of_sglang_is_answered(flags: tuple[str, ...]) -> None:
    lived(36, 50_000, *flags)
