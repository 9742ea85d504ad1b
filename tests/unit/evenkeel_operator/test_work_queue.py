"""Passes: one for many events, none twice at a time, again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from evenkeel_kube.client import Unreachable
from evenkeel_operator.cluster.store import SERVICE, Key
from evenkeel_operator.cluster.work_queue import WorkQueue

A, B = Key(SERVICE, "n", "a"), Key(SERVICE, "n", "b")


async def work(
    work_queue: WorkQueue, make_pass: Callable[[Key], Awaitable[float | None]], until: asyncio.Event
) -> None:
    """Two workers, until the event."""
    workers = [asyncio.create_task(work_queue.work(make_pass)) for _ in range(2)]
    async with asyncio.timeout(30):
        await until.wait()
    for worker in workers:
        worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*workers)


async def test_many_events_are_one_pass_and_resources_do_not_wait_for_each_other() -> None:
    work_queue, made, done = WorkQueue(rng=Random(1)), list[Key](), asyncio.Event()

    async def make_pass(key: Key) -> float | None:
        made.append(key)
        if len(made) == 2:
            done.set()
        return None

    for _ in range(10):
        work_queue.add(A)
    work_queue.add(B, after_s=0)
    await work(work_queue, make_pass, done)
    assert made == [B, A]


async def test_an_event_during_a_pass_is_another_pass_after_it() -> None:
    work_queue, running, most, passes = WorkQueue(rng=Random(1)), 0, 0, 0
    done = asyncio.Event()

    async def make_pass(key: Key) -> float | None:
        nonlocal running, most, passes
        running, passes = running + 1, passes + 1
        most = max(most, running)
        if passes == 1:
            work_queue.add(key, after_s=0)
        await asyncio.sleep(0.01)
        running -= 1
        if passes == 2:
            done.set()
        return 3600.0

    work_queue.add(A, after_s=0)
    await work(work_queue, make_pass, done)
    assert (most, passes) == (1, 2)


@pytest.mark.parametrize("error", [Unreachable("away"), RuntimeError("a fault of ours")])
async def test_a_pass_that_fails_is_made_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    work_queue, passes, done = WorkQueue(rng=Random(1)), 0, asyncio.Event()

    async def make_pass(_: Key) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise error
        done.set()
        return None

    work_queue.add(A, after_s=0)
    with caplog.at_level(logging.WARNING):
        await work(work_queue, make_pass, done)
    assert passes == 2
    assert "FairInferenceService n/a" in caplog.text
