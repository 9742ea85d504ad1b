"""Spans of service cut by windows, by hand."""

import pytest
from evenkeel_simulator.traffic.timeline import (
    Completion,
    Span,
    accumulated_difference,
    all_active,
    linear_price,
    served,
)


def done(client: str, arrival_s: float, end_s: float) -> Completion:
    return Completion(
        client=client,
        arrival_s=arrival_s,
        first_token_s=arrival_s,
        end_s=end_s,
        input_tokens=1,
        output_tokens=1,
    )


def test_a_span_is_split_by_the_windows_it_crosses() -> None:
    spans = [Span("a", 0, 10, 100)]
    windows = [(-5.0, 0.0), (0.0, 1.0), (2.0, 6.0), (5.0, 20.0), (10.0, 21.0)]
    assert served(spans, windows) == {"a": [0, 10, 40, 50, 0]}


def test_service_at_an_instant_belongs_to_the_window_that_begins_there() -> None:
    spans = [Span("a", 5, 5, 7), Span("a", 5, 5, 2), Span("a", 6, 6, 1)]
    assert served(spans, [(0.0, 5.0), (5.0, 9.0), (6.0, 9.0)]) == {"a": [0, 10, 1]}


def test_every_client_has_a_row_and_its_spans_add_up() -> None:
    spans = [Span("a", 0, 2, 2), Span("b", 9, 9, 1), Span("a", 1, 3, 4)]
    assert served(spans, [(0.0, 2.0)]) == {"a": [4], "b": [0]}


def test_windows_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="^the starts and the ends of windows must ascend$"):
        served([], [(0.0, 2.0), (1.0, 1.5)])
    with pytest.raises(ValueError, match="^the starts and the ends of windows must ascend$"):
        served([], [(1.0, 2.0), (0.0, 3.0)])


def test_accumulated_difference_is_most_less_least_since_the_start() -> None:
    spans = [Span("a", 0, 10, 100), Span("b", 5, 10, 100), Span("c", 0, 0, 10)]
    assert accumulated_difference(spans, [0, 5, 6, 10]) == [0, 50, 50, 90]
    assert accumulated_difference([], [1, 2]) == [0, 0]


def test_what_began_before_the_start_counts_from_the_start_only() -> None:
    assert accumulated_difference([Span("a", -5, 5, 10), Span("b", 0, 1, 0)], [5]) == [5]


def test_all_are_active_from_the_last_first_arrival_to_the_first_last_end() -> None:
    requests = [done("a", 0, 5), done("a", 3, 20), done("b", 2, 9), done("b", 1, 4)]
    assert all_active(requests) == (1, 9)


def test_clients_that_never_meet_have_no_common_time() -> None:
    assert all_active([done("a", 0, 1), done("b", 1, 2)]) is None
    assert all_active([]) is None


def test_an_output_token_costs_twice_an_input_token() -> None:
    assert linear_price(3, 4) == 11
