"""What a forward pass took: with and without overlap, on a GPU and on a CPU."""

from __future__ import annotations

import pytest
from evenkeel_sglang.engine import Launch, StepClock


class Time:
    """The clock, set by the test."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


TIME = Time()


def launch(clock: StepClock, at_s: float, *, until_s: float | None = None) -> Launch:
    """`until_s`: the launch computes until then."""

    def forward() -> str:
        TIME.now_s = until_s or at_s
        return "result"

    TIME.now_s = at_s
    result, launched = clock.launch(forward, computes=until_s is not None, computed={})
    assert result == "result"
    return launched


def ended(clock: StepClock, launched: Launch, at_s: float) -> float:
    TIME.now_s = at_s
    return clock.ended(launched)


@pytest.fixture
def clock() -> StepClock:
    return StepClock(TIME)


def test_without_overlap_a_pass_takes_the_time_from_its_launch(clock: StepClock) -> None:
    assert ended(clock, launch(clock, 10.0), 10.5) == pytest.approx(0.5)
    assert ended(clock, launch(clock, 10.6), 11.0) == pytest.approx(0.4)


def test_with_overlap_a_pass_that_waited_takes_the_time_from_the_last_result(
    clock: StepClock,
) -> None:
    first, second = launch(clock, 10.0), launch(clock, 10.1)
    assert ended(clock, first, 10.5) == pytest.approx(0.5)
    assert ended(clock, second, 10.9) == pytest.approx(0.4)


def test_time_without_work_is_not_part_of_a_pass(clock: StepClock) -> None:
    ended(clock, launch(clock, 10.0), 10.5)
    assert ended(clock, launch(clock, 30.0), 30.4) == pytest.approx(0.4)


def test_on_a_cpu_each_pass_takes_its_own_launch(clock: StepClock) -> None:
    """A long prefill is launched before the result of the decode step before it is processed. It is no part of that step."""
    decode = launch(clock, 10.0, until_s=10.01)
    prefill = launch(clock, 10.02, until_s=12.02)
    assert ended(clock, decode, 12.03) == pytest.approx(0.01)
    after = launch(clock, 12.04, until_s=12.05)
    assert ended(clock, prefill, 12.06) == pytest.approx(2.0)
    assert ended(clock, after, 12.07) == pytest.approx(0.01)
