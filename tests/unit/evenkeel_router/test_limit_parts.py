"""Parts of limits: no census and no late message issues any of a limit twice."""

from __future__ import annotations

from math import e

import msgspec
import pytest
from evenkeel_contract.limitswire import LimitGift, LimitsAnswer
from evenkeel_router.ledger.limit_parts import DEMAND_S, HEARD_S, LimitPart, LimitParts

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


def two(*, used: float = 0.0) -> tuple[LimitParts, LimitParts]:
    """One router has all of the limit, and has used some of it; the other one has nothing."""
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    limit(one).take(used, 0.0)
    limit(other)
    return one, other


def free(parts: LimitParts, now_s: float = 0.0) -> float:
    return limit(parts, now_s).free(now_s)


def test_parts_follow_demand_and_nothing_is_lost_on_the_way() -> None:
    one, other = two()
    limit(one).asked(1.0, 0.0)
    limit(other).asked(3.0, 0.0)
    exchange(other, one)
    assert (limit(one).part, limit(other).part) == (pytest.approx(0.25), pytest.approx(0.75))
    assert (free(one), free(other)) == (pytest.approx(2.5), pytest.approx(7.5))
    exchange(other, one)
    assert limit(other).part == pytest.approx(0.75), "it has its share"
    limit(one).asked(8.0, 0.0)
    exchange(one, other)
    assert (limit(one).part, limit(other).part) == (pytest.approx(0.75), pytest.approx(0.25))
    assert (free(one), free(other)) == (pytest.approx(7.5), pytest.approx(2.5))


def test_the_demand_of_a_third_router_counts_for_a_while() -> None:
    one, other, third = whole_limits("1"), LimitParts("2"), LimitParts("3")
    now_s = 1000.0
    assert census(one, other, third, now_s=now_s)
    for router in (one, other, third):
        limit(router, now_s).asked(5.0, now_s)
    exchange(third, one, now_s=now_s)
    exchange(other, one, now_s=now_s)
    assert limit(third, now_s).part == pytest.approx(1 / 2)
    assert limit(other, now_s).part == pytest.approx(1 / 2 * 1 / 3)
    now_s += HEARD_S + 0.1
    for router in (one, other):
        part = limit(router, now_s)
        part.asked(5.0 - SIZE * part.demand(now_s), now_s)
    exchange(other, one, now_s=now_s)
    assert limit(other, now_s).part == pytest.approx(limit(one, now_s).part)


def test_the_demand_for_another_limit_does_not_count() -> None:
    one, other, third = whole_limits("1"), LimitParts("2"), LimitParts("3")
    assert census(one, other, third)
    third.limit("tokens ns/t", size=9.0, fill_s=60.0, now_s=0.0).asked(9.0, 0.0)
    exchange(third, one)
    for router in (one, other):
        limit(router).asked(5.0, 0.0)
    exchange(other, one)
    assert limit(other).part == pytest.approx(1 / 2)


def test_a_share_too_small_for_one_request_is_not_given() -> None:
    for demand, part in ((0.9, 0.0), (1.1, 0.11)):
        one, other = two()
        limit(one).asked(10.0 - demand, 0.0)
        limit(other).asked(demand, 0.0)
        exchange(other, one)
        assert limit(other).part == pytest.approx(part)


def test_a_part_below_zero_is_filled_up_first() -> None:
    giver, owes = two()
    want = msgspec.structs.replace(limit(owes).want(0.0, 0.0), part=-0.25)
    gift = limit(giver).give(want, 0.0, 0.0)
    assert gift is not None
    assert gift.part == pytest.approx(0.25)


def test_questions_and_answers_name_their_router() -> None:
    one, other = two()
    assert one.ask(0.0).router == one.answer(other.ask(0.0), 0.0).router == "1"
    begun = one.begin_census()
    assert (begun.router, begun.census, begun.wants) == ("1", True, ())
    assert one.ask(0.0).census is False


