"""A member that joins gets the quantum of the current round, and never more of the refills than a member that waited (R17).

What a member missed is the quanta of all refills, less its service and its deficit. That it never falls is what the bounds of
docs/design/0001 and 0003 depend on: a second turn in a round, a debt that is not paid, or one that fades too fast would lower it.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules
from evenkeel_laboratory.policies.registry import check_refill, is_eligible
from hypothesis import given
from hypothesis import strategies as st

QUANTA = (10.0, 100.0, 300.0)
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 3.0}
COSTS = (0.0, 20.0, 100.0, 130.0, 700.0)


class Watched:
    """A level whose members come and go, with the service of each."""

    def __init__(self, *, warming_up: bool) -> None:
        self.level = DeficitLevel(DeficitRules(quantum=100), warming_up=warming_up)
        self.given = 0.0
        """Sum of the quanta of all refills, for weight 1."""
        self.served: Counter[str] = Counter()
        self.missed = dict.fromkeys(WEIGHTS, 0.0)
        self.seen: Counter[str] = Counter()

    def arrive(self, name: str) -> None:
        level = self.level
        if not any(one.waiting for one in level.members.values()):
            self._count(level.end_debts)
        is_new = name not in level.members
        account = level.join(name, weight=WEIGHTS[name])
        account.waiting += 1
        self.seen["a turn at joining"] += is_new and account.deficit > 0
        self.seen["no turn at joining"] += is_new and account.deficit == 0 and level.refills > 0
        self.seen["a debt at joining"] += account.deficit < 0

    def refill(self) -> None:
        self._count(lambda: check_refill(self.level))

    def admit(self, account: Account, cost: float) -> None:
        account.waiting -= 1
        account.running += 1
        self.charge(account, cost)

    def charge(self, account: Account, cost: float) -> None:
        account.charge(cost)
        self.served[account.name] += cost

    def end(self, account: Account) -> None:
        account.running -= 1
        self.level.leave_if_idle(account)

    def abort(self, account: Account) -> None:
        account.waiting -= 1
        self.level.leave_if_idle(account)

    def end_warmup(self) -> None:
        self._count(self.level.end_warmup)

    def check(self) -> None:
        for name, account in self.level.members.items():
            received = (self.served[name] + account.deficit) / WEIGHTS[name]
            assert account.deficit <= max(QUANTA) * WEIGHTS[name]
            assert self.given - received >= self.missed[name] - 1e-6
            self.missed[name] = self.given - received

    def _count(self, refill) -> None:
        before = self.level.refills
        refill()
        self.given += (self.level.refills - before) * self.level.quantum


DEEDS = ("arrive", "refill", "refill", "admit", "charge", "end", "end", "abort")


def act(watched: Watched, rng: Random) -> None:
    name = rng.choice([*WEIGHTS])
    account = watched.level.members.get(name)
    match rng.choice(DEEDS):
        case "arrive":
            watched.arrive(name)
        case "refill":
            watched.refill()
        case "admit" if account and account.waiting and is_eligible(account):
            watched.admit(account, rng.choice(COSTS) * account.weight)
        case "charge" if account and account.running:
            watched.charge(account, rng.choice(COSTS))
        case "end" if account and account.running:
            watched.end(account)
        case "abort" if account and account.waiting:
            watched.abort(account)


@pytest.mark.parametrize("warming_up", [False, True], ids=["warm", "warming up"])
def test_coming_and_going_gives_no_more_of_the_refills_than_waiting(warming_up: bool) -> None:
    seen: Counter[str] = Counter()

    @given(chance=st.integers(0, 2**32))
    def check(chance: int) -> None:
        rng = Random(chance)
        watched = Watched(warming_up=warming_up)
        for step in range(150):
            act(watched, rng)
            if rng.random() < 0.05:
                watched.level.change_quantum(rng.choice(QUANTA))
            if step == 75 and warming_up:
                watched.end_warmup()
            watched.check()
        seen.update(watched.seen)

    check()
    for what in ("a turn at joining", "no turn at joining", "a debt at joining"):
        assert seen[what] > 0, seen
