"""The VTC tables' service difference, by hand."""

from statistics import fmean, pvariance

import pytest
from evenkeel_simulator.traffic.service_difference import (
    Recipe,
    differences,
    service_difference,
    spread,
)
from evenkeel_simulator.traffic.timeline import Completion, Span

# One window only: the tick at 15 s, looking at [15, 75) after a warm-up of 30 s.
ONE = Recipe(duration_s=60.0, ticks=2)


def done(
    client: str,
    first_token_s: float,
    end_s: float,
    *,
    tokens: tuple[int, int] = (0, 300),
    arrival_s: float = 20.0,
) -> Completion:
    return Completion(
        client=client,
        arrival_s=arrival_s,
        first_token_s=first_token_s,
        end_s=end_s,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
    )


def test_the_tables_look_at_nineteen_windows_of_a_minute() -> None:
    windows = Recipe().windows()
    assert len(windows) == 19
    assert windows[0] == (28.5, 88.5)
    assert windows[1] == (57.0, 117.0)
    assert windows[-1] == (541.5, 601.5)


def test_a_run_no_longer_than_the_warm_up_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"duration_s is 30.0, must be more than the warm-up of 30"
    ):
        Recipe(duration_s=30.0).windows()


def test_cost_is_spread_from_the_first_token_to_the_end() -> None:
    assert spread([done("a", 30, 40, tokens=(10, 5))]) == [Span("a", 30, 40, 20)]


def test_what_ends_in_the_first_second_or_in_no_time_is_left_out_of_service() -> None:
    assert spread([done("a", 0, 0.99), done("a", 5, 5 + 9e-6)]) == []
    assert len(spread([done("a", 0, 1.0), done("a", 5, 5 + 1.1e-5)])) == 2


def test_the_difference_is_the_smaller_of_lag_and_unmet_demand_summed() -> None:
    # Windows [15, 75). a: 600 served, 600 asked. b: 300 of 600 served inside, 600 asked: lags by 300 and
    # lacks 300. c: 60 served, 60 asked: lags by 540 but lacks nothing.
    requests = [
        done("a", 30, 40),
        done("b", 70, 80),
        done("c", 30, 40, tokens=(60, 0)),
    ]
    assert differences(requests, recipe=ONE) == pytest.approx([300 / 60])


def test_a_client_served_what_it_asked_for_earlier_counts_too() -> None:
    requests = [done("a", 30, 40), done("b", 30, 40, arrival_s=10.0, tokens=(100, 100))]
    # b: served 300, asked 0 in the window, lags by 300.
    assert differences(requests, recipe=ONE) == pytest.approx([300 / 60])


def test_arrivals_at_both_ends_of_a_window_are_demand() -> None:
    for arrival_s, want in [(15.0, 600.0), (75.0, 600.0), (14.9, 0.0), (75.1, 0.0)]:
        requests = [
            done("busy", 30, 40, tokens=(0, 1000)),
            done("b", 100, 110, arrival_s=arrival_s),
        ]
        assert differences(requests, recipe=ONE) == pytest.approx([want / 60])


def test_all_that_arrived_in_a_window_is_demand() -> None:
    requests = [
        done("a", 30, 40, tokens=(0, 1000), arrival_s=0.0),
        done("b", 80, 90),
        done("b", 90, 100, tokens=(50, 0)),
    ]
    assert differences(requests, recipe=ONE) == [650 / 60]


def test_demand_counts_what_service_leaves_out() -> None:
    requests = [done("a", 30, 40, tokens=(0, 1000)), done("b", 30, 30)]
    assert differences(requests, recipe=ONE) == pytest.approx([600 / 60])


def test_a_row_holds_largest_mean_and_population_variance() -> None:
    recipe = Recipe(duration_s=150.0, ticks=4)
    requests = [
        done("a", 30, 40, tokens=(0, 1000)),
        done("b", 30, 50, tokens=(0, 100)),
        done("b", 90, 170, tokens=(0, 400), arrival_s=60.0),
    ]
    at_ticks = differences(requests, recipe=recipe)
    assert len(set(at_ticks)) > 1
    row = service_difference(requests, recipe=recipe)
    assert row.max == max(at_ticks)
    assert row.avg == pytest.approx(fmean(at_ticks))
    assert row.var == pytest.approx(pvariance(at_ticks))


def test_nothing_completed_means_no_difference() -> None:
    row = service_difference([])
    assert (row.max, row.avg, row.var) == (0, 0, 0)