def test_demand_fades_and_is_forgotten() -> None:
    part = limit(whole_limits("1"))
    part.asked(5.0, 0.0)
    assert part.demand(0.0) == 0.5
    assert part.demand(DEMAND_S) == pytest.approx(0.5 / e)
    part.asked(5.0, DEMAND_S)
    assert part.demand(DEMAND_S) == pytest.approx(0.5 / e + 0.5)
    assert part.demand(99.0) == 0.0


def test_a_part_carries_its_share_of_what_was_used() -> None:
    one, other = two(used=8.0)
    limit(one).asked(1.0, 0.0)
    limit(other).asked(3.0, 0.0)
    exchange(other, one)
    assert (free(one), free(other)) == (pytest.approx(0.5), pytest.approx(1.5))


def test_a_debt_goes_along_with_a_part() -> None:
    one, other = two(used=14.0)
    limit(one).asked(1.0, 0.0)
    limit(other).asked(3.0, 0.0)
    exchange(other, one)
    assert (free(one), free(other)) == (pytest.approx(-1.0), pytest.approx(-3.0))


@pytest.mark.parametrize(("used", "needed", "got"), [(6.0, 2.0, 2.0), (6.0, 9.0, 4.0)])
def test_a_request_that_waits_gets_what_it_lacks_as_far_as_there_is_any(
    used: float, needed: float, got: float
) -> None:
    one, other = two(used=used)
    limit(one).asked(99.0, 0.0)
    ask = other.ask(0.0, {NAME: needed / SIZE})
    (want,) = ask.wants
    assert (want.need, want.size, want.fill_s) == (needed / SIZE, SIZE, 60.0)
    other.receive(one.answer(ask, 0.0), 0.0)
    assert free(other) == pytest.approx(got)
    assert free(one) == pytest.approx(10.0 - used - got)
    assert together(one, other) == pytest.approx(1.0)
    (want,) = other.ask(0.0, {NAME: needed / SIZE}).wants
    assert want.need == pytest.approx((needed - got) / SIZE)


def test_a_router_gives_of_a_limit_that_it_has_not_used_yet() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    limit(other).asked(5.0, 0.0)
    exchange(other, one)
    assert limit(other).part == 1.0
    assert free(other) == SIZE
    assert dict(one.parts()) == {NAME: 0.0}


def test_a_question_does_not_resize_the_limit_of_the_giver() -> None:
    one, other = two()
    own = limit(one)
    other.limit(NAME, size=2 * SIZE, fill_s=30.0, now_s=0.0).asked(5.0, 0.0)
    exchange(other, one)
    assert (own.size, own.fill_s) == (SIZE, 60.0)


def test_the_last_of_a_limit_goes_only_to_who_has_demand() -> None:
    one, other = two()
    assert one.answer(other.ask(0.0, {NAME: 1.0}), 0.0).gifts == ()
    assert (limit(one).part, free(one)) == (1.0, SIZE)
    limit(other).asked(1.0, 0.0)
    other.receive(one.answer(other.ask(0.0, {NAME: 1.0}), 0.0), 0.0)
    assert (limit(other).part, free(other)) == (1.0, SIZE)


def test_a_router_without_any_part_does_not_learn_the_names_of_limits() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    limit(one).asked(5.0, 0.0)
    assert other.answer(one.ask(0.0), 0.0).gifts == ()
    assert dict(other.parts()) == {}


def test_nothing_is_given_to_a_router_of_another_epoch() -> None:
    one, other = two()
    limit(other).asked(5.0, 0.0)
    ask = other.ask(0.0)
    assert census(one)
    assert one.answer(ask, 0.0).gifts == ()
    assert limit(one).part == 1.0


