"""The bound under churn, held against adversaries (design R5, R6, R7; docs/design/0003).

Figures are whole numbers and weights powers of two, so that sums are exact and identities can be asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from evenkeel_fairshare.bounds import Churn, churn_gap, churn_gap_from_level, position_range
from evenkeel_fairshare.ledger import (
    CarryRules,
    EqualWeights,
    position,
    position_of_tenant,
    tenant_of,
)
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from tests.support.churn import (
    ADVERSARIES,
    LOST_STEPS,
    DlpmReplica,
    Fleet,
    GameReplica,
    Gaps,
    Seeds,
    capped_lead,
    favour_by_churn,
    full_lead,
    join_and_die,
    lead_less_seeds_elsewhere,
    no_seeds,
    pile_up,
    random_churn,
    replace_all,
    seeds_from_ledger,
)

QUANTUM, OVERSHOOT = 128.0, 512.0
CLIENTS = tuple(f"ns/t/{name}" for name in "abcd")
EVENTS = 200


@dataclass(frozen=True)
class Weighted:
    """Clients by their last letter, tenants by theirs."""

    def client(self, client: str) -> float:
        return {"a": 1.0, "b": 4.0, "c": 2.0}.get(client[-1], 1.0)

    def tenant(self, tenant: str) -> float:
        return {"t": 1.0, "u": 4.0}[tenant[-1]]


EQUAL = EqualWeights()


def game(churn: Churn, *, weights=EQUAL, seed: int = 0, **options) -> Fleet:
    """A fleet of replicas that let the adversary choose everything."""
    return Fleet(
        Random(seed),
        CLIENTS,
        rules=CarryRules(
            quantum=churn.quantum,
            overshoot=churn.overshoot,
            crash_loss=churn.crash_loss,
            deferred_refills=churn.deferred_refills,
        ),
        weights=weights,
        new_replica=lambda: GameReplica(
            quantum=churn.quantum,
            overshoot=churn.overshoot,
            weights=weights,
            deferred_refills=churn.deferred_refills,
        ),
        **options,
    )


def some_progress(fleet: Fleet, steps: int, *, stall: bool) -> None:
    """Steps of replicas picked by chance; if `stall`, those that are there for longest do not move."""
    names = sorted(fleet.live)
    for _ in range(steps if names else 0):
        name = fleet.rng.choice(names[1:] if stall and len(names) > 1 else names)
        fleet.progress(name, favourite=fleet.clients[0])


def live_through(
    fleet: Fleet,
    adversary: Callable[[Fleet, int], None],
    *,
    most: int,
    stall: bool = False,
    pace: int = 2,
    events: int = EVENTS,
    check: Callable[[Fleet], None] = lambda fleet: None,
) -> list[float]:
    """The largest gap over any interval so far, after each deed of the adversary.

    `pace`: steps per replica between deeds.
    """
    gaps = Gaps()
    curve = []
    fleet.join(most)
    while fleet.events < events + most:
        some_progress(fleet, pace * len(fleet.live), stall=stall)
        gaps.note({client: fleet.served(client) for client in fleet.clients})
        adversary(fleet, most)
        fleet.housekeep()
        check(fleet)
        gaps.note({client: fleet.served(client) for client in fleet.clients})
        curve.append(gaps.largest)
    return curve


@pytest.mark.parametrize("deferred_refills", [0, DEFERRED_REFILLS])
@pytest.mark.parametrize("most", [1, 2, 5, 32])
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_no_adversary_opens_a_gap_beyond_the_bound(adversary, most, deferred_refills):
    churn = Churn(
        replicas=most, overshoot=OVERSHOOT, quantum=QUANTUM, deferred_refills=deferred_refills
    )
    for stall in (False, True):
        fleet = game(churn, seed=most)
        curve = live_through(fleet, adversary, most=most, stall=stall)
        assert curve[-1] <= churn_gap(churn)
        served = [fleet.served(client) for client in CLIENTS]
        assert max(served) - min(served) <= churn_gap_from_level(churn)


@pytest.mark.parametrize("most", [2, 8])
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_without_seeds_the_gap_exceeds_the_bound_and_grows(adversary, most):
    churn = Churn(replicas=most, overshoot=OVERSHOOT, quantum=QUANTUM)
    curve = live_through(game(churn, seed=most, seeding=no_seeds), adversary, most=most)
    assert curve[-1] > churn_gap(churn)
    assert curve[-1] > 1.3 * curve[len(curve) // 2]


@pytest.mark.parametrize(
    ("stall", "deferred_refills"), [(False, 0), (True, 0), (True, DEFERRED_REFILLS)]
)
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_weights_change_the_bound_and_nothing_else(adversary, stall, deferred_refills):
    churn = Churn(
        replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM, deferred_refills=deferred_refills
    )
    fleet = game(churn, weights=Weighted(), seed=3)
    live_through(fleet, adversary, most=4, stall=stall, check=positions_are_within(churn))


def positions_are_within(churn: Churn) -> Callable[[Fleet], None]:
    """Theorem 1, of every client and not only of differences."""

    def check(fleet: Fleet) -> None:
        [ledger] = fleet.ledgers
        for name in fleet.live:
            fleet.report(name, ledger)
        for client in fleet.clients:
            low, high = position_range(churn, fleet.weights.client(client))
            assert low <= position(ledger, client, fleet.live) <= high

    return check


@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_after_all_routers_were_lost_the_bound_holds_anew(adversary, routers):
    """R8: theorem 1 from the first report on, and theorem 2 over every interval in which no router history ends."""
    unsettled = 0 if routers == 1 else 8  # they exchange what they know after every deed only
    churn = Churn(replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM, unsettled=unsettled)
    fleet = game(churn, weights=Weighted(), seed=3, routers=routers)
    fleet.join(4)
    for _ in range(20):
        fleet.lose_all_routers()
        gaps = Gaps()
        for _ in range(10):
            some_progress(fleet, 2 * len(fleet.live), stall=False)
            gaps.note({client: fleet.served(client) for client in fleet.clients})
            adversary(fleet, 4)
            fleet.housekeep()
            for name in fleet.live:
                for ledger in fleet.ledgers:
                    fleet.report(name, ledger)
            for client in fleet.clients:
                low, high = position_range(churn, fleet.weights.client(client))
                for ledger in fleet.ledgers:
                    assert low <= position(ledger, client, fleet.live) <= high
        assert gaps.largest <= max(
            churn_gap(churn, (Weighted().client(f), Weighted().client(g)))
            for f, g in pairwise(sorted(CLIENTS, key=Weighted().client))
        )


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_differences_of_position_are_differences_of_service_exactly(adversary):
    """Lemma 2, whatever the replicas did since their last reports before they died."""

    def check(fleet: Fleet) -> None:
        [ledger] = fleet.ledgers
        for name in fleet.live:
            fleet.report(name, ledger)
        first, *others = fleet.clients
        for other in others:
            want = fleet.served(first) - fleet.served(other)
            assert position(ledger, first, fleet.live) - position(ledger, other, fleet.live) == want

    churn = Churn(replicas=5, overshoot=OVERSHOOT, quantum=QUANTUM)
    fleet = game(churn, weights=Weighted(), seed=1, report_chance=0.05)
    live_through(fleet, adversary, most=5, check=check)


@pytest.mark.parametrize(
    ("wrong", "adversary", "most", "life"),
    [
        pytest.param(capped_lead(OVERSHOOT), favour_by_churn, 8, {}, id="leads capped"),
        pytest.param(full_lead, replace_all, 8, {"pace": 8}, id="the full lead at each of several"),
        pytest.param(
            lead_less_seeds_elsewhere, pile_up, 4, {"stall": True}, id="seeds without a limit"
        ),
    ],
)
def test_known_wrong_seeds_open_gaps_beyond_the_bound(wrong, adversary, most, life):
    churn = Churn(replicas=most, overshoot=OVERSHOOT, quantum=QUANTUM)
    right = live_through(game(churn, seed=5), adversary, most=most, **life)
    curve = live_through(game(churn, seed=5, seeding=wrong), adversary, most=most, **life)
    assert right[-1] <= churn_gap(churn) < curve[-1]


def test_a_ledger_that_ignores_deferred_refills_lets_the_gap_grow():
    """Replicas that are replaced while they warm up leave more than a seed of that range takes over."""
    churn = Churn(
        replicas=2, overshoot=OVERSHOOT, quantum=QUANTUM, deferred_refills=DEFERRED_REFILLS
    )
    for knows in (True, False):
        fleet = game(churn, seed=6)
        if not knows:
            for ledger in fleet.ledgers:
                ledger.rules = replace(ledger.rules, deferred_refills=0)
        curve = live_through(fleet, favour_by_churn, most=2)
        assert (curve[-1] <= churn_gap(churn)) == knows
        assert (curve[-1] > 1.3 * curve[len(curve) // 2]) != knows


def debts_only(fleet: Fleet, client: str, name: str) -> Seeds:
    return Seeds(min(0.0, seeds_from_ledger(fleet, client, name).client))


@pytest.mark.parametrize(
    ("seeding", "grows"),
    [
        pytest.param(debts_only, True, id="not given back"),
        pytest.param(seeds_from_ledger, False, id="given back"),
    ],
)
def test_credit_that_is_not_given_back_is_lost_at_every_kill(seeding, grows):
    """The one replica dies when the first client with credit has spent it, before anybody else has."""
    churn = Churn(replicas=1, overshoot=OVERSHOOT, quantum=QUANTUM)
    fleet = game(churn, seeding=seeding)
    for _ in range(20):
        [name] = fleet.join()
        replica = fleet.live[name]
        if all(known.deficit <= 0 for known in replica.clients.values()):
            for known in replica.clients.values():
                known.deficit += QUANTUM  # a round
        spender = next(name for name in CLIENTS if replica.clients[name].deficit > 0)
        replica.serve(spender, replica.clients[spender].deficit)
        fleet.report(name, fleet.ledgers[0])
        fleet.kill(name)
        fleet.housekeep()
    served = [fleet.served(client) for client in CLIENTS]
    assert (max(served) - min(served) > churn_gap(churn)) == grows


def crash(fleet: Fleet, most: int) -> None:
    """It is always the same client that loses what a crash destroys."""
    for name in fleet.rng.sample(sorted(fleet.live), 2):
        fleet.kill(name, losing=fleet.clients[1])
    fleet.join(2)


def test_crashes_that_destroy_work_widen_the_bound_once_and_not_each_time():
    lost = LOST_STEPS * (OVERSHOOT + QUANTUM)
    churn = Churn(replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM, crash_loss=lost)
    fleet = game(churn, seed=2)
    curve = live_through(fleet, crash, most=4, check=positions_are_within(churn))
    assert curve[-1] <= churn_gap(churn)


def test_a_ledger_that_leaves_losses_to_the_loser_lets_the_gap_grow():
    churn = Churn(replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM)
    curve = live_through(game(churn, seed=2), crash, most=4)
    assert curve[-1] > churn_gap(churn)
    assert curve[-1] > 1.3 * curve[len(curve) // 2]


def drain_one(fleet: Fleet, most: int) -> None:
    fleet.drain(min(fleet.live))
    fleet.join()


def test_a_drain_that_finishes_what_runs_is_no_different_from_a_kill():
    churn = Churn(replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM)
    fleet = game(churn, seed=2, report_chance=1.0)
    curve = live_through(fleet, drain_one, most=4, check=positions_are_within(churn))
    assert curve[-1] <= churn_gap(churn)


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_routers_with_different_news_add_at_most_the_news_that_they_lack(adversary):
    """Any request may come to any of three routers; they exchange what they know after every deed only."""
    most = 4
    churn = Churn(replicas=most, overshoot=OVERSHOOT, quantum=QUANTUM, unsettled=2 * most)
    fleet = game(churn, seed=4, routers=3, affinity=False)
    curve = live_through(fleet, adversary, most=most)
    assert curve[-1] <= churn_gap(churn)


def test_a_router_per_client_needs_no_exchange_for_its_seeds():
    churn = Churn(replicas=4, overshoot=OVERSHOOT, quantum=QUANTUM)
    for adversary in ADVERSARIES:
        fleet = game(churn, seed=4, routers=4)
        curve = live_through(fleet, adversary, most=4)
        assert curve[-1] <= churn_gap(churn)


# The real policy, both levels.

MEMORY, INPUT, OUTPUT = 48, 12, 8
REAL_CLIENTS = ("ns/t/a", "ns/t/b", "ns/u/c", "ns/u/d", "ns/u/e")


def real_fleet(churn: Churn, seed: int, seeding=None) -> Fleet:
    weights = Weighted()
    return Fleet(
        Random(seed),
        REAL_CLIENTS,
        rules=CarryRules(
            quantum=churn.quantum,
            overshoot=churn.overshoot,
            deferred_refills=churn.deferred_refills,
        ),
        weights=weights,
        new_replica=lambda: DlpmReplica(
            quantum=churn.quantum,
            warmup_s=WARMUP_S if churn.deferred_refills else 0.0,
            longest_first=churn.deferred_refills
            > 0,  # as replicas run it, or as the paper prints it
            memory_tokens=MEMORY,
            max_input=INPUT,
            max_output=OUTPUT,
            weights=weights,
        ),
        seeding=seeding,
    )


def live_through_really(churn: Churn, fleet: Fleet, adversary, *, most: int, events: int) -> float:
    """The largest ratio of a gap to its bound, of tenants and of clients within a tenant."""
    tenants = sorted({tenant_of(client) for client in fleet.clients})
    gaps = {scope: Gaps() for scope in ("", *tenants)}

    def note() -> None:
        gaps[""].note(fleet.served_tenants())
        for tenant in tenants:
            members = [client for client in fleet.clients if tenant_of(client) == tenant]
            gaps[tenant].note({client: fleet.served(client) for client in members})

    fleet.join(most)
    while fleet.events < events + most:
        some_progress(fleet, 8 * len(fleet.live), stall=fleet.rng.random() < 0.5)
        note()
        adversary(fleet, most)
        fleet.housekeep()
        note()
    bound = churn_gap(churn)  # weights are at least 1
    return max(of_scope.largest for of_scope in gaps.values()) / bound


REAL = {"overshoot": INPUT + 2.0 * MEMORY, "quantum": 32.0}
WARMUP_S = 12
"""Steps of a replica: some are replaced before they are warm, some long after."""


@pytest.mark.parametrize("deferred_refills", [0, DEFERRED_REFILLS])
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_the_real_policy_stays_within_the_bound_at_both_levels(adversary, deferred_refills):
    churn = Churn(replicas=3, deferred_refills=deferred_refills, **REAL)
    fleet = real_fleet(churn, seed=1)
    assert live_through_really(churn, fleet, adversary, most=3, events=40) <= 1


@pytest.mark.parametrize("deferred_refills", [0, DEFERRED_REFILLS])
def test_the_real_policy_keeps_the_identity_at_both_levels(deferred_refills):
    churn = Churn(replicas=3, deferred_refills=deferred_refills, **REAL)
    fleet = real_fleet(churn, seed=2)
    fleet.join(3)
    for _ in range(30):
        some_progress(fleet, 10, stall=False)
        random_churn(fleet, 3)
        fleet.housekeep()
        [ledger] = fleet.ledgers
        for name in fleet.live:
            fleet.report(name, ledger)
        served, live = fleet.served_tenants(), fleet.live.keys()
        gap = position_of_tenant(ledger, "ns/t", live) - position_of_tenant(ledger, "ns/u", live)
        assert gap == served["ns/t"] - served["ns/u"]
        gap = position(ledger, "ns/u/d", live) - position(ledger, "ns/u/e", live)
        assert gap == fleet.served("ns/u/d") - fleet.served("ns/u/e")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "deferred_refills"),
    [(1, 0), (2, 0), (2, DEFERRED_REFILLS), (8, DEFERRED_REFILLS), (32, 0)],
)
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_the_real_policy_through_200_scale_events(adversary, most, deferred_refills):
    churn = Churn(replicas=most, deferred_refills=deferred_refills, **REAL)
    with_seeds = live_through_really(
        churn, real_fleet(churn, seed=7), adversary, most=most, events=EVENTS
    )
    assert with_seeds <= 1


@pytest.mark.slow
@pytest.mark.parametrize("adversary", [favour_by_churn, join_and_die, replace_all])
def test_the_real_policy_without_seeds_exceeds_the_bound(adversary):
    churn = Churn(replicas=2, **REAL)
    without = live_through_really(
        churn,
        real_fleet(churn, seed=7, seeding=lambda *_: Seeds()),
        adversary,
        most=2,
        events=3 * EVENTS,
    )
    assert without > 1
