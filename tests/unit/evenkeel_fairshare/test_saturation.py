"""What replicas serve while requests wait."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.saturation import SETTLED_S, Saturation
from hypothesis import given
from hypothesis import strategies as st


def test_service_counts_once_requests_have_waited_without_a_break() -> None:
    found = Saturation()
    for second in range(21):
        found.observe("r", service=1000.0 * second, waits=second != 10, now_s=second)
    # From second 5 to 9, and from second 16 to 20.
    assert (found.seconds, found.service) == (8, 8000)


def test_short_waits_are_no_capacity() -> None:
    found = Saturation()
    for second in range(100):
        found.observe("r", service=10.0 * second, waits=second % 5 > 0, now_s=second)
    assert found.seconds == 0


def test_a_replica_without_waiting_requests_does_not_count_for_the_others() -> None:
    found = Saturation()
    for second in range(11):
        found.observe("full", service=500.0 * second, waits=True, now_s=second)
        found.observe("idle", service=1.0 * second, waits=False, now_s=second)
    assert found.service / found.seconds == 500


def test_a_replica_that_is_gone_begins_anew() -> None:
    found = Saturation()
    for second in range(8):
        found.observe("r", service=1e6 + second, waits=True, now_s=second)
    found.retain(())
    for second in range(8, 16):
        found.observe("r", service=second, waits=True, now_s=second)
    assert (found.seconds, found.service) == (4, 4)


def test_a_speed_is_what_a_replica_serves_per_second_while_requests_wait() -> None:
    found = Saturation()
    assert found.speeds() == {}
    for second in range(2000):
        found.observe("fast", service=1000.0 * second, waits=True, now_s=second)
        # Without a full batch a replica serves less than it could.
        service = 250.0 * min(second, 1000) + 10.0 * max(0, second - 1000)
        found.observe("slow", service=service, waits=second <= 1000, now_s=second)
        found.observe("idle", service=0.0, waits=False, now_s=second)
    speeds = found.speeds()
    assert speeds.keys() == {"fast", "slow"}
    assert speeds["fast"] / speeds["slow"] == pytest.approx(4, rel=0.25)
    found.retain(["slow"])
    assert found.speeds().keys() == {"slow"}


def test_a_speed_follows_a_change_and_a_short_measurement_hardly_counts() -> None:
    found = Saturation()
    for second in range(1000):
        service = 1000.0 * min(second, 500) + 250.0 * max(0, second - 500)
        found.observe("throttled", service=service, waits=True, now_s=second)
        found.observe("equal", service=1000.0 * second, waits=True, now_s=second)
        found.observe("new", service=10_000.0 * second, waits=second > 992, now_s=second)
    speeds = found.speeds()
    assert speeds["throttled"] < 0.4 * speeds["equal"]
    assert speeds["new"] < 4 * speeds["equal"]


def test_a_total_that_falls_takes_no_service_back() -> None:
    """The replica restarted, and was asked again within a second."""
    found = Saturation()
    for second in range(11):
        served = 100.0 * second if second < 8 else 100.0 * (second - 8)
        found.observe("r", service=served, waits=True, now_s=second)
    assert (found.seconds, found.service) == (5, 400)


@given(
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 100.0), st.booleans())),
    st.floats(0, 1e9),
)
def test_the_rate_lies_between_those_of_its_seconds(
    looks: list[tuple[float, float, bool]], before: float
) -> None:
    """Whatever a replica had served before it was seen."""
    found, now_s, service = Saturation(), 0.0, before
    for gap_s, rate, waits in looks:
        now_s += gap_s
        service += rate * gap_s
        found.observe("r", service=service, waits=waits, now_s=now_s)
    assert 0 <= found.seconds <= max(0.0, now_s - SETTLED_S)
    if found.seconds:
        rates = [rate for _, rate, _ in looks]
        assert min(rates) - 1e-3 <= found.service / found.seconds <= max(rates) + 1e-3