def test_a_part_too_small_for_a_request_goes_to_who_has_more_demand() -> None:
    for own, theirs, goes in ((3.0, 1.0, False), (1.0, 3.0, True), (1.0, 1.0, False)):
        one, other = whole_limits("1"), LimitParts("2")
        assert census(one, other)
        parts = [router.limit(NAME, size=1.0, fill_s=60.0, now_s=0.0) for router in (one, other)]
        for part, demand in zip(parts, (own, theirs), strict=True):
            part.asked(demand, 0.0)
        exchange(other, one)
        assert [part.part for part in parts] == ([0.0, 1.0] if goes else [1.0, 0.0])


def test_of_requests_in_flight_whole_ones_are_given_and_none_in_use() -> None:
    one, other = whole_limits("1"), LimitParts("2")
    assert census(one, other)
    own, theirs = (router.limit(NAME, size=10.0, fill_s=0.0, now_s=0.0) for router in (one, other))
    own.take(7.0, 0.0)
    own.asked(1.0, 0.0)
    theirs.asked(9.0, 0.0)
    exchange(other, one)
    assert (own.free(0.0), theirs.free(0.0)) == (0.0, pytest.approx(3.0))
    own.take(-5.0, 0.0)
    assert own.free(99.0) == pytest.approx(5.0), "it does not refill"
    own.asked(2.0, 0.0)
    exchange(other, one)
    assert theirs.part * 10.0 == pytest.approx(round(theirs.part * 10.0))
    assert own.part + theirs.part == pytest.approx(1.0)


def test_a_census_finds_requests_in_flight_free_again() -> None:
    author, gone = LimitParts("2"), whole_limits("1")
    assert census(author, gone)
    slots = author.limit(NAME, size=10.0, fill_s=0.0, now_s=0.0)
    assert census(author)
    assert slots.free(0.0) == 10.0


def test_a_wait_lasts_until_the_whole_limit_has_one_request_free() -> None:
    part = limit(whole_limits("1"))
    assert part.wait_s(0.0) == 0.0
    part.take(9.5, 0.0)
    assert part.wait_s(0.0) == pytest.approx(3.0)
    assert part.wait_s(1.0) == pytest.approx(2.0)
    assert part.wait_s(3.0) == pytest.approx(0.0)


def test_a_limit_that_is_asked_for_with_another_size_is_resized() -> None:
    parts = whole_limits("1")
    limit(parts).take(4.0, 0.0)
    assert limit(parts).free(0.0) == 6.0
    larger = parts.limit(NAME, size=2 * SIZE, fill_s=30.0, now_s=0.0)
    assert (larger.free(0.0), larger.fill_s) == (16.0, 30.0)


def test_what_nobody_can_have_used_begins_full() -> None:
    """Also where requests were refused before the first census."""
    for is_known in (False, True):
        parts = LimitParts("1")
        if is_known:
            assert limit(parts, 100.0).free(100.0) == 0.0
        assert census(parts, now_s=100.0)
        assert limit(parts, 100.0).free(100.0) == SIZE


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("at_s", "want"), [(100.0, 0.0), (130.0, SIZE / 2), (999.0, SIZE)])
def test_what_a_census_finds_begins_empty(is_known: bool, at_s: float, want: float) -> None:
    author, gone = LimitParts("2"), whole_limits("1")
    assert census(author, gone)
    if is_known:
        limit(author)
    assert census(author, now_s=100.0), "the other router is gone, with all of it"
    assert free(author, at_s) == pytest.approx(want)


def test_a_part_that_left_with_its_router_is_found_by_one_that_never_used_it() -> None:
    one, other = two()
    limit(other).asked(5.0, 0.0)
    exchange(other, one)
    author = LimitParts("3")
    exchange(author, one)  # it enters the epoch
    assert census(author, one, other)
    assert together(author) == 0.0
    late = LimitParts("4")
    exchange(late, one)
    assert census(late, one, author, now_s=100.0), "the one with all of it is gone"
    assert limit(late, 130.0).part == 1.0
    assert free(late, 130.0) == pytest.approx(SIZE / 2)
    assert together(one, author) == 0.0


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
