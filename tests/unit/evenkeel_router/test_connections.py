"""The pool of connections to replicas."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import time
from dataclasses import replace

import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.transport import connections, peer_watch, replica_connection, silence
from evenkeel_router.transport.connections import Connections
from evenkeel_router.transport.silence import SilenceTimer
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Outgoing,
    RelocatedError,
    SilenceError,
    UnansweredError,
)

from tests.support.nasty import DONE, EVENT, OK, Asked, fine, nasty
from tests.support.routers import PATIENCE_S, until
from tests.support.virtual_time import run_virtually
from tests.support.wires import STREAM_HEAD, Wire

REQUEST = Outgoing("/v1/completions", "x-a: b\r\n", b'{"model":"m"}')


async def ask(pool: Connections, replica: ReplicaConfig) -> bytes | None:
    exchange = await pool.connect(replica)
    try:
        return (await exchange.ask(REQUEST, silence_s=PATIENCE_S)).body
    finally:
        exchange.close()


async def test_a_connection_is_used_again_until_it_was_idle_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        for _ in range(3):
            assert await ask(pool, replica) == OK
        assert server.connections == 1
        assert server.asked[0].headers["authorization"] == "Bearer sk-replica"
        assert server.asked[0].headers["x-a"] == "b"
        first, second = await pool.connect(replica), await pool.connect(replica)
        for exchange in (first, second):
            await exchange.ask(REQUEST, silence_s=PATIENCE_S)
            exchange.close()
        assert server.connections == 2
        monkeypatch.setattr(connections, "IDLE_LIMIT_S", -1.0)
        assert await ask(pool, replica) == OK
        assert server.connections == 3
        pool.close()


async def test_a_connection_to_a_name_ends_when_its_address_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_AGE_S", 0.0)
    async with nasty(fine) as server:
        pool, numbered = Connections(), server.config("r0")
        named = replace(numbered, url=numbered.url.replace("127.0.0.1", "localhost"))
        for replica, want in ((numbered, 1), (named, 3)):
            for _ in range(2):
                assert await ask(pool, replica) == OK
            assert server.connections == want
        pool.close()


async def test_idle_connections_to_replicas_that_are_gone_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE_LIMIT_S", 0.05)
    async with nasty(fine) as server:
        pool = Connections()
        assert await ask(pool, server.config("r0")) == OK
        reader = server.asked[0].reader
        await until(reader.at_eof, "the connection to be closed, though nobody asks again")
        pool.close()


async def test_the_kernel_asks_replicas_that_may_have_vanished() -> None:
    async with nasty(fine) as server:
        pool = Connections()
        connection = await pool.open(server.config("r0"))
        assert connection._transport is not None
        file = connection._transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(file)) as own:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == peer_watch.IDLE_S
        connection.abort()


async def test_a_closed_port_or_an_unknown_name_is_a_connect_error() -> None:
    pool = Connections()
    for url in ("http://127.0.0.1:1", "http://no-such-name.invalid:80"):
        with pytest.raises(ConnectError, match="no connection to r0"):
            await pool.connect(ReplicaConfig(name="r0", url=url))


async def test_a_handshake_that_takes_too_long_is_a_connect_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.2)
    async with nasty(fine) as server:  # which waits for the end of a head, and speaks no TLS
        replica = ReplicaConfig(name="r0", url=f"https://127.0.0.1:{server.port}")
        with pytest.raises(ConnectError, match=r"within 0\.2 s"):
            await Connections().connect(replica)


async def test_a_replica_that_died_while_its_connection_was_idle_broke_the_request() -> None:
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        assert await ask(pool, replica) == OK

        async def dies(asked: Asked) -> None:
            asked.reset()

        server.behave = dies
        with pytest.raises(BrokenError):
            await ask(pool, replica)
        assert len(server.asked) == 3  # the first, the stale try, and the fresh one
        pool.close()


async def test_a_request_that_was_half_answered_is_not_sent_again() -> None:
    async def breaks_off(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
        asked.close()

    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        assert await ask(pool, replica) == OK
        server.behave = breaks_off
        with pytest.raises(BrokenError, match="in the middle of its answer"):
            await ask(pool, replica)
        assert len(server.asked) == 2
        pool.close()


async def test_a_body_without_length_ends_with_the_connection_unless_reset() -> None:
    async def answers_until_the_end(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\n\r\n" + OK)
        await read.wait()
        (asked.reset if resets else asked.close)()

    async with nasty(answers_until_the_end) as server:
        pool, resets, read = Connections(), False, asyncio.Event()
        for resets in (False, True):
            read = asyncio.Event()
            asking = asyncio.create_task(ask(pool, server.config("r0")))
            await until(lambda: any(one.answered for one in pool._open), "the answer to be read")
            read.set()
            if resets:
                with pytest.raises(BrokenError):
                    await asking
            else:
                assert await asking == OK
        assert server.connections == 2, "neither serves another request"
        assert not pool._open


async def test_a_connection_closed_with_its_answer_serves_no_other() -> None:
    async def says_close(asked: Asked) -> None:
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(OK)}\r\n\r\n"
        await asked.send(head.encode() + OK)

    async with nasty(says_close) as server:
        pool = Connections()
        for _ in range(2):
            assert await ask(pool, server.config("r0")) == OK
            assert pool.pooled(server.config("r0")) is None
            assert not pool._open
        assert len(server.asked) == server.connections == 2


async def test_once_the_newest_idle_connection_is_too_old_all_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        held = [await pool.connect(replica) for _ in range(3)]
        for exchange in held:
            await exchange.ask(REQUEST, silence_s=PATIENCE_S)
            exchange.close()
        assert len(pool._open) == 3
        monkeypatch.setattr(connections, "IDLE_LIMIT_S", -1.0)
        assert pool.pooled(replica) is None
        assert not pool._open


@pytest.mark.parametrize(
    ("says", "want"),
    [
        (b"", True),
        (STREAM_HEAD, True),  # SGLang sends it before it has begun
        (b"HTTP/1.1 200", False),
        (b"HTTP/1.1 503 Full\r\ncontent-length: 9\r\n\r\n", False),
        (STREAM_HEAD + b"1", True),  # of the size of a chunk
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", False),
    ],
)
async def test_a_request_is_taken_back_or_unanswered_only_before_its_answer_began(
    says: bytes, want: bool
) -> None:
    said = asyncio.Event()

    async def says_it(asked: Asked) -> None:
        await asked.send(says)
        said.set()
        await asked.hang()

    async with nasty(says_it) as server:
        pool = Connections()
        exchange = await pool.connect(server.config("r0"))
        assert not exchange.break_off()  # nothing was asked yet
        asking = asyncio.create_task(exchange.ask(REQUEST, silence_s=PATIENCE_S))
        await said.wait()
        (connection,) = pool._open
        await until(lambda: connection.answered is bool(says), "the answer to be read")
        assert exchange.break_off() is want
        if not want:
            (replica,) = server.serving.values()
            replica.close()
        with pytest.raises(RelocatedError if want else BrokenError) as caught:
            await asking
        assert not isinstance(caught.value, UnansweredError)
        exchange.close()


async def test_a_connection_that_ends_before_an_answer_says_that_there_was_none() -> None:
    async def leaves(asked: Asked) -> None:
        asked.close()

    async with nasty(leaves) as server:
        with pytest.raises(UnansweredError):
            await ask(Connections(), server.config("r0"))


async def test_what_a_replica_says_unasked_costs_it_the_connection() -> None:
    async def chats(asked: Asked) -> None:
        await asked.answer()
        chatting.append(asked)

    chatting: list[Asked] = []
    async with nasty(chats) as server:
        pool, replica = Connections(), server.config("r0")
        assert await ask(pool, replica) == OK
        await chatting[0].send(b"HTTP/1.1 200 OK\r\n\r\n")
        await until(chatting[0].reader.at_eof, "the connection to be closed")
        assert await ask(pool, replica) == OK
        assert server.connections == 2
        pool.close()


async def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_connection, "MAX_REPLY_BYTES", 10_000)

    async def floods(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            await asked.send(b"x" * 4096)

    async with nasty(floods) as server:
        with pytest.raises(BrokenError, match="too large"):
            await ask(Connections(), server.config("r0"))


async def test_a_stream_is_read_only_as_fast_as_it_is_taken() -> None:
    async with nasty(fine) as server:
        pool = Connections()
        exchange = await pool.connect(server.config("r0"))
        request = Outgoing("/v1/completions", "", b'{"stream":true}')
        reply = await exchange.ask(request, silence_s=PATIENCE_S)
        assert reply.body is None
        taken: list[bytes] = []

        def one_at_a_time(data: bytes, last: bool) -> None:
            taken.append(data)
            reply.hold()

        while not await reply.relay(one_at_a_time, idle_s=PATIENCE_S):
            pass
        assert b"".join(taken).endswith(b"data: [DONE]\n\n")
        exchange.close()
        assert server.connections == 1
        assert await ask(pool, server.config("r0")) == OK  # and then it is as good as before
        assert server.connections == 1
        pool.close()


async def test_a_stream_that_comes_slowly_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "CHECK_INTERVAL_S", 0.02)

    async def dawdles(asked: Asked) -> None:
        await asked.begin_stream()
        for _ in range(8):
            await asked.chunk(EVENT)
            await asyncio.sleep(0.1)
        await asked.hang()

    async with nasty(dawdles) as server:
        pool = Connections()
        exchange = await pool.connect(server.config("r0"))
        reply = await exchange.ask(REQUEST, silence_s=PATIENCE_S)
        taken: list[bytes] = []
        with pytest.raises(SilenceError):
            await reply.relay(lambda data, last: taken.append(data), idle_s=0.5)
        assert b"".join(taken) == EVENT * 8
        exchange.close()


class Noted:
    """A connection that notes what the timer asks of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def note_activity(self, now_s: float) -> None:
        self.asked.append("activity")

    def check_silence(self, now_s: float) -> float:
        self.asked.append("silence")
        return now_s + PATIENCE_S

    def excuse(self, late_s: float, now_s: float) -> None:
        self.asked.append("excuse")


