"""Passes: one for many events, none twice at a time, again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random

import pytest
from evenkeel_kube.client import Unreachable
from evenkeel_operator.cluster.store import SERVICE, Key
from evenkeel_operator.cluster.work_queue import FIRST_RETRY_S, LAST_RETRY_S, SETTLE_S, WorkQueue

from tests.support.virtual_time import Longest, run_virtually

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
    assert str(error) in caplog.text


def pauses(
    results: Iterable[float | None | Exception], *, events: int = 0, rng: Random | None = None
) -> list[float]:
    """The seconds between passes with these results. `events`: passes, the first ones, during which something happens."""
    times_s: list[float] = []

    async def scene() -> None:
        loop, left, done = asyncio.get_running_loop(), iter(results), asyncio.Event()
        work_queue = WorkQueue(rng=rng or Longest())

        async def make_pass(key: Key) -> float | None:
            times_s.append(loop.time())
            result = next(left, done)
            if result is done:
                done.set()
                return None
            if len(times_s) <= events:
                work_queue.add(key)
            if isinstance(result, Exception):
                raise result
            return result

        work_queue.add(A, after_s=0)
        workers = asyncio.create_task(work_queue.work(make_pass))
        await done.wait()
        workers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await workers

    run_virtually(scene())
    return [round(later - before, 6) for before, later in itertools.pairwise(times_s)]


FAILS, FAULT = Unreachable("away"), RuntimeError("a fault of ours")


@pytest.mark.parametrize("failure", [FAILS, FAULT], ids=["cluster", "fault"])
def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit(failure: Exception) -> None:
    doubled = [FIRST_RETRY_S * 2**n for n in range(8)]
    assert pauses([failure] * 10) == [*doubled, LAST_RETRY_S, LAST_RETRY_S]


def test_failures_in_a_row_count_whatever_they_are_until_a_pass_succeeds() -> None:
    want = [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 7.0, FIRST_RETRY_S]
    assert pauses([FAULT, FAILS, 7.0, FAULT]) == want


def test_retries_are_spread_over_the_second_half_of_their_pause() -> None:
    parts = [pauses([FAILS], rng=Random(seed))[0] / FIRST_RETRY_S for seed in range(50)]
    assert 0.5 <= min(parts) < 0.6
    assert 0.9 < max(parts) <= 1.0


def test_an_event_during_a_pass_shortens_its_pause_only_if_it_succeeds() -> None:
    want = [SETTLE_S, FIRST_RETRY_S, 2 * FIRST_RETRY_S]
    assert pauses([3600.0, FAILS, FAULT], events=3) == want


def test_an_event_leads_to_one_more_pass() -> None:
    assert pauses([3600.0, 3600.0, 3600.0], events=1) == [SETTLE_S, 3600.0, 3600.0]


def test_a_later_request_does_not_delay_a_pass_that_is_due_before() -> None:
    times_s: list[float] = []

    async def scene() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        work_queue, began_s = WorkQueue(rng=Longest()), loop.time()

        async def make_pass(key: Key) -> float | None:
            times_s.append(loop.time() - began_s)
            done.set()
            return None

        for after_s in (60.0, 2.0, 600.0):
            work_queue.add(A, after_s=after_s)
        await work(work_queue, make_pass, done)

    run_virtually(scene())
    assert times_s == [2.0]


async def test_requests_that_are_out_of_date_take_no_memory() -> None:
    work_queue = WorkQueue(rng=Random(1))
    for number in range(1000):
        for key in (A, B):
            work_queue.add(key, after_s=3600.0 - number)
    assert len(work_queue._order) <= 4
