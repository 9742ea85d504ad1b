"""DLPM on a replica that is new in its fleet: it forgives no client a debt for having come first (design R5, R7)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, DeficitLevel, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_laboratory.policies.registry import PrintedDlpm

from tests.support.replica import request

WARMUP_S = 3.0


class Replica:
    """A policy, and how many requests of each client it let in."""

    def __init__(self, *, warmup_s: float = WARMUP_S, make: type[Dlpm] = Dlpm) -> None:
        self.policy = make(rules=DeficitRules(quantum=100), warmup_s=warmup_s)
        self.admitted: Counter[str] = Counter()
        self._made = 0

    def arrive(self, client: str, count: int, now_s: float, *, seed: float = 0.0) -> None:
        """Each client is alone in its tenant, which starts from the same seed."""
        for _ in range(count):
            self._made += 1
            tenant = f"t{client}"
            one = request(str(self._made), client, tenant, seed=seed, tenant_seed=seed)
            self.policy.arrive(one, now_s)

    def serve(self, count: int, now_s: float) -> list[str]:
        """Let so many in, one a pass, each of which ends at once; their clients."""
        order = []
        for _ in range(count):
            conversation = self.policy.admissions(now_s)
            one = next(conversation)
            with suppress(StopIteration):  # the pass is over if no other is proposed
                conversation.send(AdmissionResult.ADMITTED)
            conversation.close()
            order.append(one.client)
            self.policy.leave(one, now_s)
        self.admitted.update(order)
        return order

    def deficit(self, client: str) -> float:
        return self.policy.clients()[client].deficit


@pytest.mark.parametrize("make", [Dlpm, PrintedDlpm])
def test_a_late_client_makes_up_for_what_others_were_served_on_a_new_replica(
    make: type[Dlpm],
) -> None:
    replica = Replica(make=make)
    replica.arrive("early", 20, 0.0)
    replica.serve(3, 0.1)
    replica.arrive("late", 20, 1.0)
    assert replica.serve(3, 1.0) == ["late"] * 3
    replica.serve(8, 2.0)
    replica.serve(8, 4.0)
    assert replica.admitted == {"early": 11, "late": 11}


def test_a_late_client_makes_up_for_the_deferred_refills_and_no_more() -> None:
    replica = Replica()
    replica.arrive("early", 40, 0.0)
    replica.serve(30, 0.1)
    replica.arrive("late", 20, 2.0)
    order = replica.serve(10, 2.0)
    assert (
        order[:DEFERRED_REFILLS].count("late") < order.count("late") <= DEFERRED_REFILLS + 3
    )  # then by turns


def test_a_warmup_may_be_shorter_than_a_second() -> None:
    replica = Replica(warmup_s=0.5)
    replica.arrive("early", 20, 0.0)
    replica.serve(3, 0.1)
    replica.arrive("late", 20, 0.2)
    assert replica.serve(3, 0.2) == ["late"] * 3


def test_without_a_warmup_the_first_client_keeps_its_lead() -> None:
    replica = Replica(warmup_s=0.0)
    replica.arrive("early", 20, 0.0)
    replica.serve(3, 0.1)
    replica.arrive("late", 20, 1.0)
    replica.serve(22, 4.0)
    assert replica.admitted["early"] - replica.admitted["late"] >= 3


def test_a_debt_from_elsewhere_is_not_forgiven_while_its_client_is_alone() -> None:
    replica = Replica()
    replica.arrive("debtor", 20, 0.0, seed=-200)
    assert replica.serve(1, 0.1) == ["debtor"]  # no other client is there, so it is served at once
    assert replica.deficit("debtor") == -300
    replica.arrive("other", 20, 1.0)
    assert replica.serve(3, 1.0) == ["other"] * 3


def test_deferred_refills_go_to_all_members_alike_departed_ones_included() -> None:
    replica = Replica()
    replica.arrive("stays", 20, 0.0)
    replica.arrive("leaves", 3, 0.0)
    replica.serve(6, 0.1)
    assert (replica.deficit("stays"), replica.deficit("leaves")) == (-300, -300)
    replica.serve(1, 4.0)
    assert (
        replica.deficit("stays") == 100
    )  # four refills for both, one request, and the next refill
    replica.arrive("leaves", 1, 4.1)
    # Its debt took three of the five refills. It joins in the round of the fifth (R17).
    assert replica.deficit("leaves") == 100
    replica.serve(1, 4.1)


def test_a_client_that_comes_after_the_warmup_starts_from_its_seed() -> None:
    replica = Replica()
    replica.arrive("early", 20, 0.0)
    replica.serve(3, 0.1)
    replica.serve(1, 4.0)
    replica.arrive("newcomer", 20, 5.0)
    replica.serve(20, 5.0)
    assert abs(replica.admitted["early"] - 4 - replica.admitted["newcomer"]) <= 2


def test_an_empty_replica_begins_anew_and_forgives_a_lone_client() -> None:
    """Else an engine's own warm-up would be all of it, or debts of a lone client would pile up."""
    replica = Replica()
    for n in range(50):
        replica.arrive("lone", 1, 2.0 * n)
        replica.serve(1, 2.0 * n)
    replica.arrive("lone", 20, 100.0)
    replica.serve(2, 100.1)
    assert replica.deficit("lone") >= -300
    replica.arrive("late", 20, 102.0)
    assert replica.serve(2, 102.0) == ["late"] * 2


def test_it_is_warm_at_the_very_end_of_the_time() -> None:
    replica = Replica()
    replica.arrive("alone", 20, 0.0)
    replica.serve(1, 0.1)
    assert replica.policy.tenants.refills == 0
    replica.serve(1, WARMUP_S)
    assert replica.policy.tenants.refills > 0


def test_a_level_without_members_ends_its_warmup_without_a_refill() -> None:
    level = DeficitLevel(DeficitRules(), warming_up=True)
    level.end_warmup()
    assert (level.refills, level.horizon, level.warming_up) == (0, 0, False)


def test_a_level_is_warm_unless_it_is_said_to_be_new() -> None:
    assert not DeficitLevel(DeficitRules()).warming_up
