"""What a forward pass took, with and without overlap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from evenkeel_sglang.engine import StepClock


def took(events: Sequence[tuple[float, str]], *, overlap: bool) -> list[float]:
    """The seconds of each pass; `events` are (time, "launch" or "result") in order."""
    now = iter([at for at, _ in events])
    clock = StepClock(lambda: next(now))
    found = []
    for _, what in events:
        if what == "launch":
            clock.launched()
        else:
            found.append(clock.ended(overlap=overlap))
    return found


def test_without_overlap_a_pass_takes_the_time_from_its_launch_or_the_last_result() -> None:
    events = [(10.0, "launch"), (10.5, "result"), (10.6, "launch"), (11.0, "result")]
    assert took(events, overlap=False) == pytest.approx([0.5, 0.4])


def test_with_overlap_a_pass_was_launched_before_the_last_result() -> None:
    events = [
        (10.0, "launch"),
        (10.1, "launch"),
        (10.5, "result"),
        (10.6, "launch"),
        (10.9, "result"),
    ]
    assert took(events, overlap=True) == pytest.approx([0.5, 0.4])


def test_time_without_work_is_not_part_of_a_pass() -> None:
    events = [(10.0, "launch"), (10.1, "launch"), (10.5, "result")]
    idle = [(20.0, "launch"), (30.0, "launch"), (30.1, "launch"), (30.4, "result")]
    assert took([*events, *idle], overlap=True) == pytest.approx([0.5, 0.4])
