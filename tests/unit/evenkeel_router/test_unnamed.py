"""The share of requests without a client key rises and falls with hysteresis, and few requests say nothing."""

from __future__ import annotations

from evenkeel_router.fleet.unnamed import ENOUGH, LONGEST_WINDOW_S, WINDOW_S, UnnamedShare


class Replica:
    """Its totals, and a report after each window."""

    def __init__(self) -> None:
        self.unnamed_share = UnnamedShare()
        self.requests = self.unnamed = 0
        self.now_s = 1000.0
        self.window(0, 0)

    def window(
        self, requests: int, unnamed: int, *, seconds: float = WINDOW_S, process: str = "one"
    ) -> float:
        self.now_s += seconds
        self.requests += requests
        self.unnamed += unnamed
        self.unnamed_share.take(
            process, requests=self.requests, unnamed=self.unnamed, now_s=self.now_s
        )
        return self.unnamed_share.share


def test_a_share_above_a_few_percent_shows_and_stays_until_it_is_small() -> None:
    replica = Replica()
    assert [replica.window(100, unnamed) for unnamed in (0, 3, 4, 2, 1, 2)] == [
        0,
        0,
        0.04,
        0.02,
        0,
        0,
    ]


def test_a_window_with_few_requests_goes_on() -> None:
    replica = Replica()
    assert replica.window(ENOUGH - 1, ENOUGH - 1) == 0
    assert replica.window(1, 1) == 1
    assert replica.window(5, 0) == 1, "too few to end it"
    assert replica.window(5, 0, seconds=LONGEST_WINDOW_S) == 0, "hardly any more"


def test_a_window_does_not_end_before_its_time() -> None:
    replica = Replica()
    assert replica.window(100, 100, seconds=WINDOW_S - 1) == 0
    assert replica.window(0, 0, seconds=1) == 1


def test_another_process_begins_anew_with_what_it_served_before() -> None:
    replica = Replica()
    assert replica.window(100, 50) == 0.5
    replica.requests, replica.unnamed = 400, 400
    assert replica.window(0, 0, process="two") == 0
    assert replica.window(100, 0, process="two") == 0
