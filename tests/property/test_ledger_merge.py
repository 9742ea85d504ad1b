"""Merging ledgers is commutative, associative and idempotent, whatever was written where (design R3)."""

from __future__ import annotations

from array import array
from itertools import permutations

import pytest
from evenkeel_fairshare.ledger import Compactor, Delta, Ledger, Progress, ReplicaRow
from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import content, kept, ledger, recounted

CLIENTS = ("ns/t/a", "ns/t/b", "ns/u/a")
REPLICAS = ("r1", "r2", "r3")

numbers = st.integers(0, 9).map(float)
rows = st.builds(
    ReplicaRow,
    st.sampled_from(CLIENTS),
    service=numbers,
    normalised=numbers,
    requests=numbers,
    deficit=st.integers(-500, 100).map(float),
    tenant_deficit=st.integers(-500, 100).map(float),
    seed=st.integers(-9, 9).map(float),
    tenant_seed=st.integers(-9, 9).map(float),
    waiting=st.integers(0, 2),
    running=st.integers(0, 2),
)
replica = st.sampled_from(REPLICAS)
client = st.sampled_from(CLIENTS)

# Reports are not even consistent here: equal sequences with unequal rows, totals that fall.
writes = st.one_of(
    st.tuples(st.just("observe"), replica, st.integers(0, 5), st.lists(rows, max_size=3)),
    st.tuples(st.just("receive"), replica, client, numbers),
    st.tuples(st.just("promise"), replica, client, numbers),
    st.tuples(st.just("drain"), replica),
    st.tuples(st.just("close"), replica),
    st.tuples(st.just("demand"), client, numbers),
    st.tuples(st.just("compact")),
)
histories = st.lists(writes, max_size=12)


def live_through(router: str, history: list[tuple]) -> Ledger:
    """A ledger after some life of its own, alone."""
    book = ledger(router)
    compactor = Compactor(book)
    deeds = {
        "observe": lambda name, at, seen: book.observe(name, since=0, sequence=at, rows=seen),
        "receive": book.received,
        "promise": lambda name, who, seed: book.promised(name, who, seed=-seed, tenant_seed=seed),
        "drain": book.drained,
        "close": book.closed,
        "demand": lambda who, rate: book.requested({who: rate}),
        "compact": lambda: compactor.compact([router], live=(), now_s=0),
    }
    for what, *args in history:
        deeds[what](*args)
        assert kept(book) == recounted(book)
    return book


def joined(*messages: Delta) -> dict[str, object]:
    reader = ledger("reader")
    for message in messages:
        reader.merge(message)
        assert kept(reader) == recounted(reader)
    return content(reader)


@given(st.tuples(histories, histories, histories))
@examples(60)
def test_order_and_repetition_do_not_matter(lives):
    messages = [live_through(f"router-{i}", life).delta() for i, life in enumerate(lives)]
    want = joined(*messages)
    for order in permutations(messages):
        assert joined(*order) == want
        assert joined(*order, *order, order[0]) == want


@given(st.tuples(histories, histories, histories))
@examples(60)
def test_grouping_does_not_matter(lives):
    first, second, third = (live_through(f"router-{i}", life) for i, life in enumerate(lives))
    want = joined(first.delta(), second.delta(), third.delta())
    middle = ledger("middle")
    middle.merge(second.delta())
    middle.merge(third.delta())
    assert _without_rank_of("middle", joined(first.delta(), middle.delta())) == want


def _without_rank_of(router: str, what: dict) -> dict:
    return {**what, "adopted": {k: v for k, v in what["adopted"].items() if k != router}}


def _without_folded(what: dict) -> dict:
    """Without the accounts that closed totals contain: a delta may leave them out."""
    accounts = what["replica accounts"].items()
    return {
        **what,
        "replica accounts": {name: one for name, one in accounts if name not in what["folded"]},
    }


@given(histories, histories)
@examples(60)
def test_a_delta_from_a_digest_brings_all_that_the_whole_would(mine, theirs):
    # A replica reports the same rows as of the same sequence, so theirs are all later than mine.
    theirs = [
        (what, args[0], args[1] + 9, args[2]) if what == "observe" else (what, *args)
        for what, *args in theirs
    ]
    here, there = live_through("here", mine), live_through("there", theirs)
    whole, other = live_through("here", mine), live_through("there", theirs)
    here.merge(there.delta(here.digest()))
    whole.merge(there.delta())
    for one, peer in ((here, there), (whole, other)):
        # Of two lineages of closed totals one wins. What it lacks comes with the loser's next delta.
        peer.merge(one.delta(peer.digest()))
        one.merge(peer.delta(one.digest()))
    assert _without_folded(content(here)) == _without_folded(content(whole))
    nothing = there.delta(here.digest())
    assert (nothing.replica_accounts, nothing.closed_totals, nothing.demand) == ((), None, ())


