"""The pool of connections at its bound, and rooms of routers whose replicas are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.transport import connections
from evenkeel_router.transport.connections import Connections
from evenkeel_router.transport.upstream import ConnectionLimitError, Outgoing, SilenceError

from tests.support.nasty import OK, fine, nasty
from tests.support.router_rooms import client, joins, rooms_of, selected
from tests.support.routers import PATIENCE_S, until

REQUEST = Outgoing("/v1/completions", "", b"{}")


async def asked(pool: Connections, replica: ReplicaConfig) -> Any:
    """A connection that has served one request and is free again."""
    exchange: Any = await pool.connect(replica)
    assert (await exchange.ask(REQUEST, silence_s=PATIENCE_S)).body == OK
    exchange.close()
    return exchange._connection


async def test_at_the_bound_the_connection_that_is_idle_longest_is_closed() -> None:
    async with nasty(fine) as one, nasty(fine) as two, nasty(fine) as three:
        pool = Connections(lambda: 2)
        first = await asked(pool, one.config("r0"))
        await asyncio.sleep(0.01)
        second = await asked(pool, two.config("r1"))
        transport = first._transport
        third = await asked(pool, three.config("r2"))
        assert transport.is_closing()
        await until(lambda: pool._open == {second, third}, "the first one's end")
        assert one.config("r0").url not in pool._idle
        held: Any = [await pool.connect(two.config("r1")), await pool.connect(three.config("r2"))]
        assert [one._connection for one in held] == [second, third]
        with pytest.raises(ConnectionLimitError, match="2 connections to replicas are open"):
            await pool.connect(one.config("r0"))
        held[0].close()
        assert (await pool.connect(two.config("r1")))._connection is not third  # type: ignore[attr-defined]
        pool.close()


async def test_connections_that_were_idle_too_long_are_all_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        both: Any = [await pool.connect(replica), await pool.connect(replica)]
        for one in both:
            await one.ask(REQUEST, silence_s=PATIENCE_S)
            one.close()
        transports = [one._connection._transport for one in both]
        assert len(pool._open) == 2
        monkeypatch.setattr(connections, "IDLE_LIMIT_S", -1.0)
        assert pool.pooled(replica) is None
        assert [one.is_closing() for one in transports] == [True, True]
        await until(lambda: not pool._open, "their end")


async def test_the_end_of_the_pool_closes_what_is_idle() -> None:
    async with nasty(fine) as server:
        pool = Connections()
        connection = await asked(pool, server.config("r0"))
        transport = connection._transport
        pool.close()
        assert transport.is_closing()
        await until(lambda: not pool._open, "its end")


async def test_gates_of_replicas_that_are_gone_are_kept_no_longer() -> None:
    rooms = rooms_of("r0", "r1")
    for _ in range(2):
        selected(rooms, client())
    assert rooms.gates._places.keys() == {"r0", "r1"}
    gone = rooms.replicas.fleet.member("r0")
    assert gone is not None
    rooms.replicas.fleet.remove(gone)
    joins(rooms, "r2")
    for _ in range(3):
        selected(rooms, client())
    assert rooms.gates._places.keys() == {"r1", "r2"}


async def test_all_that_is_observed_is_counted_by_a_collection() -> None:
    rooms = rooms_of("r0")
    totals = rooms.totals
    of = totals.of(client())
    of.ended(1.0, 0.5)
    of.streamed(1.0, 3)
    of.experienced(0.5)
    totals.within_share_ttft_s.new.append(0.5)
    totals.predicted("text", 3, 1)
    histograms = [
        *of.distributions.histograms(),
        totals.within_share_ttft_s,
        totals.predictions["text"].error_tokens,
    ]
    assert sum(len(one.new) for one in histograms) == 6
    for _ in totals.collect():
        pass
    assert sum(len(one.new) for one in histograms) == 0
    assert sum(sum(one._counts) for one in histograms) == 6


async def test_a_connection_that_failed_after_its_answer_serves_no_other_request() -> None:
    async with nasty(fine) as server:
        pool, replica = Connections(), server.config("r0")
        exchange: Any = await pool.connect(replica)
        await exchange.ask(REQUEST, silence_s=PATIENCE_S)
        exchange._connection._fail(SilenceError("late"))
        exchange.close()
        assert pool.pooled(replica) is None
        pool.close()
