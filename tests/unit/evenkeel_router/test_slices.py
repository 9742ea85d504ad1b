"""Long answers: other tasks run between slices, and scrapes share one rendering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from aiohttp import web
from evenkeel_router import slices
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry import slices as answers
from evenkeel_router.telemetry.slices import Sender, SharedText, cut

from tests.support.routers import until


async def turns_during(work: asyncio.Task[object]) -> int:
    """How often another task runs until the work is done."""
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


def count(steps: int) -> Generator[None, None, int]:
    for _ in range(steps):
        yield
    return steps


async def test_other_tasks_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    work: asyncio.Task[object] = asyncio.create_task(in_slices(count(50)))
    assert await turns_during(work) >= 50
    result, cost_s = await in_slices(count(50))
    assert (result, cost_s > 0) == (50, True)


async def test_short_work_is_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
    work: asyncio.Task[object] = asyncio.create_task(in_slices(count(1000)))
    assert await turns_during(work) <= 2


class Text:
    """A text that knows how often it was rendered."""

    def __init__(self, *, lines: int = 3, padding: int = 0) -> None:
        self.rendered = 0
        self.lines = lines
        self.padding = " " * padding

    def render(self) -> Iterator[str]:
        self.rendered += 1
        for n in range(self.lines):
            yield f"{self.rendered} {n}{self.padding}\n"


async def test_requests_at_the_same_time_share_one_rendering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    text = Text(lines=1000)
    shared = SharedText(text.render)
    found = await asyncio.gather(*(shared.get() for _ in range(50)))
    assert text.rendered == 1
    assert {b"".join(pieces) for pieces in found} == {b"".join(b"1 %d\n" % n for n in range(1000))}


@pytest.mark.parametrize(("pause_per_cost", "renderings"), [(1e9, 1), (0.0, 2)])
async def test_a_new_rendering_starts_only_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, pause_per_cost: float, renderings: int
) -> None:
    monkeypatch.setattr(answers, "PAUSE_PER_COST", pause_per_cost)
    text = Text()
    shared = SharedText(text.render)
    await shared.get()
    await shared.get()
    assert text.rendered == renderings


async def test_a_request_that_is_cancelled_does_not_end_the_rendering_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    text = Text(lines=100)
    shared = SharedText(text.render)
    first, second = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    first.cancel()
    assert b"".join(await second).endswith(b"1 99\n")
    assert first.cancelled()


async def test_closing_ends_a_rendering_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    shared = SharedText(Text(lines=10_000_000).render)
    work = asyncio.create_task(shared.get())
    await asyncio.sleep(0.01)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await work


@asynccontextmanager
async def serving(text: Text) -> AsyncIterator[str]:
    shared, sender = SharedText(text.render), Sender()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await sender.send(request, shared, "text/plain")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_few_answers_at_a_time_and_slow_readers_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "SEND_TIMEOUT_S", 1.0)
    text = Text(lines=20_000, padding=1000)  # more than the kernel buffers
    async with serving(text) as url, httpx.AsyncClient(timeout=20) as client:
        port = int(url.rpartition(":")[2])
        slow = []
        for _ in range(answers.MAX_SENDING):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readexactly(1)
            slow.append((reader, writer))
        refused = await client.get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        statuses: list[int] = []

        async def ask() -> None:
            while not statuses or statuses[-1] != 200:
                statuses.append((await client.get(url)).status_code)

        asking = asyncio.create_task(ask())
        await until(asking.done, "an answer once the slow readers are gone")
        for reader, writer in slow:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(10**9)
            writer.close()


def test_a_body_is_cut_into_pieces_that_are_all_of_it() -> None:
    body = bytes(range(256)) * 1000
    pieces = cut(body)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) == answers.PIECE_BYTES
    assert cut(b"") == []