class Pair:
    """Two routers, of which one reads the other's ledger again and again. Answers are lost, and both start anew."""

    def __init__(self) -> None:
        self.here, self.there = ledger("here-0"), ledger("there-0")
        self.progress = Progress()
        self.starts = 0

    def write(self, side: str, what: str, name: str, number: float) -> None:
        to = self.here if side == "here" else self.there
        if what == "observe":
            at = self.starts * 100 + int(number)
            to.observe(name, since=0, sequence=at, rows=[ReplicaRow("ns/t/a", float(at))])
        elif what == "receive":
            to.received(name, "ns/t/b", number)
        elif what == "promise":
            to.promised(name, "ns/u/a", seed=-number, tenant_seed=number)
        elif what == "drain":
            to.drained(name)
        elif what == "close":
            to.closed(name)
        else:
            to.live = frozenset({f"{name}-{number}"})

    def read(self, lost: int) -> None:
        """One exchange as routers have it, at most two questions; parts from `lost` on do not arrive."""
        for _ in range(2):
            parts = list(self.there.parts(self.here.digest(self.progress), rows=1))
            for part in parts[:lost]:
                self.here.merge(part)
            if len(parts) > lost:
                return
            self.progress.answered(parts[-1])
            if not self.progress.listed:
                return

    def restart(self, side: str) -> None:
        self.starts += 1
        new = ledger(f"{side}-{self.starts}")
        new.merge(getattr(self, side).delta())
        setattr(self, side, new)
        if side == "here":
            self.progress = Progress()


sides = st.sampled_from(("here", "there"))
pair_steps = st.one_of(
    st.tuples(
        st.just("write"),
        sides,
        st.sampled_from(("observe", "receive", "promise", "drain", "close", "live")),
        replica,
        numbers,
    ),
    st.tuples(st.just("read"), st.sampled_from((0, 1, 2, 99, 99, 99))),
    st.tuples(st.just("restart"), sides),
)


@given(st.lists(pair_steps, max_size=40))
@examples(300)
def test_a_whole_answer_leaves_nothing_out_whatever_was_lost_before(steps):
    pair = Pair()
    for what, *args in steps:
        getattr(pair, what)(*args)
    pair.read(lost=99)
    lacking = pair.there.delta(pair.here.digest())
    assert (lacking.replica_accounts, lacking.closed_totals, lacking.demand) == ((), None, ())
    assert pair.here.live_of[pair.there.router] == pair.there.live
    # And while nothing happens, nothing but versions of the routers travels.
    for _ in range(2):
        pair.read(lost=99)
    (answer,) = pair.there.parts(question := pair.here.digest(pair.progress))
    assert not question.replica_accounts
    assert (answer.replica_accounts, answer.live, answer.unknown) == ((), None, ())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(numbers, min_size=4, max_size=4))))
def test_a_table_holds_the_latest_row_and_of_equally_late_ones_the_greatest(puts):
    table = MergeTable(columns=3)
    for name, row in puts:
        table.put(name, row)
    assert {name: list(table[name]) for name in table} == {
        name: max(row for who, row in puts if who == name) for name, _ in puts
    }


@given(st.lists(st.tuples(st.sampled_from("abcdef"), numbers, numbers)), numbers)
def test_rows_since_a_version_are_those_above_it_newest_first(puts, version):
    table = MergeTable(columns=1)
    for name, *row in puts:
        table.put(name, row)
    names = table.since(version).names
    assert set(names) == {name for name in table if table[name][0] > version}
    assert [table[name][0] for name in names] == sorted((table[n][0] for n in names), reverse=True)


def test_dropping_rows_keeps_the_others():
    table = MergeTable(columns=1)
    for i, name in enumerate("abcd"):
        table.put(name, (i, 10.0 * i))
    table.drop(["b", "d", "never there"])
    assert {name: list(table[name]) for name in table} == {"a": [0, 0], "c": [2, 20]}
    assert table.get("b") is None


def test_cells_that_do_not_fit_their_names_are_refused():
    with pytest.raises(ValueError, match="8 bytes of cells for 1 rows of 2 doubles"):
        MergeTable(columns=1).merge(Rows(("a",), b"\0" * 8))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_never_gets_into_a_table(number):
    table = MergeTable(columns=1)
    with pytest.raises(ValueError, match="not finite"):
        table.put("a", (1, number))
    with pytest.raises(ValueError, match="not finite"):
        table.merge(Rows(("a", "b"), array("d", (1, 1, 1, number)).tobytes()))
    assert len(table) == 0
