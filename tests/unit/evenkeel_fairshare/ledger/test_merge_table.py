"""`add` to a row has the same result as `put` of the sum; rows go in any order, and their room is used again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from evenkeel_fairshare.ledger.merge_table import MergeTable
from hypothesis import given
from hypothesis import strategies as st

COLUMNS = 4
CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, COLUMNS), st.integers(0, 1000).map(float)),
    max_size=24,
)


@given(CHANGES, st.integers(0, 24))
def test_add_has_the_same_result_as_put_of_the_sums(
    changes: list[tuple[str, int, float]], since: int
) -> None:
    added, put = MergeTable(columns=COLUMNS), MergeTable(columns=COLUMNS)
    for version, (name, column, amount) in enumerate(changes, start=1):
        added.add(name, version, column, amount)
        row = list(put.get(name) or [0.0] * put.width)
        row[column] += amount
        put.put(name, [float(version), *row[1:]])
    assert added.since(0.0) == put.since(0.0)  # every row
    assert added.since(float(since)) == put.since(float(since))


@pytest.mark.parametrize("amount", [math.nan, math.inf, -math.inf])
def test_amounts_that_are_not_finite_are_refused(amount: float) -> None:
    table = MergeTable(columns=COLUMNS)
    with pytest.raises(ValueError, match="not finite"):
        table.add("a", 1.0, 2, amount)
    assert "a" not in table


def test_a_copy_has_the_same_changes_though_rows_came_out_of_order() -> None:
    table = MergeTable(columns=COLUMNS)
    table.add("late", 2.0, 1, 5.0)
    table.add("early", 1.0, 1, 7.0)
    copy = table.copy()
    assert copy.since(1.0).names == table.since(1.0).names == ("late",)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("forget"), st.sets(st.sampled_from("abcdefgh"))),
        st.tuples(st.just("drop"), st.sets(st.sampled_from("abcdefgh"))),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 60), st.integers(0, 60))
def test_rows_that_go_leave_the_others_and_no_more_room_than_these_use(
    steps: list[tuple[str, Any]], above: int, version: int
) -> None:
    table, want = MergeTable(columns=2), dict[str, list[float]]()
    for number, (what, names) in enumerate(steps, start=1):
        if what == "add":
            table.add(names, float(number), 1, 3.0)
            row = want.pop(names, [0.0, 0.0, 0.0])
            want[names] = [float(number), row[1] + 3.0, 0.0]
        else:
            getattr(table, what)(names)
            for name in names:
                want.pop(name, None)
        assert {name: list(table[name]) for name in table} == want
        assert len(table._cells) <= 3 * max(2 * len(want), 1)
    between = [name for name, row in want.items() if above < row[0] <= version]
    assert table.between(above, version) == between[::-1]
    assert [*table.since(above).names] == [n for n, row in want.items() if row[0] > above][::-1]
    assert table.until(version) == [name for name, row in want.items() if row[0] <= version]


def test_a_row_that_was_forgotten_is_not_taken_again_in_that_version() -> None:
    table = MergeTable(columns=1)
    table.put("a", (3.0, 1.0))
    table.put("b", (5.0, 1.0))
    table.forget(["b", "never there"])
    assert not table.put("b", (5.0, 9.0))
    assert table.put("b", (6.0, 2.0))
    assert {name: list(table[name]) for name in table} == {"a": [3, 1], "b": [6, 2]}