async def test_a_check_that_is_late_judges_no_replica() -> None:
    now_s = asyncio.get_running_loop().time()
    timer, connection = SilenceTimer({"http://r0": now_s - 100.0, "http://r1": now_s}), Noted()
    timer.watch(connection)
    timer._check()
    assert connection.asked == ["activity", "silence"]
    timer._due_s -= 50.0
    timer._check()
    assert connection.asked[2:] == ["activity", "excuse"]
    assert timer.active_s["http://r0"] >= now_s - 51.0, "the time of the pause does not count"
    assert now_s <= timer.active_s["http://r1"] <= asyncio.get_running_loop().time()
    timer._check()
    assert connection.asked[4:] == ["activity", "silence"]


class Limited(Noted):
    """A connection whose limit ends at some time; it notes when it was judged beyond that."""

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self.until_s = until_s
        self.ended_s = 0.0

    def check_silence(self, now_s: float) -> float:
        self.asked.append("silence")
        self.ended_s = self.ended_s or (now_s if now_s >= self.until_s else 0.0)
        return self.until_s


@pytest.mark.parametrize("limit_s", [1.0, 1.01, 1.1, 1.24, 1.26])
def test_a_limit_is_exceeded_by_no_more_than_the_least_interval(
    limit_s: float,
) -> None:
    async def scene() -> None:
        now_s = asyncio.get_running_loop().time()
        timer, connection = SilenceTimer(), Limited(now_s + limit_s)
        timer.watch(connection)
        await asyncio.sleep(limit_s + 1.0)
        late_s = connection.ended_s - connection.until_s
        assert 0.0 <= late_s <= silence.LEAST_INTERVAL_S
        timer.connections.clear()

    run_virtually(scene())


