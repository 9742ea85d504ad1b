"""What waits at a replica that drains, and what of it began all the same, from what a report can say."""

from __future__ import annotations

import pytest
from evenkeel_router.core.leaving import Held, Taken
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("held", "open_here", "unanswered", "want"),
    [
        (Held(0, 0, 0), 5, 5, 0),  # the report is from before they came
        (Held(9, 4, 0), 4, 2, 0),  # everything runs
        (Held(4, 4, 6), 10, 6, 6),  # all that run have answered
        (Held(4, 4, 6), 10, 7, 6),  # one of those without an answer computes its input
        (Held(4, 4, 6), 10, 10, 6),  # nobody is answered before the end
        (Held(4, 4, 6), 5, 5, 3),  # half of it is another router's
        (Held(4, 4, 6), 12, 8, 8),  # two came after the report
    ],
)
def test_what_waits_is_what_neither_answered_nor_runs(
    held: Held, open_here: int, unanswered: int, want: int
) -> None:
    assert held.waiting_here(open_here, unanswered) == want


def test_a_replica_has_noticed_once_so_many_fewer_wait() -> None:
    taken = Taken(Held(4, 4, 6), 1.0, (7, 8, 9))
    assert not taken.is_noticed(Held(4, 4, 6))
    assert not taken.is_noticed(Held(5, 5, 4))
    assert taken.is_noticed(Held(4, 4, 3))
    assert Taken(Held(4, 4, 1), 1.0, (7, 8, 9)).is_noticed(Held(4, 4, 0))


def test_where_others_have_some_too_fewer_that_wait_may_be_fewer_of_theirs() -> None:
    """Two routers took three each of six: that three are gone says nothing of whose they were."""
    taken = Taken(Held(4, 4, 6), 0.5, (7, 8, 9))
    assert not taken.is_noticed(Held(4, 4, 3))
    assert taken.is_noticed(Held(4, 4, 0))
    assert Taken(Held(4, 4, 6), 1.0, (7, 8, 9)).is_noticed(Held(4, 4, 3))


def test_half_of_what_began_is_this_routers_where_half_of_what_was_open_is() -> None:
    taken = Taken(Held(4, 4, 6), 0.5, (7, 8, 9))
    assert taken.told(Held(4, 4, 0)).never == {7, 8, 9}
    assert taken.told(Held(6, 4, 0)).never == {8, 9}
    assert taken.told(Held(99, 4, 0)).never == set()


def test_what_may_have_begun_counts_as_begun_and_nothing_is_certain_before_the_replica_noticed() -> (
    None
):
    taken = Taken(Held(4, 4, 6), 0.4, (7, 8, 9))
    assert taken.told(Held(5, 4, 0)).never == {8, 9}
    assert taken.told(Held(6, 4, 6)).never == set()


@given(st.data())
def test_what_began_is_counted_exactly_whatever_the_replica_chose_and_when(
    data: st.DataObject,
) -> None:
    """One router; a replica that admits in any order, before and after the report and before it notices."""
    requests = data.draw(st.permutations(range(data.draw(st.integers(1, 12)))))
    run = data.draw(st.integers(0, len(requests)))
    before = Held(run, run, len(requests) - run)
    unanswered = sorted(data.draw(st.sets(st.sampled_from(requests[:run]))) if run else ())
    unanswered = sorted({*unanswered, *requests[run:]})
    waiting = before.waiting_here(len(requests), len(unanswered))
    numbers = tuple(unanswered[len(unanswered) - waiting :])
    later = requests[run : run + data.draw(st.integers(0, len(requests) - run))]
    began = {*requests[:run], *later}
    # It notices; then those that it kept are the only ones left, and enter.
    kept = set(requests) - set(numbers)
    admitted = len(began | kept)
    told = Taken(before, 1.0, numbers).told(Held(admitted, 0, 0))
    assert len(told.never) == len(set(numbers) - began)
