"""Chunks that bypass the parser: which do, and which only look as if they might."""

from __future__ import annotations

import asyncio

import pytest
from evenkeel_router.transport import replica_connection

from tests.support.nasty import DONE, EVENT
from tests.support.wires import LAST_CHUNK, STREAM_HEAD, Line, Wire, framed, streamed, unframed

END = framed(DONE) + LAST_CHUNK


async def test_usual_chunks_go_on_as_they_are_once_the_client_was_sent_something() -> None:
    client = await streamed([STREAM_HEAD, *[framed(EVENT)] * 5, END])
    assert client.spliced == 4
    assert client.transport.written == [*[framed(EVENT)] * 5, framed(DONE)]
    assert client.scan.events == 5


async def test_a_whole_chunk_after_a_cut_one_is_passed_on_as_it_is() -> None:
    whole = framed(EVENT)
    reads = [whole[:9], whole[9:], whole, whole[:-1], whole[-1:], whole, whole + whole, whole]
    client = await streamed([STREAM_HEAD, *reads, END])
    assert client.spliced == 3
    assert unframed(b"".join(client.transport.written)) == EVENT * 7 + DONE


async def test_the_end_of_a_size_is_not_taken_for_a_whole_one() -> None:
    """Only the parser knows that a digit came before: the chunk is larger by 0x1000, and goes on."""
    event = EVENT.replace(b'"a"', b'"%b"' % (b"a" * 0x100))
    rest = b": ".ljust(0x1000 - 4, b".") + b"\n\n"
    looks_whole = framed(event)
    reads = [framed(EVENT) + b"1", looks_whole, rest + b"\r\n", END]
    client = await streamed([STREAM_HEAD, framed(EVENT), *reads])
    assert client.spliced == 0
    want = EVENT * 2 + event + b"\r\n" + rest + DONE
    assert unframed(b"".join(client.transport.written)) == want


async def test_what_looks_like_a_chunk_inside_a_chunk_is_not_one() -> None:
    chunk = framed(EVENT + framed(EVENT) + EVENT)
    at = chunk.index(framed(EVENT))
    reads = [chunk[:at], framed(EVENT), chunk[at + len(framed(EVENT)) :]]
    client = await streamed([STREAM_HEAD, framed(EVENT), *reads, END])
    assert client.spliced == 0
    assert client.scan.broken == "the replica's stream contains no events"


async def test_nothing_goes_on_after_the_last_chunk() -> None:
    client = await streamed([STREAM_HEAD, framed(EVENT), LAST_CHUNK, framed(EVENT)])
    assert client.transport.written == [framed(EVENT)]
    assert client.scan.broken == "the replica's stream ended before its last event"


@pytest.mark.parametrize("end", [END, LAST_CHUNK])  # a stream without a last event is over, too
async def test_the_next_stream_on_a_connection_sends_nothing_to_the_last_client(end: bytes) -> None:
    """Its second chunk may arrive before anybody has read the first one."""
    wire = Wire()
    last = await wire.stream([STREAM_HEAD, framed(EVENT), framed(EVENT), end])
    got = list(last.transport.written)
    beginning = wire.connection.send(b"POST / HTTP/1.1\r\n\r\n", 5.0)
    for read in (STREAM_HEAD, framed(EVENT), framed(EVENT), END):
        wire.connection.data_received(read)
    assert await beginning
    wire.connection.no_longer_awaited()
    pieces: list[bytes] = []
    assert await wire.connection.relay(lambda data, last: pieces.append(data), idle_s=5.0)
    assert b"".join(pieces) == EVENT * 2 + DONE
    assert last.transport.written == got


@pytest.mark.parametrize("end", ["reset", "garbage", "nothing"])
async def test_what_comes_together_with_its_break_is_known_as_the_last(end: str) -> None:
    wire, fed = Wire(), list[tuple[bytes, bool]]()
    beginning = wire.connection.send(b"POST / HTTP/1.1\r\n\r\n", 5.0)
    wire.connection.data_received(STREAM_HEAD + framed(EVENT))
    if end == "reset":
        wire.connection.connection_lost(ConnectionResetError())
    elif end == "garbage":
        wire.connection.data_received(b"garbage\r\n")
    assert await beginning
    wire.connection.no_longer_awaited()
    relaying = wire.connection.relay(lambda *piece: fed.append(piece), idle_s=0.01)
    task = asyncio.ensure_future(relaying)
    await asyncio.sleep(0)
    assert fed == [(EVENT, end != "nothing")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_after_a_hold_no_chunk_goes_on_to_a_client_that_does_not_read() -> None:
    """The kernel may hand over more after the router has stopped reading."""
    wire, sent, pieces = Wire(), Line(), list[bytes]()

    def feed(data: bytes, last: bool) -> None:
        pieces.append(data)
        wire.connection.splice(lambda chunk: True, sent)

    beginning = wire.connection.send(b"POST / HTTP/1.1\r\n\r\n", 5.0)
    wire.connection.data_received(STREAM_HEAD + framed(EVENT))
    assert await beginning
    wire.connection.no_longer_awaited()
    relaying = asyncio.ensure_future(wire.connection.relay(feed, idle_s=5.0))
    await asyncio.sleep(0)
    wire.connection.data_received(framed(EVENT))
    assert sent.written == [framed(EVENT)]
    wire.connection.hold()
    wire.connection.data_received(framed(EVENT))
    assert not await relaying
    assert not wire.replica.reading
    wire.connection.data_received(framed(EVENT))
    assert sent.written == [framed(EVENT)]
    relaying = asyncio.ensure_future(wire.connection.relay(feed, idle_s=5.0))
    await asyncio.sleep(0)
    assert wire.replica.reading
    wire.connection.data_received(END)
    assert await relaying
    assert b"".join(pieces) == EVENT * 3 + DONE


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("first", [STREAM_HEAD, STREAM_HEAD + framed(EVENT) * 9])
@pytest.mark.parametrize("holds", [(), (True, False, True)])
async def test_a_long_read_is_handed_over_in_turns_and_in_order(
    monkeypatch: pytest.MonkeyPatch, most: int, first: bytes, holds: tuple[bool, ...]
) -> None:
    monkeypatch.setattr(replica_connection, "MOST_FED", most)
    reads = [first, framed(EVENT), framed(EVENT) * 5, framed(EVENT) * 3 + END]
    client = await streamed(reads, holds)
    want = EVENT * (9 + first.count(framed(EVENT))) + DONE
    assert unframed(b"".join(client.transport.written)) == want
    assert (client.scan.done, client.scan.broken) == (True, None)


async def test_a_connection_with_bytes_behind_its_answer_takes_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_connection, "MOST_FED", 50)
    wire = Wire()
    await wire.stream([STREAM_HEAD, framed(EVENT), framed(EVENT) + END + b"x" * 500])
    assert not wire.connection.reused


async def test_a_large_answer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_connection, "APART_BYTES", 100)
    wire, body = Wire(), bytes(range(256)) * 20
    answered = wire.connection.send(b"POST / HTTP/1.1\r\n\r\n", 5.0)
    data = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for at in range(0, len(data), 333):
        wire.connection.data_received(data[at : at + 333])
    assert await answered
    assert wire.connection.body == wire.connection.body == body
    wire.connection.release()
    assert wire.connection.reused
