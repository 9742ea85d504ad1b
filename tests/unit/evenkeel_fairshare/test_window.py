"""What clients were given over what they were owed in the last minute."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.window import WINDOW_S, Moment, Window, WindowShares


def window(*competed: dict[str, tuple[float, float]]) -> Window:
    """A moment each second, after one at 0 s."""
    made = Window()
    made.add(Moment(0.0, {}))
    for n, one in enumerate(competed):
        made.add(Moment(n + 1.0, one))
    return made


def test_a_client_that_waited_for_half_of_the_window_is_judged_by_its_sums():
    both, one = {"a": (10.0, 15.0), "b": (10.0, 5.0)}, {"a": (20.0, 20.0)}
    shares = window(both, one, one, both).shares()
    assert shares.given_over_owed == {"a": pytest.approx(70 / 60), "b": 0.5}
    assert shares.least == 0.5
    assert window(both, one, one).shares().given_over_owed == {"a": pytest.approx(55 / 50)}


def test_those_that_were_given_more_are_named_by_surplus_judged_or_not():
    moment = {"a": (10.0, 12.0), "b": (10.0, 1.0), "c": (100.0, 107.0)}
    shares = window(moment, {"b": (1.0, 1.0)}, {"b": (1.0, 1.0)}).shares()
    assert [*shares.took] == ["c", "a"]
    assert (shares.took["c"].given, shares.took["c"].owed) == pytest.approx((107 / 122, 100 / 122))
    assert set(shares.given_over_owed) == {"b"}


def test_what_is_older_than_a_minute_no_longer_counts():
    length = int(WINDOW_S)
    made = window(*[{"a": (10.0, 0.0)}] * 30, *[{"b": (10.0, 10.0)}] * length)
    assert made.span_s == WINDOW_S
    assert made.shares().given_over_owed == {"b": 1.0}


def test_without_a_moment_there_is_nothing_to_judge():
    assert Window().shares() == WindowShares()
    assert (Window().span_s, WindowShares().least) == (0.0, 1.0)


def test_idle_seconds_are_those_of_the_window():
    made = Window()
    for n in range(90):
        made.add(Moment(float(n), {}, idle_s=0.5 if n % 2 else 0.0))
    assert made.shares().idle_s == 15.0
