"""When a router runs a census: once no router that may have a part can be missing from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import cycle

import pytest
from evenkeel_contract.limitswire import LimitsAnswer, LimitsAsk
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.limit_exchange import GONE_AFTER_S, LimitExchange, Unaware
from evenkeel_router.ledger.limit_parts import LimitParts

from tests.support.limit_parts import whole_limits
from tests.support.virtual_time import run_virtually

PEER = Peer("peer", "http://peer")
Says = Callable[[LimitsAsk], LimitsAnswer]


def exchange_of(parts: LimitParts, says: Says, *, listed: bool = True) -> LimitExchange:
    """Of a router with one peer."""

    async def send(peer: Peer, ask: LimitsAsk) -> LimitsAnswer:
        return says(ask)

    return LimitExchange(
        parts,
        send,
        peers=lambda: (PEER,) if listed else (),
        interval_s=lambda: 1.0,
        now=asyncio.get_running_loop().time,
    )


def raises(error: Exception) -> Says:
    def says(ask: LimitsAsk) -> LimitsAnswer:
        raise error

    return says


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        (ConnectionRefusedError(), GONE_AFTER_S),  # its process has ended
        (TimeoutError(), None),  # it may run, and have parts
        (ValueError("it answered 500"), None),
        (Unaware(), 0.0),  # it has no parts
    ],
)
def test_a_router_that_may_have_a_part_holds_a_census_up(
    error: Exception, after_s: float | None
) -> None:
    async def scene() -> None:
        parts = LimitParts("1")
        exchange = exchange_of(parts, raises(error))
        for second in range(10):
            await exchange.round()
            assert parts.has_entered is (after_s is not None and second >= after_s)
            assert exchange.ready.is_set() is parts.has_entered
            await asyncio.sleep(1.0)

    run_virtually(scene())


def test_a_router_that_refused_for_a_moment_was_not_gone() -> None:
    async def scene() -> None:
        parts, errors = LimitParts("1"), cycle([ConnectionRefusedError(), TimeoutError()])
        exchange = exchange_of(parts, lambda ask: raises(next(errors))(ask))
        for _ in range(10):
            await exchange.round()
            await asyncio.sleep(1.0)
        assert not parts.has_entered

    run_virtually(scene())


def test_an_address_of_the_router_itself_is_no_peer() -> None:
    """It gives nothing to itself, and counts itself once."""

    async def scene() -> None:
        parts, now = whole_limits("1", 1000.0), asyncio.get_running_loop().time
        limit = parts.limit("requests ns/t", size=10.0, fill_s=60.0, now_s=now())
        limit.asked(5.0, now())
        exchange = exchange_of(parts, lambda ask: parts.answer(ask, now()))
        await exchange.round()
        assert not await exchange.top_up(limit, 1.0)
        assert limit.part == 1.0

    run_virtually(scene())


@pytest.mark.parametrize(("own", "other", "counts"), [("1", "2", True), ("2", "1", False)])
def test_the_oldest_router_counts(own: str, other: str, counts: bool) -> None:
    async def scene() -> None:
        parts, theirs = LimitParts(own), LimitParts(other)
        now = asyncio.get_running_loop().time
        await exchange_of(parts, lambda ask: theirs.answer(ask, now())).round()
        assert parts.has_entered is theirs.has_entered is counts

    run_virtually(scene())


def test_a_router_that_asks_without_being_listed_holds_a_census_up() -> None:
    async def scene() -> None:
        parts, now = LimitParts("1"), asyncio.get_running_loop().time
        exchange = exchange_of(parts, raises(AssertionError()), listed=False)
        parts.answer(LimitParts("2").ask(now()), now())
        await exchange.round()
        assert not parts.has_entered
        await asyncio.sleep(6.0)  # it does not ask any more
        await exchange.round()
        assert parts.has_entered

    run_virtually(scene())
