"""A stream that is sent on no faster than it is read, in virtual time: one token a second."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from evenkeel_contract.qoeconfig import Delivery, QoeConfig
from evenkeel_router.ledger.totals import ReplicaTotals
from evenkeel_router.request.pacing import MAX_HELD_BYTES, PacedRelay, relay_of
from evenkeel_router.request.relay import Answered

from tests.support.fakes import FakeReply
from tests.support.nasty import EVENT
from tests.support.router_rooms import admitted, asked, client, rooms_of, selected
from tests.support.virtual_time import run_virtually
from tests.support.wires import Line, framed, unframed

QOE = QoeConfig(expected_ttft_s=1.0, expected_itl_s=1.0, delivery=Delivery.PACED)
BIG = EVENT.replace(b'"a"', b'"%b"' % (b"a" * 65_000))


class Reader:
    """The client of a paced stream."""

    def __init__(self) -> None:
        self.line = Line()
        state, request = asked()
        request.connection.transport = self.line
        rooms = rooms_of("r0")
        one, attempt = admitted(rooms, client(), stream=True), selected(rooms, client())
        self.reply = FakeReply([])
        relay = relay_of(QOE)(
            Answered(state, one, attempt, request, self.reply, ReplicaTotals(), lambda: None)
        )
        assert isinstance(relay, PacedRelay)
        self.relay = relay

    @property
    def got(self) -> bytes:
        """The events so far, without the head."""
        return unframed(b"".join(self.line.written).partition(b"\r\n\r\n")[2])

    def tokens(self) -> int:
        return self.got.count(b"data: ")


def test_a_token_is_sent_when_the_one_before_it_was_read() -> None:
    async def scene() -> None:
        reader = Reader()
        reader.relay.feed(EVENT * 5, False)
        seen = []
        for _ in range(6):
            seen.append(reader.tokens())
            await asyncio.sleep(1.0)
        assert seen[-1] == 5
        assert all(later - before <= 1 for before, later in pairwise(seen))
        assert reader.relay.all_sent

    run_virtually(scene())


def test_nothing_is_written_behind_the_end_of_a_stream() -> None:
    """An empty chunk there would end the next answer on the client's connection."""

    async def scene() -> None:
        reader = Reader()
        reader.relay.feed(EVENT * 5, False)
        reader.relay.close()
        written = list(reader.line.written)
        await asyncio.sleep(60.0)
        assert reader.line.written == written

    run_virtually(scene())


def test_what_is_held_may_be_sent_at_once_and_only_once() -> None:
    async def scene() -> None:
        reader = Reader()
        reader.relay.feed(EVENT * 5, False)
        reader.relay.send_now()
        assert reader.got == EVENT * 5
        assert reader.relay.all_sent
        await asyncio.sleep(60.0)
        assert reader.got == EVENT * 5

    run_virtually(scene())


def test_a_full_buffer_holds_the_replica_until_enough_of_it_was_sent() -> None:
    async def scene() -> None:
        reader = Reader()
        count = MAX_HELD_BYTES // len(BIG) + 2
        for _ in range(count):
            assert not reader.reply._held
            reader.relay.feed(BIG, False)
        assert reader.reply._held
        await reader.relay.room(idle_s=1.0)
        assert 0 < reader.tokens() < count, "one that was sent made room for one more"
        reader.reply._held = False
        reader.relay.feed(EVENT, False)
        await reader.relay.send_rest()
        assert reader.got == BIG * count + EVENT

    run_virtually(scene())


def test_events_are_framed_one_by_one_as_they_are_due() -> None:
    async def scene() -> None:
        reader = Reader()
        reader.relay.feed(EVENT[:9], False)
        reader.relay.feed(EVENT[9:] + EVENT, False)
        await reader.relay.send_rest()
        assert reader.line.written[-1] == framed(EVENT)
        assert reader.got == EVENT * 2

    run_virtually(scene())
