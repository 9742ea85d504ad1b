"""Long work on the event loop: in order, in steps, with other tasks in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from evenkeel_router.fleet import long_work
from evenkeel_router.fleet.long_work import LongWork


def noting(what: str, steps: int, into: list[str]) -> Generator[None, None, str]:
    for _ in range(steps):
        into.append(what)
        yield
    return what


async def test_what_is_asked_for_first_ends_first() -> None:
    work, done = LongWork(), list[str]()
    work.add(noting("stored", 3, done))
    assert await work.run(noting("matched", 2, done)) == "matched"
    assert done == ["stored"] * 3 + ["matched"] * 2


async def test_other_tasks_run_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 1e-9)
    work, turns = LongWork(), 0
    task = asyncio.ensure_future(work.run(noting("x", 50, [])))
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 25


async def test_work_whose_caller_left_ends() -> None:
    work, done = LongWork(), list[str]()
    task = asyncio.ensure_future(work.run(noting("left", 10**9, done)))
    await asyncio.sleep(0)
    task.cancel()
    assert await work.run(noting("next", 1, done)) == "next"


async def test_work_that_fails_stops_no_other() -> None:
    work, reported = LongWork(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fails() -> Generator[None, None, None]:
        yield
        raise RuntimeError("planted")

    work.add(fails())
    assert await work.run(noting("next", 2, [])) == "next"
    assert [str(one["exception"]) for one in reported] == ["planted"]


async def test_who_waits_for_work_that_fails_gets_its_error() -> None:
    def fails() -> Generator[None, None, str]:
        yield
        raise RuntimeError("planted")

    work = LongWork()
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="planted"):
            await work.run(fails())
        assert await work.run(noting("next", 2, [])) == "next"
