"""Folding departed incarnations into the book, ageing clients out, rival sealers (design R3, R4, R6)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import CompactionRules, Compactor, Ledger, ReplicaRow, Totals
from evenkeel_fairshare.ledger.balances import carried_balance, carried_balance_of_tenant
from evenkeel_fairshare.ledger.closed_totals import MAX_LINEAGE, Rank

from tests.support.ledger_worlds import content, ledger

ALICE, BOB = "ns/t/alice", "ns/t/bob"


def totals(service: float) -> Totals:
    return Totals(service=service, normalised=service, tenant_normalised=service, requests=1)


def report(to: Ledger, name: str, at: int, *rows: ReplicaRow) -> None:
    to.observe(name, since=0, sequence=at, rows=rows)


def row(client: str, service: float, *, deficit: float = 0.0, **state: float) -> ReplicaRow:
    return ReplicaRow(client, totals(service), deficit=deficit, tenant_deficit=deficit, **state)


def tell_each_other(*ledgers: Ledger) -> None:
    """Also of whom they take for members, if nobody told them yet: of one another."""
    everybody = frozenset(one.router for one in ledgers)
    for one in ledgers:
        one.members = one.members or everybody
    for _ in range(2):
        for here in ledgers:
            for there in ledgers:
                here.merge(there.delta(here.digest()))


def one_router(rules: CompactionRules | None = None) -> tuple[Ledger, Compactor]:
    here = ledger("only")
    return here, Compactor(here, rules)


def test_a_lone_router_folds_and_forgets_at_once():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40), row(BOB, 30, deficit=10))
    here.closed("gone")
    assert compactor.compact(["only"], live=(), now_s=0)
    compactor.collect(["only"])
    assert not here.replica_accounts
    assert here.served(ALICE).service == 70
    assert carried_balance(here, ALICE, ()) == 40
    assert carried_balance(here, BOB, ()) == -10
    # Both clients carried the tenant's last deficit; rows of one report agree, here the larger value stands.
    assert carried_balance_of_tenant(here, "ns/t", ()) == -10


def test_nothing_to_write_writes_nothing():
    here, compactor = one_router()
    assert not compactor.compact(["only"], live=(), now_s=0)
    assert here.closed_totals.rank == Rank()


def test_a_page_waits_until_every_member_closed_it():
    here, compactor = ledger("a"), None
    compactor = Compactor(here)
    there = ledger("b")
    report(here, "gone", 1, row(ALICE, 1))
    tell_each_other(here, there)
    here.closed("gone")
    compactor.compact(["a", "b"], live=(), now_s=0)
    assert "gone" not in here.closed_totals.folded
    there.received("gone", ALICE, totals(5))
    there.closed("gone")
    tell_each_other(here, there)
    compactor.compact(["a", "b"], live=(), now_s=1)
    assert "gone" in here.closed_totals.folded
    assert here.served(ALICE).service == 5


def test_a_page_that_one_router_dropped_does_not_come_back_from_another():
    """Each drops when it looks, and they do not look at the same moment."""
    here, there = ledger("a"), ledger("b")
    compactors = {one.router: Compactor(one) for one in (here, there)}
    report(here, "gone", 1, row(ALICE, 5))
    tell_each_other(here, there)
    for one in (here, there):
        one.closed("gone")
    tell_each_other(here, there)
    compactors["a"].compact(["a", "b"], live=(), now_s=0)
    tell_each_other(here, there)
    compactors["a"].collect(["a", "b"])
    tell_each_other(here, there)
    assert (list(here.replica_accounts), list(there.replica_accounts)) == ([], ["gone"])
    # Further books on the one side change nothing about it.
    report(here, "alive", 1, row(BOB, 1))
    assert compactors["a"].compact(["a", "b"], live=["alive"], now_s=1)
    here.merge(there.delta(here.digest()))
    assert "gone" not in here.replica_accounts
    tell_each_other(here, there)
    compactors["b"].collect(["a", "b"])
    tell_each_other(here, there)
    assert (list(here.replica_accounts), list(there.replica_accounts)) == (["alive"], ["alive"])
    assert here.served(ALICE) == there.served(ALICE) == totals(5)


def test_a_newcomer_is_given_the_page_of_a_book_that_it_does_not_hold():
    here, newcomer = ledger("a"), ledger("b")
    report(here, "gone", 1, row(ALICE, 5))
    here.closed("gone")
    Compactor(here).compact(["a"], live=(), now_s=0)
    newcomer.merge(next(iter(here.parts(newcomer.digest()))))
    assert newcomer.served(ALICE) == totals(5)


def test_a_live_replica_that_all_gave_up_by_mistake_is_not_folded():
    here, compactor = one_router()
    report(here, "hasty", 1, row(ALICE, 1))
    here.closed("hasty")
    compactor.compact(["only"], live=["hasty"], now_s=0)
    assert "hasty" not in here.closed_totals.folded


def test_only_the_first_of_the_members_seals():
    here, there = ledger("a"), ledger("b")
    tell_each_other(here, there)
    report(there, "gone", 1, row(ALICE, 1))
    assert not Compactor(there).compact(["a", "b"], live=(), now_s=0)


def test_a_newcomer_that_heard_of_nobody_does_not_seal():
    """It might out-number the books of the others with empty ones of its own."""
    newcomer = ledger("a")
    compactor = Compactor(newcomer)
    for at in range(1, 9):
        report(newcomer, "alive", at, row(ALICE, at))
        assert not compactor.compact(["a", "b"], live=["alive"], now_s=at)


def test_a_newcomer_with_an_old_snapshot_does_not_seal_before_all_know_of_it():
    """Its snapshot says that all hold the book it holds; that was long ago."""
    first, second = ledger("b"), ledger("c")
    report(first, "gone", 1, row(ALICE, 5))
    tell_each_other(first, second)
    snapshot = first.delta()
    first.closed("gone")
    second.closed("gone")
    tell_each_other(first, second)
    compactor = Compactor(first)
    compactor.compact(["b", "c"], live=(), now_s=0)
    tell_each_other(first, second)
    for one in (first, second):
        Compactor(one).collect(["b", "c"])
        assert not one.replica_accounts
    newcomer = ledger("a")
    newcomer.merge(snapshot)
    rival = Compactor(newcomer)
    for at in (1, 2, 3):
        report(newcomer, "alive", at, row(BOB, at))
        assert not rival.compact(["a", "b", "c"], live=["alive"], now_s=at)
    for one in (first, second):
        one.members = frozenset("abc")
    tell_each_other(first, second, newcomer)
    assert rival.compact(["a", "b", "c"], live=["alive"], now_s=4)
    for here in (first, second, newcomer):
        assert here.served(ALICE).service == 5


def test_a_rival_book_takes_nothing_with_it():
    """b takes a for gone, folds a page, and before anybody hears of it a writes two books without that page."""
    a, b, c = ledger("a"), ledger("b"), ledger("c")
    report(b, "gone", 1, row(ALICE, 5))
    tell_each_other(a, b, c)
    for one in (a, c):
        one.closed("gone")
    tell_each_other(a, b, c)
    b.received("gone", ALICE, totals(7))
    b.closed("gone")
    hasty = Compactor(b)
    assert hasty.compact(["b", "c"], live=(), now_s=0)
    hasty.collect(["b", "c"])
    assert b.closed_totals.folded == {"gone": 1}

    rival = Compactor(a)
    for at in (1, 2):
        report(a, "alive", at, row(BOB, at))
        assert rival.compact(["a", "b", "c"], live=["alive"], now_s=at)
    assert a.closed_totals.rank > b.closed_totals.rank

    b.members = frozenset("abc")
    tell_each_other(a, b, c)
    assert b.closed_totals.rank == a.closed_totals.rank
    for here in (a, b, c):
        assert here.served(ALICE).service == 7
        here.closed("gone")
    tell_each_other(a, b, c)
    assert rival.compact(["a", "b", "c"], live=["alive"], now_s=3)
    tell_each_other(a, b, c)
    for here in (a, b, c):
        Compactor(here).collect(["a", "b", "c"])
        assert "gone" not in here.replica_accounts
        assert here.served(ALICE).service == 7


def test_a_page_is_kept_until_every_member_holds_a_book_with_it():
    here, there = ledger("a"), ledger("b")
    report(here, "gone", 1, row(ALICE, 1))
    tell_each_other(here, there)
    here.closed("gone")
    there.closed("gone")
    tell_each_other(here, there)
    compactor = Compactor(here)
    compactor.compact(["a", "b"], live=(), now_s=0)
    compactor.collect(["a", "b"])
    assert "gone" in here.replica_accounts
    tell_each_other(here, there)
    compactor.collect(["a", "b"])
    assert "gone" not in here.replica_accounts


def test_what_comes_late_for_a_folded_page_changes_nothing():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 5))
    late = here.delta()
    here.closed("gone")
    compactor.compact(["only"], live=(), now_s=0)
    compactor.collect(["only"])
    here.merge(late)
    assert here.served(ALICE).service == 5
    compactor.collect(["only"])
    assert not here.replica_accounts


def test_a_follower_takes_a_delta_of_the_book_or_else_the_whole():
    here, compactor = one_router()
    near, far = ledger("near"), ledger("far")
    for at in range(MAX_LINEAGE + 3):
        name = f"gone-{at}"
        report(here, name, 1, row(ALICE, 1), row(f"ns/t/{at}", 1))
        here.closed(name)
        compactor.compact(["only"], live=(), now_s=at)
        compactor.collect(["only"])
        if at == 0:
            far.merge(here.delta())
        if at:
            delta = here.delta(near.digest())
            assert len(delta.closed_totals.clients) <= 3
        near.merge(here.delta(near.digest()))
    assert here.delta(far.digest()).closed_totals.base is None
    far.merge(here.delta(far.digest()))
    for follower in (near, far):
        assert content(follower)["book clients"] == content(here)["book clients"]
        assert content(follower)["book tenants"] == content(here)["book tenants"]


class Debtor:
    """Alice left owing 40 and has been idle since; Bob is served on, a quantum of 100 at a time."""

    def __init__(self, rules: CompactionRules | None = None) -> None:
        self.ledger, self.compactor = one_router(rules)
        report(self.ledger, "gone", 1, row(ALICE, 70, deficit=-40))
        self.ledger.closed("gone")
        self.at = 0
        self.bob_served(0)
        self.compact(0)
        self.compact(1)

    def bob_served(self, quanta: int) -> None:
        self.at += 1
        served = 100.0 * quanta
        report(self.ledger, "alive", self.at, row(BOB, served, waiting=1))

    def compact(self, now_s: float) -> None:
        self.compactor.compact(["only"], live=["alive"], now_s=now_s)
        self.compactor.collect(["only"])

    def is_known(self) -> bool:
        return ALICE in self.ledger.closed_totals.clients


def test_a_debt_is_kept_until_as_much_was_gone_without():
    world = Debtor(CompactionRules(idle_s=10))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known(), "nobody was given anything meanwhile"
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 40
    world.bob_served(1)
    world.compact(80)
    assert world.is_known(), "what was given since the last book may have been given to Alice too"
    world.compact(100)
    assert not world.is_known()
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 0


def test_what_was_given_to_others_before_does_not_pay():
    world = Debtor.__new__(Debtor)
    world.ledger, world.compactor = one_router(CompactionRules(idle_s=10))
    world.at = 0
    world.bob_served(5)
    report(world.ledger, "gone", 1, row(ALICE, 70, deficit=-40))
    world.ledger.closed("gone")
    for now_s in (0, 20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


def test_whoever_works_between_two_books_did_not_wait():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    report(world.ledger, "alive", 10, row(ALICE, 1))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


def test_whoever_waits_for_ever_is_not_idle():
    world = Debtor(CompactionRules(idle_s=10))
    report(world.ledger, "alive", 10, row(ALICE, 0, waiting=1))
    for quanta in range(1, 5):
        world.bob_served(quanta)
        world.compact(20.0 * quanta)
    assert world.is_known()


def test_a_debt_that_comes_while_idle_was_not_waited_for():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    world.compact(20)
    report(world.ledger, "slow", 1, row(ALICE, 1, deficit=-30))
    world.ledger.closed("slow")
    world.ledger.touched.clear()  # the report is old news: no work since the last book
    for now_s in (21, 40, 60):
        world.compact(now_s)
    assert world.is_known()
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 70


def test_a_new_weight_gives_nobody_anything():
    """Bob's debt of 300 is 300 quanta at weight 1 and 75 at weight 4: that is no service."""
    world = Debtor(CompactionRules(idle_s=10))
    report(world.ledger, "alive", 10, row(BOB, 300, deficit=-300, waiting=1))
    world.compact(15)
    world.ledger.weights = Heavy()
    report(world.ledger, "alive", 11, row(BOB, 300, deficit=-300, waiting=1))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


