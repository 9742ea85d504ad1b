"""vLLM's batch against what the policy admitted. vLLM itself is only in `make test-vllm`; here its abstract class is empty."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.registry import make_policy
from evenkeel_plugin.scheduling import Scheduling

WAITING, RUNNING = SimpleNamespace(name="WAITING"), SimpleNamespace(name="RUNNING")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A queue; `bypassed` lists the calls for requests that the policy did not propose."""
    name = "vllm.v1.core.sched.request_queue"
    stub = ModuleType(name)
    stub.RequestQueue = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.delitem(sys.modules, "evenkeel_vllm.waiting_queue", raising=False)
    from evenkeel_vllm.waiting_queue import FairQueue

    scheduling = Scheduling(make_policy("FCFS"), Accounts(LinearCost()), match=lambda request: 0, refused=lambda reason: None)  # fmt: skip
    found = FairQueue(scheduling)
    found.bypassed = []
    scheduling.bypassed = lambda: found.bypassed.append(None)
    return found


class Request(SimpleNamespace):
    """vLLM's requests are keys."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def request(name: str) -> Request:
    return Request(
        request_id=name,
        session_id="ek1;ns/a/a;w=1,1",
        prompt_token_ids=[1, 2, 3],
        num_prompt_tokens=3,
        num_computed_tokens=3,
        output_token_ids=[],
        max_tokens=4,
        lora_request=None,
        cache_salt=None,
        status=WAITING,
        is_finished=lambda: False,
    )


def test_a_request_that_the_policy_proposed_is_not_counted(queue: Any) -> None:
    one = request("one")
    queue.add_request(one)
    queue.begin()
    assert queue.peek_request() is queue.pop_request() is one
    one.status = RUNNING
    queue.end({"one": 3})
    assert not queue
    queue.begin()
    queue.end({"one": 1})
    assert queue.bypassed == []


def test_each_request_that_entered_unproposed_is_counted_once(queue: Any) -> None:
    for batch, want in (({"x": 3}, 1), ({"x": 1}, 1), ({"x": 1, "y": 5}, 2), ({}, 2)):
        queue.begin()
        queue.end(batch)
        assert len(queue.bypassed) == want
