"""The waiting room."""

import asyncio

import pytest
from evenkeel_router.fleet.wait_queue import WaitQueue

from tests.support.routers import until


async def test_requests_leave_in_fair_order_per_client() -> None:
    room, left = WaitQueue(), list[str]()

    async def wait(name: str, client: str) -> None:
        await room.wait(client=client, cost=10, weight=1, timeout_s=10)
        left.append(name)

    tasks = []
    for name, client in (("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b")):
        tasks.append(asyncio.create_task(wait(name, client)))
    await until(lambda: len(room) == 4, "four to wait")
    room.open()
    await asyncio.gather(*tasks)
    assert left == ["a0", "b0", "a1", "a2"]
    room.open()  # nobody there


async def test_who_waits_too_long_or_is_cancelled_leaves_nothing() -> None:
    room = WaitQueue()
    with pytest.raises(TimeoutError):
        await room.wait(client="a", cost=1, weight=1, timeout_s=0.001)
    waiting = asyncio.create_task(room.wait(client="a", cost=1, weight=1, timeout_s=10))
    await until(lambda: len(room) == 1, "one to wait")
    waiting.cancel()
    room.open()  # at the very moment: the room must not trip over it
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(room) == 0