def test_limits_that_end_one_after_the_other_are_looked_at_together() -> None:
    """A hung engine with many requests: each check looks at all of them."""

    async def scene() -> None:
        now_s = asyncio.get_running_loop().time()
        connections = [Limited(now_s + 1.0 + n / 1000) for n in range(200)]
        timer = SilenceTimer()
        for connection in connections:
            timer.watch(connection)
        await asyncio.sleep(1.3)
        assert all(one.ended_s - one.until_s <= silence.LEAST_INTERVAL_S for one in connections)
        assert len(connections[0].asked) <= 2 * 1.3 / silence.LEAST_INTERVAL_S
        timer.connections.clear()

    run_virtually(scene())


async def test_many_short_pauses_of_the_router_do_not_add_up_to_a_longer_limit() -> None:
    connection = Wire().connection
    answered = connection.send(b"", 120.0)
    now_s = asyncio.get_running_loop().time()
    for n in range(100):
        connection.excuse(0.5, now_s + n)
    assert connection.check_silence(now_s + 121.0) <= now_s + 121.0
    with pytest.raises(SilenceError):
        await answered


async def test_after_a_long_pause_of_the_router_a_replica_has_as_long_again() -> None:
    connection = Wire().connection
    answered = connection.send(b"", 120.0)
    now_s = asyncio.get_running_loop().time()
    connection.excuse(600.0, now_s + 601.0)
    assert connection.check_silence(now_s + 1200.0) == now_s + 1201.0
    assert not answered.done()
    connection.check_silence(now_s + 1201.0)
    with pytest.raises(SilenceError):
        await answered


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("limit_s", [1.0, PATIENCE_S])
async def test_the_time_in_which_the_router_stood_still_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, begun: bool
) -> None:
    """Its timers come before what it has not read. `limit_s`: of the answer; or the replica is overdue after a second."""
    monkeypatch.setattr(silence, "CHECK_INTERVAL_S", 0.02)

    async def stands_still(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        for _ in range(2):
            await asyncio.sleep(0.1)  # for a check
            time.sleep(1.5)  # noqa: ASYNC251 - it stands for a loop without a core
            await asked.chunk(EVENT)
        await asked.chunk(DONE)
        await asked.send(b"0\r\n\r\n")

    async with nasty(stands_still) as server:
        pool = Connections()
        exchange = await pool.connect(server.config("r0"))
        reply = await exchange.ask(
            REQUEST, silence_s=limit_s, is_overdue=lambda silent_s: silent_s > 1.0
        )
        if begun:
            reply.begun()
        taken: list[bytes] = []
        assert await reply.relay(lambda data, last: taken.append(data), idle_s=limit_s)
        assert b"".join(taken) == EVENT * 3 + DONE
        exchange.close()
        pool.close()


async def test_connections_are_bounded_and_the_longest_idle_one_makes_room() -> None:
    async with nasty(fine) as one, nasty(fine) as other:
        pool, first, second = Connections(lambda: 2), one.config("r0"), other.config("r1")
        held = [await pool.connect(first) for _ in range(2)]
        with pytest.raises(ConnectionLimitError, match="2 connections to replicas are open"):
            await pool.connect(second)
        for exchange in held:
            await exchange.ask(REQUEST, silence_s=PATIENCE_S)
            exchange.close()
        assert await ask(pool, second) == OK  # in the place of the one that was idle for longest
        assert await ask(pool, first) == OK  # the other one is still there
        assert (one.connections, other.connections) == (2, 1)
        pool.close()


async def test_of_all_replicas_connections_the_one_idle_for_longest_makes_room() -> None:
    async with nasty(fine) as one, nasty(fine) as other, nasty(fine) as third:
        pool, first, second = Connections(lambda: 2), one.config("r0"), other.config("r1")
        for replica in (first, second, third.config("r2"), second):
            assert await ask(pool, replica) == OK
        assert (one.connections, other.connections, third.connections) == (1, 1, 1)
        assert await ask(pool, first) == OK
        assert one.connections == 2
        pool.close()


async def test_each_new_connection_takes_the_room_of_another_idle_one() -> None:
    async with nasty(fine) as one, nasty(fine) as other, nasty(fine) as third:
        pool, replica = Connections(lambda: 2), third.config("r2")
        for idle in (one.config("r0"), other.config("r1")):
            assert await ask(pool, idle) == OK
        assert await asyncio.gather(ask(pool, replica), ask(pool, replica)) == [OK, OK]
        assert len(pool._open) == third.connections == 2
        pool.close()


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://engine", ("engine", 80, None)),
        ("https://engine", ("engine", 443, True)),
        ("https://[::1]:8443", ("::1", 8443, True)),
    ],
)
async def test_an_address_without_a_port_has_that_of_its_scheme(
    monkeypatch: pytest.MonkeyPatch, url: str, want: tuple[str, int, bool | None]
) -> None:
    asked = []

    async def refuses(make: object, host: str, port: int, *, ssl: bool | None) -> None:
        asked.append((host, port, ssl))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuses)
    with pytest.raises(ConnectError):
        await Connections().connect(ReplicaConfig(name="r0", url=url))
    assert asked == [want]


