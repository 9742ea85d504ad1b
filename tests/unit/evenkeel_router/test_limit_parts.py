"""Parts of limits: no census and no late message issues any of a limit twice."""

from __future__ import annotations

import pytest
from evenkeel_contract.limitswire import LimitGift, LimitsAnswer
from evenkeel_router.ledger.limit_parts import LimitPart, LimitParts

from tests.support.limit_parts import census, exchange, whole_limits

NAME = "requests ns/t"
SIZE = 10.0


def limit(parts: LimitParts, now_s: float = 0.0) -> LimitPart:
    return parts.limit(NAME, size=SIZE, fill_s=60.0, now_s=now_s)


def together(*routers: LimitParts) -> float:
    """How much of the limit all of them have."""
    return sum(limit(one).part for one in routers)


def test_a_census_that_one_router_did_not_enter_gives_nothing() -> None:
    author, ahead = LimitParts("1"), whole_limits("2")
    assert not census(author, ahead), "it is in an epoch that is newer by its name"
    assert together(author, ahead) == 1.0
    assert census(author, ahead), "the next one is of a newer epoch than any"
    assert together(author, ahead) == 1.0
    assert author.epoch == ahead.epoch


def test_a_census_that_another_one_overtook_gives_nothing() -> None:
    one, other = LimitParts("1"), LimitParts("2")
    ask = one.begin_census()
    answers = [other.answer(ask, 0.0)]
    assert census(other, one)
    assert not one.end_census(ask, answers, 0.0)
    assert together(one, other) == 1.0


def test_a_census_ends_once() -> None:
    parts = LimitParts("1")
    ask = parts.begin_census()
    assert parts.end_census(ask, [], 0.0)
    assert not parts.end_census(ask, [], 0.0)
    assert together(parts) == 1.0


def test_a_gift_of_an_older_epoch_is_lost() -> None:
    """The census has counted it as missing."""
    giver, taker = whole_limits("1"), LimitParts("2")
    assert census(giver, taker)
    limit(giver)
    limit(taker).asked(5.0, 0.0)
    late = giver.answer(taker.ask(0.0), 0.0)
    assert late.gifts
    assert census(giver, taker)
    taker.receive(late, 0.0)
    assert together(giver, taker) == pytest.approx(1.0)


def test_a_router_with_a_part_enters_a_newer_epoch_by_a_census_only() -> None:
    """It would go on with a part that the census counted as missing."""
    holder, empty = whole_limits("1"), LimitParts("2")
    newer = LimitsAnswer(router="3", epoch=(9, "3"), held=None, gifts=())
    holder.receive(newer, 0.0)
    empty.receive(newer, 0.0)
    assert (holder.epoch, empty.epoch) == ((1, "1"), (9, "3"))
    assert holder.begin_census().epoch == (10, "1")


def test_a_gift_for_a_limit_that_nobody_asked_for_is_not_taken() -> None:
    parts = whole_limits("1")
    gifts = (LimitGift(limit=NAME, part=0.5, level=0.5),)
    parts.receive(LimitsAnswer(router="2", epoch=parts.epoch, held=None, gifts=gifts), 0.0)
    assert together(parts) == 1.0


def test_parts_of_equal_demand_are_equal_and_nothing_is_lost_on_the_way() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    for router in (one, other):
        limit(router).asked(5.0, 0.0)
    exchange(other, one)
    assert limit(other).part == pytest.approx(0.5)
    assert together(one, other) == pytest.approx(1.0)
    assert limit(one).free(0.0) + limit(other).free(0.0) == pytest.approx(SIZE)


def test_a_part_carries_its_share_of_what_was_used() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    limit(one).take(8.0, 0.0)
    for router in (one, other):
        limit(router).asked(5.0, 0.0)
    exchange(other, one)
    assert limit(other).free(0.0) == pytest.approx(1.0)
    assert limit(one).free(0.0) == pytest.approx(1.0)


def test_what_a_census_finds_begins_empty_and_what_nobody_used_begins_full() -> None:
    fresh = whole_limits("1", 100.0)
    assert limit(fresh, 100.0).free(100.0) == SIZE
    author, lost = LimitParts("2"), whole_limits("1")
    assert census(author, lost)
    assert census(author, now_s=100.0), "the other router is gone, with all of it"
    assert limit(author, 100.0).free(100.0) == 0.0
    assert limit(author, 130.0).free(130.0) == pytest.approx(SIZE / 2)
    assert limit(author, 999.0).free(999.0) == SIZE


def test_a_census_takes_back_what_two_routers_have() -> None:
    one, other = whole_limits("1"), whole_limits("2")
    for router in (one, other):
        limit(router)
    assert together(one, other) == 2.0
    assert census(one, other)
    assert together(one, other) == 1.0


def test_a_resized_limit_keeps_the_amount_in_use_whatever_its_part() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    for router in (one, other):
        limit(router).asked(5.0, 0.0)
    exchange(other, one)
    part = limit(other)
    part.take(2.0, 0.0)
    part.resize(2 * SIZE, 60.0, 0.0)
    assert part.free(0.0) == pytest.approx(SIZE - 2.0)


def test_a_router_that_asked_lately_runs_whether_it_is_listed_or_not() -> None:
    parts = whole_limits("1")
    parts.answer(LimitParts("2").ask(10.0), 10.0)
    parts.answer(parts.ask(10.0), 10.0)  # an address of its own
    assert parts.heard(15.0) == {"2"}
    assert parts.heard(15.1) == set()
