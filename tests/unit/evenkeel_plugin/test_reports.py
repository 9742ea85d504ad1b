"""The reports port inside an engine: what is told is one moment's, whatever the scheduler's thread does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq
from evenkeel_contract import heldpages
from evenkeel_contract.heldpages import HeldPages, PagesPart, decode_part
from evenkeel_contract.kvevents import AllBlocksCleared, BlockStored
from evenkeel_contract.promptfacts import facts_of
from evenkeel_contract.reportbook import News, ReportBook
from evenkeel_plugin import reports
from evenkeel_plugin.reports import ReportServer

PAGES = 40


@pytest.fixture
def pages() -> HeldPages:
    return HeldPages()


@pytest.fixture
def asking(pages: HeldPages) -> Iterator[zmq.Socket[bytes]]:
    """A router's connection to a server that tells of `pages`."""
    server = ReportServer(
        ReportBook(incarnation="i", policy="DLPM"),
        lambda: News({}, {}, 0.0, complete=True),
        prompts=lambda: facts_of({}, page_tokens=16),
        pages=pages,
        host="127.0.0.1",
        port=0,
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{server.port}")
        yield socket


def told(socket: zmq.Socket[bytes]) -> PagesPart:
    assert socket.poll(20_000), "no answer"
    return decode_part(socket.recv_multipart()[-1])


def test_the_answer_is_what_the_cache_held_after_one_batch(
    pages: HeldPages, asking: zmq.Socket[bytes]
) -> None:
    enough = threading.Event()

    def publish() -> None:
        number = 0
        while not enough.is_set():
            hashes = list(range(number, number + PAGES))
            pages.published(
                float(number), [AllBlocksCleared(), BlockStored(hashes, None, [], 16, None)]
            )
            number += 1

    scheduler = threading.Thread(target=publish)
    scheduler.start()
    try:
        seen: set[int] = set()
        for asked in range(10_000):
            if asked >= 50 and len(seen) > 1:  # a busy machine may not let the other run at once
                break
            asking.send(heldpages.ask())
            part = told(asking)
            if part.sequence:
                last = part.sequence - 1
                assert part.last_unix_s == last
                assert list(part.hashes) == list(range(last, last + PAGES))
            seen.add(part.sequence)
    finally:
        enough.set()
        scheduler.join()
    assert len(seen) > 1


def test_a_question_that_is_none_is_not_answered_and_the_next_one_is(
    asking: zmq.Socket[bytes],
) -> None:
    asking.send(b"\xc1")
    asking.send(heldpages.ask())
    assert told(asking).sequence == 0


def test_a_question_beyond_the_limit_ends_its_connection_and_no_other(
    asking: zmq.Socket[bytes],
) -> None:
    """The port is open to the cluster: what it reads is bounded before it is read."""
    assert reports.MAX_QUESTION_BYTES < 2**20
    address = asking.get_string(zmq.LAST_ENDPOINT)
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.setsockopt(zmq.LINGER, 0)
        watched = other.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        other.connect(address)
        other.send(b"x" * (reports.MAX_QUESTION_BYTES + 1))
        assert watched.poll(10_000), "the server ends the connection"
        other.disable_monitor()
        watched.close()
