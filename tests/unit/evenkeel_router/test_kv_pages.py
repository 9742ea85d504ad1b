"""What a replica holds, asked for over its reports port: answers in parts, no answers, and wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
import zmq
import zmq.asyncio
from evenkeel_contract.heldpages import PAGES_VERSION, PagesPart, PagesQuestion
from evenkeel_contract.kvevents import EventBatch, Numbered, encode_batch
from evenkeel_contract.reportsport import decode_question
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.prefix import kv_events as kvpages
from evenkeel_router.prefix.kv_events import pages_wanted
from evenkeel_router.prefix.kv_follower import Follower

from tests.support.routers import QUICK, until

FIRST = PagesPart(PAGES_VERSION, 9, 8.5, 16, 0, 2, b"\1" + bytes(7))
SECOND = msgspec.structs.replace(FIRST, part=1, pages=b"\2" + bytes(7))


class NoView:
    """Keeps nothing."""

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None: ...
    def removed(self, hashes: Sequence[int]) -> None: ...
    def cleared(self) -> None: ...
    def synced(self, complete: bool) -> None: ...


@dataclass
class Port:
    """A reports port that answers by a list, one entry for each question."""

    answers: list[list[PagesPart]]
    address: str = ""
    asked: list[object] = field(default_factory=list)

    async def serve(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            asker, question = await socket.recv_multipart()
            self.asked.append(decode_question(question))
            for part in self.answers.pop(0):
                await socket.send_multipart((asker, msgspec.msgpack.encode(part)))


@asynccontextmanager
async def port_with(*answers: list[PagesPart]) -> AsyncIterator[Port]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    port = Port(list(answers))
    port.address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    serving = asyncio.create_task(port.serve(socket))
    try:
        yield port
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        context.destroy(linger=0)


@pytest.fixture
def follower() -> Follower:
    """One that came too late."""
    made = Follower(NoView())
    made.connected()
    made.ask()
    made.replayed(Numbered(7, encode_batch(EventBatch(7.5, []))))
    made.ended()
    assert made.wants_pages
    return made


@asynccontextmanager
async def wanted(
    follower: Follower, reports: str | None
) -> AsyncIterator[asyncio.Task[list[PagesPart]]]:
    context = zmq.asyncio.Context()
    replica = ReplicaConfig(name="r0", url="http://127.0.0.1:1", reports=reports)
    task = asyncio.create_task(pages_wanted(context, replica, follower, timing=QUICK))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)


async def test_all_parts_of_an_answer_are_waited_for(follower: Follower) -> None:
    async with port_with([FIRST, SECOND]) as port, wanted(follower, port.address) as task:
        parts = await asyncio.wait_for(task, 10)
    assert [list(part.hashes) for part in parts] == [[1], [2]]
    assert port.asked == [PagesQuestion(PAGES_VERSION)]


async def test_no_replica_is_queried_while_nothing_is_missing() -> None:
    follower = Follower(NoView())
    async with port_with([FIRST, SECOND]) as port, wanted(follower, port.address) as task:
        await asyncio.wait((task,), timeout=5 * QUICK.report_interval_s)
        assert not port.asked


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([msgspec.structs.replace(FIRST, trouble="another engine")], "another engine"),
        ([SECOND], "part 0 of its answer did not arrive"),
        ([FIRST, FIRST], "part 1 of its answer did not arrive"),
        ([FIRST, msgspec.structs.replace(SECOND, sequence=10)], "part 1 of its answer did not"),
        ([msgspec.structs.replace(FIRST, version=2)], "version 2 is not supported; expected 1"),
        ([], "it does not answer, as if its plug-in were older than this router"),
        ([FIRST], "part 1 of its answer did not arrive"),
    ],
)
async def test_what_is_wrong_is_said_and_asked_for_again(
    wrong: list[PagesPart], why: str, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvpages, "ANSWER_S", 0.2)
    async with port_with(wrong, [FIRST, SECOND]) as port, wanted(follower, port.address) as task:
        await until(_says(follower, why), why)
        assert len(await asyncio.wait_for(task, 10)) == 2


async def test_a_replica_without_reports_cannot_be_asked(follower: Follower) -> None:
    async with wanted(follower, None):
        await until(_says(follower, "it sends no reports"), "its words")


def _says(follower: Follower, why: str) -> Callable[[], bool]:
    return lambda: f"it does not report the pages that it holds: {why}" in follower.reason
