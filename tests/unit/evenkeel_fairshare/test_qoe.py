"""The timeline of one answer, by hand. The property tests walk over every token."""

from __future__ import annotations

from evenkeel_fairshare.qoe import AnswerTimeline, Expectation


def test_tokens_of_a_burst_that_are_shown_later_count_for_nothing_yet() -> None:
    """Of three tokens that are made at once, one is shown so far: just as expected."""
    timeline = AnswerTimeline(0.0, Expectation(0.0, 1.0))
    timeline.add(3, 0.0)
    assert timeline.if_waiting(0.5) == 1.0
