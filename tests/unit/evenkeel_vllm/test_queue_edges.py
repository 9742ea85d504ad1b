"""vLLM's queue of waiting requests: which are in it after each call, and which go on as the same request."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.registry import make_policy
from evenkeel_plugin.scheduling import Scheduling

from tests.support.fake_vllm import RequestStatus
from tests.unit.evenkeel_vllm.conftest import request


@pytest.fixture
def queue(plugin: ModuleType) -> Any:
    scheduling = Scheduling(make_policy("FCFS"), Accounts(LinearCost()), match=lambda request: 0, refused=lambda reason: None)  # fmt: skip
    scheduling.bypassed = lambda: None
    found = plugin.FairQueue(scheduling)
    found.scheduling = scheduling
    return found


def enter(queue: Any, one: Any) -> None:
    """The engine takes the next request into its batch."""
    queue.begin()
    assert queue.pop_request() is one
    one.status, one.num_computed_tokens = RequestStatus.RUNNING, 60
    queue.end({one.request_id: 60})


def test_requests_leave_the_queue_one_by_one_or_many_at_once(queue: Any) -> None:
    one, two, three, gone = map(request, ("one", "two", "three", "gone"))
    for each in (one, two, three):
        queue.add_request(each)
    assert (list(queue), len(queue)) == ([one, two, three], 3)
    queue.remove_request(two)
    assert list(queue) == [one, three]
    with pytest.raises(KeyError):
        queue.remove_request(two)
    queue.remove_requests([gone, one, three])
    assert (list(queue), len(queue), bool(queue)) == ([], 0, False)


def test_an_empty_queue_has_no_request_to_give(queue: Any) -> None:
    queue.begin()
    for ask in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError):
            ask()


def test_a_preempted_request_comes_back_as_the_same_one(queue: Any) -> None:
    one, two = request("one"), request("two")
    queue.add_request(one)
    before = queue._waiting[one]
    enter(queue, one)
    assert (list(queue), queue._running) == ([], {"one": before})
    queue.prepend_requests([one, two])
    assert (list(queue), queue._running) == ([one, two], {})
    assert queue._waiting[one] is before
    queue.prepend_request(one)  # it waits already
    assert list(queue) == [one, two]
    assert queue._waiting[one] is before


def test_a_request_that_got_no_slot_waits_on_and_is_offered_again(queue: Any) -> None:
    one = request("one")
    queue.add_request(one)
    queue.begin()
    assert queue.pop_request() is one
    queue.end({})
    assert (list(queue), queue._running) == ([one], {})
    enter(queue, one)
    assert (list(queue), list(queue._running)) == ([], ["one"])
    assert queue._running["one"].prefix_len == 0


def test_a_finished_request_is_kept_no_longer(queue: Any) -> None:
    one, two = request("one"), request("two")
    for each in (one, two):
        queue.add_request(each)
        enter(queue, each)
    one.status = RequestStatus.FINISHED_STOPPED
    queue.processed(["one", "unknown"])
    assert list(queue._running) == ["two"]


def test_only_a_request_that_was_never_proposed_is_bypassed_and_once(queue: Any) -> None:
    noted: list[None] = []
    queue.scheduling.bypassed = lambda: noted.append(None)
    one = request("one")
    queue.add_request(one)
    enter(queue, one)
    for step, want in (
        ({"one": 1, "x": 1}, 1),
        ({"x": 1}, 1),
        ({"x": 1, "y": 1}, 2),
        ({}, 2),
        ({"x": 1}, 3),
    ):
        queue.begin()
        queue.end(step)
        assert len(noted) == want