class Heavy:
    def client(self, client: str) -> float:
        return 4.0

    def tenant(self, tenant: str) -> float:
        return 1.0


def test_a_new_sealer_goes_on_where_the_last_one_was():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    world.compact(20)
    world.compactor = Compactor(world.ledger, CompactionRules(idle_s=10))
    world.compact(21)
    assert world.is_known(), "the new one has not seen it idle for long"
    world.compact(40)
    assert not world.is_known()


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        pytest.param("nothing", False, id="whoever is quits goes"),
        pytest.param("seeded", True, id="whoever was seeded somewhere alive stays"),
    ],
)
def test_clients_are_aged_out_when_they_are_quits(change, stays):
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    if change == "seeded":
        world.ledger.promised("alive", ALICE, seed=-5, tenant_seed=0)
    world.compact(5)
    assert world.is_known(), "not idle for long enough"
    for now_s in (20, 40):
        world.compact(now_s)
    assert world.is_known() == stays
    if not stays:
        tenant = world.ledger.closed_totals.tenant("ns/t")
        assert tenant.totals.service == 70, "the tenant keeps what its clients were given"


def test_too_many_clients_are_aged_out_smallest_debt_first():
    here, compactor = one_router(CompactionRules(idle_s=1e9, max_clients=2))
    report(here, "gone", 1, *(row(f"ns/t/{i}", 1, deficit=-10.0 * i) for i in range(5)))
    here.closed("gone")
    for now_s in range(3):
        compactor.compact(["only"], live=(), now_s=now_s)
    assert set(here.closed_totals.clients) == {"ns/t/3", "ns/t/4"}
    assert here.closed_totals.tenant("ns/t").totals.service == 3


