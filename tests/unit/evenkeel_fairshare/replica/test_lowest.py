"""Finding the lowest of a set whose ranks change behind its back."""

from __future__ import annotations

from evenkeel_fairshare.replica.lowest import Lowest, Ranked
from hypothesis import given
from hypothesis import strategies as st


def waiting(rank: float, tie: object = 0) -> Ranked:
    return Ranked(rank=rank, tie=tie, waiting=1)


def holding(*items: Ranked) -> Lowest[Ranked]:
    lowest: Lowest[Ranked] = Lowest()
    for item in items:
        lowest.add(item)
    return lowest


def test_the_lowest_rank_is_found_and_stays():
    low, high = waiting(1), waiting(2)
    lowest = holding(high, low)
    assert lowest.find() is low
    assert lowest.find() is low


def test_ties_decide_among_equal_ranks():
    second, first = waiting(1, "b"), waiting(1, "a")
    assert holding(second, first).find() is first


def test_equal_ranks_and_ties_go_in_order_of_coming():
    first, second = waiting(1), waiting(1)
    assert holding(first, second).find() is first


def test_a_rise_needs_no_word():
    one, other = waiting(1), waiting(2)
    lowest = holding(one, other)
    one.rank = 3
    assert lowest.find() is other
    other.rank = 4
    assert lowest.find() is one


def test_telling_what_is_known_changes_nothing():
    one = waiting(1)
    lowest = holding(one, one)
    one.rank = 2
    lowest.add(one)
    assert len(lowest._heap) == 1


def test_a_fall_counts_after_add():
    one, other = waiting(5), waiting(2)
    lowest = holding(one, other)
    one.rank = 1
    lowest.add(one)
    assert lowest.find() is one


def test_who_stops_waiting_drops_out_and_may_come_back():
    one, other = waiting(1), waiting(2)
    lowest = holding(one, other)
    one.waiting = 0
    assert lowest.find() is other
    one.waiting = 1
    lowest.add(one)
    assert lowest.find() is one


def test_without_waiting_items_nothing_is_found():
    one = waiting(1)
    lowest = holding(one)
    one.waiting = 0
    assert lowest.find() is None
    assert lowest.find() is None
    assert holding().find() is None


def test_memory_stays_in_proportion_to_those_that_wait():
    lowest: Lowest[Ranked] = Lowest()
    stays = waiting(1)
    lowest.add(stays)
    for number in range(10_000):
        gone = waiting(1_000_000 + number)  # never comes to the top
        lowest.add(gone)
        gone.waiting = 0
        assert len(lowest._heap) <= 64
    assert lowest.find() is stays


def test_a_clean_up_comes_again_when_those_that_wait_may_have_doubled():
    lowest = holding(*(waiting(number) for number in range(100)))
    for number in range(1000):
        gone = waiting(1_000_000 + number)
        lowest.add(gone)
        gone.waiting = 0
        assert len(lowest._heap) <= lowest._compact_above <= 200
    assert lowest._compact_above == 200


def test_who_dropped_out_in_a_clean_up_may_come_back():
    first, gone = waiting(1), waiting(10)
    lowest = holding(first, gone)
    gone.waiting = 0
    for number in range(200):
        lowest.add(waiting(100 + number))
    gone.waiting = 1
    lowest.add(gone)
    first.waiting = 0
    assert lowest.find() is gone


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rise", "fall", "stop", "wait", "find"]),
            st.integers(0, 7),
            st.integers(0, 20),
        ),
        max_size=200,
    )
)
def test_it_finds_what_a_search_of_all_finds(changes):
    items = [Ranked(rank=0, tie=number) for number in range(8)]
    lowest: Lowest[Ranked] = Lowest()
    for change, number, amount in changes:
        item = items[number]
        if change == "rise":
            item.rank += amount
        elif change == "fall":
            item.rank -= amount
            if item.waiting:
                lowest.add(item)
        elif change == "stop":
            item.waiting = 0
        elif change == "wait":
            item.waiting += 1
            lowest.add(item)
        want = min(
            (one for one in items if one.waiting), key=lambda one: (one.rank, one.tie), default=None
        )
        if change == "find" or amount % 3 == 0:
            assert lowest.find() is want
