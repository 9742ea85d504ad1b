"""`add` to a row has the same result as `put` of the sum."""

from __future__ import annotations

import math

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