async def test_the_connection_that_was_used_last_is_used_next() -> None:
    """So that the others grow old, and a quiet time closes them."""
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        held = [await pool.connect(replica) for _ in range(2)]
        for exchange in held:
            await exchange.ask(REQUEST, silence_s=PATIENCE_S)
            exchange.close()
        newest = max(pool._open, key=lambda one: one.idle_since_s)
        assert await ask(pool, replica) == OK
        assert max(pool._open, key=lambda one: one.idle_since_s) is newest
        pool.close()


async def test_a_replica_whose_idle_connections_are_gone_leaves_nothing() -> None:
    async with nasty(fine) as server:
        pool = Connections()
        assert await ask(pool, server.config("r0")) == OK
        for writer in server.serving.values():
            writer.close()
        await until(lambda: not pool._idle, "the connection to be lost")
        assert not pool._open


async def test_a_connection_that_failed_or_broke_leaves_its_place() -> None:
    async def dies(asked: Asked) -> None:
        asked.reset()

    async with nasty(dies) as server:
        pool, replica = Connections(lambda: 1), server.config("r0")
        for _ in range(2):
            with pytest.raises(ConnectError):
                await pool.connect(ReplicaConfig(name="r1", url="http://127.0.0.1:1"))
            with pytest.raises(BrokenError):
                await ask(pool, replica)
        server.behave = fine
        assert await ask(pool, replica) == OK
        pool.close()


async def test_a_process_without_files_left_does_not_blame_the_replica() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with nasty(fine) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, hard))
        try:
            with pytest.raises(ConnectionLimitError, match="Too many open files"):
                await Connections().connect(server.config("r0"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_connection_that_closed_is_out_of_memory_at_once() -> None:
    async with nasty(fine) as server:
        gc.collect()
        gc.disable()  # what is in a cycle would stay until the collector comes
        try:
            others, pool = connections_in_memory(), Connections()
            assert await ask(pool, server.config("r0")) == OK
            assert connections_in_memory() == others + 1
            pool.close()
            await until(lambda: connections_in_memory() == others, "the connection is gone")
        finally:
            gc.enable()


def connections_in_memory() -> int:
    kind = replica_connection.ReplicaConnection
    return sum(isinstance(one, kind) for one in gc.get_objects())
