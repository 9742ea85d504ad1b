"""vLLM's batch against what the policy admitted."""

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
    """A queue; `bypassed` lists the calls for requests that the policy did not propose."""
    scheduling = Scheduling(make_policy("FCFS"), Accounts(LinearCost()), match=lambda request: 0, refused=lambda reason: None)  # fmt: skip
    found = plugin.FairQueue(scheduling)
    found.scheduling = scheduling
    found.bypassed = []
    scheduling.bypassed = lambda: found.bypassed.append(None)
    return found


def test_a_request_that_the_policy_proposed_is_not_counted(queue: Any) -> None:
    one = request("one")
    queue.add_request(one)
    queue.begin()
    assert queue.peek_request() is queue.pop_request() is one
    one.status, one.num_computed_tokens = RequestStatus.RUNNING, 60
    queue.end({"one": 60})
    assert not queue
    queue.begin()
    queue.end({"one": 1})
    assert queue.bypassed == []


@pytest.mark.parametrize("asks_again", [False, True])
def test_the_tokens_of_its_own_step_are_no_prefix_of_a_request(
    queue: Any, asks_again: bool
) -> None:
    """vLLM counts them as computed when the step ends, and may ask for another request before."""
    one = request("one", tokens=60)
    queue.add_request(one)
    queue.begin()
    queue.pop_request()
    one.status, one.num_computed_tokens = RequestStatus.RUNNING, 16
    if asks_again:
        assert not queue
    one.num_computed_tokens += 44
    queue.end({"one": 44})
    totals = queue.scheduling.snapshot()[0]["ns/a/a"]
    assert (totals.cached_tokens, totals.extend_tokens) == (16, 44)


def test_each_request_that_entered_unproposed_is_counted_once(queue: Any) -> None:
    for batch, want in (({"x": 3}, 1), ({"x": 1}, 1), ({"x": 1, "y": 5}, 2), ({}, 2)):
        queue.begin()
        queue.end(batch)
        assert len(queue.bypassed) == want


def test_a_queue_that_has_nobody_to_propose_says_so(queue: Any) -> None:
    assert not queue
    for ask in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError, match="^no request may enter now$"):
            ask()


def test_outside_a_step_the_queue_is_all_that_wait(queue: Any) -> None:
    one, two = request("one"), request("two")
    queue.add_request(one)
    queue.prepend_requests([two, one])
    assert (bool(queue), len(queue), list(queue)) == (True, 2, [one, two])
    queue.remove_request(one)
    queue.remove_requests([one, two])
    assert (bool(queue), len(queue)) == (False, 0)
