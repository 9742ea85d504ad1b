"""Nobody gains more than one bound's worth in total by clever conduct (design R4, R9, R11).

The others are backlogged throughout; the schemer comes, goes and lies as it likes, for 200 scale events.
"""

from __future__ import annotations

from random import Random

import pytest
from evenkeel_fairshare.bounds import Churn, churn_gap
from evenkeel_fairshare.ledger import CarryRules, CompactionRules, EqualWeights, position
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from tests.support.churn import ADVERSARIES, DlpmReplica, Fleet, Gain, GameReplica, random_churn

QUANTUM, OVERSHOOT, MOST, EVENTS = 128.0, 512.0, 4, 200
SCHEMER, VICTIM = "ns/t/a", "ns/t/b"
CHURN = Churn(
    replicas=MOST, overshoot=OVERSHOOT, quantum=QUANTUM, deferred_refills=DEFERRED_REFILLS
)
WEIGHTS = EqualWeights()


def game(seed: int, **options) -> Fleet:
    return Fleet(
        Random(seed),
        (SCHEMER, VICTIM, "ns/t/c", "ns/t/d"),
        rules=CarryRules(quantum=QUANTUM, overshoot=OVERSHOOT, deferred_refills=DEFERRED_REFILLS),
        weights=WEIGHTS,
        new_replica=lambda: GameReplica(
            quantum=QUANTUM, overshoot=OVERSHOOT, weights=WEIGHTS, deferred_refills=DEFERRED_REFILLS
        ),
        **options,
    )


def never(fleet: Fleet) -> bool:
    return False


def by_chance(fleet: Fleet) -> bool:
    return fleet.rng.random() < 0.3


def when_in_debt(fleet: Fleet) -> bool:
    """Goes as soon as no replica would serve it, and waits for replicas to die with its debts."""
    return all(
        replica.clients[SCHEMER].deficit <= 0
        for replica in fleet.live.values()
        if SCHEMER in replica.clients
    )


def until_forgotten(fleet: Fleet) -> bool:
    """Stays away until it is aged out, again and again."""
    if SCHEMER in fleet.away:
        return SCHEMER in fleet.ledgers[0].closed_totals.clients
    return fleet.rng.random() < 0.3


@pytest.mark.parametrize("scheme", [never, by_chance, when_in_debt, until_forgotten])
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_timed_idling_gains_less_than_one_bound_in_total(adversary, scheme):
    fleet = game(3, compaction=CompactionRules(idle_s=3))
    gain, forgotten = Gain(), 0
    fleet.join(MOST)
    while fleet.events < EVENTS:
        for _ in range(2 * len(fleet.live)):
            fleet.progress(fleet.rng.choice(sorted(fleet.live)), favourite=SCHEMER)
            gain.note(fleet.served(SCHEMER) - fleet.served(VICTIM))
        scheme_now = scheme(fleet)
        if scheme_now and SCHEMER not in fleet.away:
            fleet.leave(SCHEMER)
        elif not scheme_now and SCHEMER in fleet.away:
            fleet.come_back(SCHEMER)
        adversary(fleet, MOST)
        fleet.housekeep()
        forgotten += SCHEMER in fleet.ledgers[0].closed_totals.dropped
    if scheme is until_forgotten and adversary is random_churn:
        assert forgotten, "it never came to what it waits for"
    assert gain.largest < churn_gap(CHURN)
    for name in fleet.live:
        fleet.report(name, fleet.ledgers[0])
    assert position(fleet.ledgers[0], SCHEMER, fleet.live) >= -MOST * QUANTUM - 1, "credit"


# The real policy. A key that is rotated changes nothing at all: identity is the client's, whatever the key.

MEMORY, INPUT, OUTPUT = 48, 12, 8
REAL = Churn(
    replicas=3, overshoot=INPUT + 2.0 * MEMORY, quantum=32.0, deferred_refills=DEFERRED_REFILLS
)
WARMUP_S = 12
"""Steps of a replica."""


def real_game(seed: int, clients: tuple[str, ...]) -> Fleet:
    return Fleet(
        Random(seed),
        clients,
        rules=CarryRules(
            quantum=REAL.quantum, overshoot=REAL.overshoot, deferred_refills=REAL.deferred_refills
        ),
        weights=WEIGHTS,
        new_replica=lambda: DlpmReplica(
            quantum=REAL.quantum,
            warmup_s=WARMUP_S,
            longest_first=True,
            memory_tokens=MEMORY,
            max_input=INPUT,
            max_output=OUTPUT,
            weights=WEIGHTS,
        ),
    )


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_new_names_inside_a_tenant_gain_the_tenant_nothing(adversary):
    """A name that was ever used is thrown away with its debts; what the tenant owes stays the tenant's."""
    schemers = tuple(f"ns/u/{number:03}" for number in range(50))
    fleet = real_game(5, ("ns/t/a", *schemers))
    for name in schemers[1:]:
        fleet.leave(name)
    fleet.join(3)
    gain = Gain()
    for now in range(40):
        for _ in range(12):
            fleet.progress(fleet.rng.choice(sorted(fleet.live)), favourite=schemers[now])
            served = fleet.served_tenants()
            gain.note(served["ns/u"] - served["ns/t"])
        fleet.leave(schemers[now])
        fleet.come_back(schemers[now + 1])
        adversary(fleet, 3)
        if not fleet.live:
            fleet.join()
        fleet.housekeep()
    assert gain.largest < churn_gap(REAL)


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_aborting_sheds_no_debt(adversary):
    """Everything is aborted as soon as a debt shows, and asked for anew at the next step."""
    fleet = real_game(6, ("ns/t/a", "ns/t/b", "ns/t/c"))
    fleet.join(3)
    gain = Gain()
    for _ in range(60):
        for _ in range(8):
            fleet.progress(fleet.rng.choice(sorted(fleet.live)), favourite="ns/t/a")
            gain.note(fleet.served("ns/t/a") - fleet.served("ns/t/b"))
            owes = any(replica.clients["ns/t/a"].deficit < 0 for replica in fleet.live.values())
            if owes:
                fleet.leave("ns/t/a")
                fleet.come_back("ns/t/a")
        adversary(fleet, 3)
        if not fleet.live:
            fleet.join()
        fleet.housekeep()
    assert gain.largest < churn_gap(REAL)
