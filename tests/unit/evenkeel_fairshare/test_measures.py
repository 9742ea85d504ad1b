"""Measures by cases computed by hand."""

from math import inf

import pytest
from evenkeel_fairshare.measures import jain_index, lead, lead_s, percentile, share_error


@pytest.mark.parametrize(
    ("values", "want_index"),
    [
        ([5.0], 1.0),
        ([3.0, 3.0, 3.0], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 3.0], 16 / 20),
        ([1.0, 2.0, 3.0], 36 / 42),
        ([], 1.0),
        ([0.0, 0.0], 1.0),
        ([1e200, 3e200], 0.8),
        ([1e-200, 3e-200], 0.8),
    ],
)
def test_jain_s_index(values: list[float], want_index: float) -> None:
    assert jain_index(values) == pytest.approx(want_index, rel=1e-12)


@pytest.mark.parametrize(
    ("percent", "want_value"),
    [(0, 10.0), (25, 17.5), (50, 25.0), (99, 39.7), (100, 40.0)],
)
def test_percentiles_lie_on_the_line_between_neighbours(percent: float, want_value: float) -> None:
    assert percentile([40.0, 10.0, 30.0, 20.0], percent) == pytest.approx(want_value)


def test_every_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7.0], percent) for percent in (0, 50, 100)] == [7.0, 7.0, 7.0]


def test_percentiles_of_nothing_or_beyond_a_hundred_are_refused() -> None:
    with pytest.raises(ValueError, match="^no percentile of no values$"):
        percentile([], 50)
    with pytest.raises(ValueError, match="percent is 101, must be from 0 to 100"):
        percentile([1.0], 101)
    with pytest.raises(ValueError, match="percent is -1, must be from 0 to 100"):
        percentile([1.0], -1)


@pytest.mark.parametrize(
    ("served", "shares", "want_error"),
    [
        ({"a": 50, "b": 50}, {"a": 0.5, "b": 0.5}, 0.0),
        ({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}, 0.2),
        ({"a": 100}, {"a": 0.5, "b": 0.5}, 1.0),
        ({"a": 75, "b": 25}, {"a": 0.75, "b": 0.25}, 0.0),
        ({"a": 90, "b": 10}, {"a": 0.75, "b": 0.25}, 0.6),
        # Who is not backlogged does not count, however much it got.
        ({"a": 50, "b": 50, "idle": 900}, {"a": 0.5, "b": 0.5}, 0.0),
        ({}, {"a": 0.5, "b": 0.5}, 0.0),
        ({"a": 3}, {}, 0.0),
        ({"a": 7}, {"a": 1.0}, 0.0),
        ({"a": 0.3, "b": 0.2}, {"a": 0.5, "b": 0.5}, 0.2),
    ],
)
def test_share_error_is_the_worst_shortfall(
    served: dict[str, float], shares: dict[str, float], want_error: float
) -> None:
    assert share_error(served, shares) == pytest.approx(want_error)


def test_lead_compares_service_by_share() -> None:
    shares = {"a": 0.75, "b": 0.25}
    assert lead({"a": 750, "b": 250}, shares) == 0
    assert lead({"a": 900, "b": 100}, shares) == pytest.approx(1200 - 400)
    assert lead({"a": 900}, shares) == pytest.approx(1200)
    assert lead({"a": 900, "idle": 5000}, {"a": 1.0}) == 0
    assert lead({}, {}) == 0


def test_lead_in_seconds_is_the_time_to_catch_up_at_a_fair_share() -> None:
    # b lacks 200 of its own tokens; its quarter of 400 per second takes 2 s to give them... and a's lead
    # in whole-fleet tokens is 800, which the fleet serves in 2 s.
    shares = {"a": 0.75, "b": 0.25}
    assert lead_s({"a": 900, "b": 100}, shares, rate=400) == pytest.approx(2.0)
    assert lead_s({"a": 900, "b": 100}, shares, rate=0.5) == pytest.approx(1600.0)


def test_a_lead_in_a_fleet_that_stands_still_lasts_for_ever() -> None:
    shares = {"a": 0.5, "b": 0.5}
    assert lead_s({"a": 1}, shares, rate=0) == inf
    assert lead_s({"a": 1, "b": 1}, shares, rate=0) == 0
