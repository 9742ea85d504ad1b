"""QoE of a streamed answer: its definition, its invariants, and the prediction that Andes makes in closed form."""

from __future__ import annotations

from itertools import accumulate

import pytest
from evenkeel_fairshare.qoe import AnswerTimeline, Expectation, qoe, shown_times
from hypothesis import given
from hypothesis import strategies as st


def seconds(most: float) -> st.SearchStrategy[float]:
    """Whole microseconds: an area of squared time is lost in rounding where times are far smaller."""
    return st.integers(0, int(most * 1_000_000)).map(lambda whole: whole / 1_000_000)


GAPS = st.lists(seconds(3), min_size=1, max_size=40)
EXPECTATIONS = st.builds(Expectation, st.floats(0, 3), st.floats(0.5, 20))


def times(gaps: list[float]) -> list[float]:
    return list(accumulate(gaps))


def literal(made: list[float], arrival_s: float, expected: Expectation) -> float:
    """The definition, token by token."""
    shown: list[float] = []
    for time_s in made:
        shown.append(time_s if not shown else max(time_s, shown[-1] + expected.gap_s))
    tau = shown[-1]
    due = [arrival_s + expected.ttft_s + k * expected.gap_s for k in range(len(made))]
    want = sum(max(0.0, tau - one) for one in due)
    return 1.0 if want <= 0 else max(0.0, min(1.0, sum(tau - one for one in shown) / want))


@given(GAPS, EXPECTATIONS)
def test_it_is_the_ratio_of_areas_from_0_to_1(gaps, expected):
    value = qoe(times(gaps), arrival_s=0.0, expectation=expected)
    assert 0 <= value <= 1
    assert value == pytest.approx(literal(times(gaps), 0.0, expected), abs=1e-6)
    delivery = AnswerTimeline(0.0, expected)
    for time_s in times(gaps):
        delivery.add(1, time_s)
    assert delivery.qoe() == pytest.approx(value, abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), EXPECTATIONS)
def test_tokens_in_time_give_1_and_a_late_one_among_punctual_ones_less(parts, expected):
    due = [expected.ttft_s + k * expected.gap_s for k in range(len(parts))]
    early = sorted(part * when for part, when in zip(parts, due, strict=True))
    assert qoe(early, arrival_s=0.0, expectation=expected) == pytest.approx(1)
    late = [*due[:-2], due[-2] + 1, due[-1] + 1]
    assert qoe(late, arrival_s=0.0, expectation=expected) < 1


@given(GAPS, EXPECTATIONS)
def test_tokens_faster_than_users_read_change_nothing(gaps, expected):
    shown = shown_times(times(gaps), expected.gap_s)
    assert shown_times(shown, expected.gap_s) == pytest.approx(shown)
    assert qoe(shown, arrival_s=0.0, expectation=expected) == pytest.approx(
        qoe(times(gaps), arrival_s=0.0, expectation=expected), abs=1e-6
    )


@given(GAPS, EXPECTATIONS, st.floats(0.1, 5))
def test_the_same_answer_later_is_never_better(gaps, expected, delay_s):
    made = times(gaps)
    later = [time_s + delay_s for time_s in made]
    before = qoe(made, arrival_s=0.0, expectation=expected)
    assert qoe(later, arrival_s=0.0, expectation=expected) <= before + 1e-9


@given(
    GAPS,
    EXPECTATIONS,
    seconds(5),
    st.one_of(st.none(), st.floats(0.3, 30)),
    seconds(2),
)
def test_predictions_in_closed_form_are_those_of_a_walk_over_tokens(
    gaps, expected, ahead_s, rate, start_s
):
    made = times(gaps)
    delivery = AnswerTimeline(0.0, expected)
    for time_s in made:
        delivery.add(1, time_s)
    now_s = made[-1]
    until_s = now_s + ahead_s
    begin_s = now_s + start_s
    future = [] if rate is None else [begin_s + k / rate for k in range(1, 400)]
    shown = [one for one in shown_times([*made, *future], expected.gap_s) if one <= until_s]
    due = expected.ttft_s
    want = 0.0
    while due < until_s:
        want += until_s - due
        due += expected.gap_s
    literal = min(1.0, sum(until_s - one for one in shown) / want) if want > 0 else 1.0
    predicted = (
        delivery.if_waiting(until_s) if rate is None else delivery.if_served(begin_s, rate, until_s)
    )
    assert predicted == pytest.approx(literal, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("ttft_s", "speed"), [(-1, 5), (1, 0), (float("nan"), 5)])
def test_an_expectation_that_no_user_has_is_refused(ttft_s, speed):
    with pytest.raises(ValueError, match="expected_"):
        Expectation(ttft_s, speed)