def test_a_client_aged_out_may_come_back_and_followers_agree():
    world = Debtor(CompactionRules(idle_s=10))
    here = world.ledger
    follower = ledger("follower")
    follower.merge(here.delta())
    world.bob_served(1)
    for now_s in (20, 40):
        world.compact(now_s)
    assert not world.is_known()
    early = ledger("early")
    early.merge(here.delta())
    report(here, "second", 1, row(ALICE, 9, deficit=-3))
    here.closed("second")
    world.compact(41)
    for reader in (follower, early):
        reader.merge(here.delta(reader.digest()))
        assert reader.served(ALICE).service == 9
        assert carried_balance(reader, ALICE, ["alive"]) == 3
        assert content(reader)["book clients"] == content(here)["book clients"]


def test_departed_routers_leave_no_trace_but_their_accounts():
    here, there = ledger("a"), ledger("b")
    there.requested({ALICE: 5.0})
    there.received("alive", ALICE, totals(4))
    tell_each_other(here, there)
    assert here.requested_rate(ALICE, ["a", "b"]) == 5
    Compactor(here).collect(["a"])
    assert here.requested_rate(ALICE, ["a", "b"]) == 0
    assert here.adopted.keys() == {"a"}
    assert here.served(ALICE).service == 4


def test_what_comes_between_two_steps_is_for_the_next_book():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40))
    here.closed("gone")
    steps = compactor.steps(["only"], live=["alive"], now_s=0)
    while here.touched:  # until it has taken note of what is to be done
        next(steps)
    report(here, "alive", 1, row(BOB, 5, waiting=1))
    assert set(steps) == {None}
    assert here.closed_totals.rank.height == 1
    assert BOB in here.touched
    assert here.served(ALICE).service == 70
    assert here.served(BOB).service == 5
    assert compactor.compact(["only"], live=["alive"], now_s=1)
    assert not here.touched


def test_a_book_that_comes_between_two_steps_wins_and_nothing_is_counted_twice_or_lost():
    here, there = ledger("a"), ledger("b")
    for one in (here, there):
        report(one, "gone", 1, row(ALICE, 70, deficit=-40))
        one.closed("gone")
    compactor = Compactor(here)
    steps = compactor.steps(["a"], live=(), now_s=0)
    next(steps)
    assert Compactor(there).compact(["b"], live=(), now_s=0)
    here.merge(there.delta(here.digest()))
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert ended.value.value is False
    assert here.closed_totals.rank == Rank(1, "b")
    assert ALICE in here.touched
    assert compactor.compact(["a"], live=(), now_s=1)
    assert here.served(ALICE).service == 70
    assert carried_balance(here, ALICE, ()) == 40


def test_a_seal_that_is_broken_off_leaves_everything_to_the_next():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40))
    here.closed("gone")
    steps = compactor.steps(["only"], live=(), now_s=0)
    next(steps)
    steps.close()
    assert here.closed_totals.rank == Rank()
    assert ALICE in here.touched
    assert compactor.compact(["only"], live=(), now_s=1)
    assert here.closed_totals.client(ALICE).totals.service == 70
