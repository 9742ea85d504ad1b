"""Measures by cases computed by hand."""

import pytest
from evenkeel_fairshare.measures import jain_index, percentile


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
