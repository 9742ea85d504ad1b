"""The order of the waiting room."""

import pytest
from evenkeel_router.fleet.wait_queue import FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_a_client_that_queued_many_does_not_stand_before_one_that_queued_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(5):
        queue.push(f"flood{n}", client="flood", cost=100, weight=1)
    queue.push("calm", client="calm", cost=100, weight=1)
    assert drained(queue) == ["flood0", "calm", "flood1", "flood2", "flood3", "flood4"]


def test_weights_share_out_the_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(6):
        queue.push(f"heavy{n}", client="heavy", cost=100, weight=2)
        queue.push(f"light{n}", client="light", cost=100, weight=1)
    first = drained(queue)[:6]
    assert sum(name.startswith("heavy") for name in first) == 4


def test_a_latecomer_starts_now_and_earns_nothing_for_its_absence() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(4):
        queue.push(f"a{n}", client="a", cost=100, weight=1)
    assert [queue.pop(), queue.pop(), queue.pop()] == ["a0", "a1", "a2"]
    queue.push("b0", client="b", cost=100, weight=1)
    queue.push("b1", client="b", cost=100, weight=1)
    assert drained(queue) == ["b0", "a3", "b1"]


def test_an_empty_queue_drops_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a0", client="a", cost=1000, weight=1)
    assert queue.pop() == "a0"
    queue.push("a1", client="a", cost=1, weight=1)
    queue.push("b0", client="b", cost=1, weight=1)
    assert drained(queue) == ["a1", "b0"]
    with pytest.raises(IndexError):
        queue.pop()


def test_who_gives_up_is_gone() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a", "b", "c"):
        queue.push(name, client=name, cost=1, weight=1)
    queue.discard("b")
    assert drained(queue) == ["a", "c"]
    queue.push("d", client="d", cost=0, weight=1)  # costs nothing, counts as one token
    queue.discard("d")
    assert len(queue) == 0


def test_a_queue_whose_last_request_gave_up_drops_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("gives up", client="a", cost=100, weight=1)
    queue.discard("gives up")
    queue.push("first", client="a", cost=100, weight=1)
    queue.push("second", client="b", cost=100, weight=1)
    assert drained(queue) == ["first", "second"]
