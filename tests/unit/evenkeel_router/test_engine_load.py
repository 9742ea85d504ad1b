"""What the gate reads of an engine's metrics, and the limit that follows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from evenkeel_router.gate.engine_load import (
    FIRST,
    LONGEST_PAUSE,
    READINGS,
    EngineLimit,
    EngineLoad,
    queue_of,
    read_load,
)

SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 7.0
sglang:num_running_reqs_offline_batch{model_name="tiny"} 5.0
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 3.0
sglang:token_usage{model_name="tiny"} 0.25
"""
PRIORITIES = b"""sglang:num_running_reqs{model_name="tiny",priority=""} 7.0
sglang:num_running_reqs{model_name="tiny",priority="1"} 4.0
sglang:num_running_reqs{model_name="tiny",priority="2"} 3.0
sglang:num_queue_reqs{priority=""} 2.0
sglang:num_queue_reqs{priority="2"} 2.0
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
vllm:num_requests_running{engine="1",model_name="tiny"} 5.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 7e-01
"""


@pytest.mark.parametrize(
    ("page", "want"),
    [
        (SGLANG, EngineLoad(7, 3, 0.25)),
        (PRIORITIES, EngineLoad(7, 2, 0)),
        (VLLM, EngineLoad(9, 1, 0.7)),
        (b"vllm:num_requests_waiting 2\n", EngineLoad(0, 2, 0)),
        (b"up 1\nprocess_cpu_seconds_total 3.5\n", None),
        (b"# vllm:num_requests_waiting 2\n", None),
        (b'sglang:num_queue_reqs{a="b"} +Inf\n', None),
        (b'sglang:num_queue_reqs{a="b"} 1.2.3\n', None),
        (b"", None),
    ],
)
def test_the_names_of_both_engines_are_read(page: bytes, want: EngineLoad | None) -> None:
    assert read_load(page) == want


PLACES = 2


def reading(limit: EngineLimit, running: float, waiting: float, **changes: float) -> float:
    usage = changes.get("usage", 0.5)
    load = EngineLoad(running, waiting, usage)
    limit.read(
        load,
        begun=int(changes.get("begun", 0)),
        held_up=bool(changes.get("held_up", 1)),
        streams_held_up=bool(changes.get("held_up", 1)),
    )
    return limit.limit


def test_the_limit_doubles_until_requests_wait_and_then_follows_the_batch() -> None:
    limit = EngineLimit()
    assert [reading(limit, running, 0) for running in (0, 4, 8, 16)] == [FIRST, 8, 16, 32]
    assert reading(limit, 20, 12) == 24  # no more than a quarter at once
    assert reading(limit, 20, 4) == 22
    assert reading(limit, 20, 2) == 22
    assert reading(limit, 20, 0) == 22 * 1.125


def test_the_limit_does_not_grow_without_held_up_requests_or_free_memory() -> None:
    limit = EngineLimit()
    reading(limit, 10, 0)
    assert reading(limit, 10, 0, held_up=0) == 12
    assert reading(limit, 10, 0, usage=0.97) == 12


def test_a_router_that_starts_beside_others_begins_with_their_batch() -> None:
    assert reading(EngineLimit(), 30, 2) == 32


def test_streams_that_the_router_sees_count_before_the_engine_reports_them() -> None:
    limit = EngineLimit()
    reading(limit, 20, 0)
    assert [reading(limit, 3, 5, begun=18) for _ in range(READINGS)][-1] == 20


def test_a_place_that_is_free_between_two_steps_makes_no_batch_smaller() -> None:
    limit = EngineLimit()
    reading(limit, 8, 2)
    readings = [(7, 2), (5, 3), (6, 2), (8, 2), (7, 3)]
    assert [reading(limit, *one) for one in readings] == [10] * len(readings)
    assert [reading(limit, 4, 3) for _ in range(6)] == [10, 10, 8, 6, 5, 5]


def test_more_streams_may_be_on_their_way_until_they_wait_in_the_engine() -> None:
    limit = EngineLimit()
    reading(limit, 8, 0)
    seen = []
    for waiting in (0, 0, 2, 1, 0, 5, 3, 3, 0):
        reading(limit, 8, waiting, held_up=waiting < 9)
        seen.append(limit.unanswered)
    assert seen == [4, 8, 6, 6, 7, 5.25, 3.9375, 2.953125, 3.953125]
    reading(limit, 8, 0, held_up=0)
    assert limit.unanswered == 3.953125


def test_few_requests_may_wait_in_an_engine_with_a_small_batch() -> None:
    assert [queue_of(running) for running in (0, 2, 3, 4, 7, 8, 64)] == [0, 0, 0, 1, 1, 2, 2]
    limit = EngineLimit()
    reading(limit, 0, 0)
    assert [reading(limit, 2, 2) for _ in range(4)] == [FIRST, 3, 2.25, 2]


def test_one_reading_alone_does_not_show_that_a_small_batch_is_full() -> None:
    limit = EngineLimit()
    reading(limit, 0, 0)
    assert [reading(limit, 1, waiting, held_up=0) for waiting in (2, 0, 2, 0)] == [FIRST] * 4


def test_a_small_batch_is_tried_for_more_less_and_less_often() -> None:
    """An engine with two places: the readings at which a third request waits in it."""
    limit, waited = EngineLimit(), []
    for number in range(1000):
        queue = max(0, int(limit.limit) - 2)
        reading(limit, 2, queue)
        if queue:
            waited.append(number)
    assert len(waited) / 1000 < 0.1
    assert max(b - a for a, b in pairwise(waited)) <= LONGEST_PAUSE + 8


def full_at_two() -> EngineLimit:
    """Of an engine whose two places were found to be all, and whose pause has just ended."""
    limit = EngineLimit()
    for waiting in (0, 2, 2, 2, 2):
        reading(limit, 2, waiting)
    while limit.limit == PLACES:
        reading(limit, 2, 0)
    return limit


def test_where_a_batch_was_full_before_one_reading_shows_it_again() -> None:
    limit = full_at_two()
    while int(limit.limit) == PLACES:
        reading(limit, 2, 0)
    assert int(reading(limit, 2, 1)) == PLACES


def test_an_attempt_of_another_router_begins_the_pause_anew() -> None:
    """Else each router would make its own attempts, and queues."""
    readings = []
    for seen in (0, 1):
        limit = full_at_two()
        while int(limit.limit) == PLACES:
            reading(limit, 2, 0)
        for waiting in (1, 0, 0, 0, seen):
            before = reading(limit, 2, waiting)
        readings.append(0)
        while reading(limit, 2, 0) <= before:
            readings[-1] += 1
    assert readings[1] == readings[0] + 4


def test_a_batch_that_has_become_larger_is_used() -> None:
    limit = EngineLimit()
    for _ in range(300):
        reading(limit, 2, max(0, int(limit.limit) - 2))
    for _ in range(LONGEST_PAUSE + 30):
        reading(limit, int(limit.limit), 0)
    assert limit.limit > 32


def test_a_long_queue_never_raises_a_small_limit() -> None:
    limit = EngineLimit()
    for _ in range(6):
        reading(limit, 2, 2)
    assert reading(limit, 2, 0, held_up=0) == 2
    assert reading(limit, 2, 9) == 2
