"""Light members, in closed form, against members that get their refills one by one.

A member is light if a refill came that gave it nothing since it was positive, in this spell of credit or in the last.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules
from evenkeel_laboratory.policies.registry import check_refill
from hypothesis import given
from hypothesis import strategies as st

QUANTUM = 100


class Naive:
    """A member that sees every refill."""

    def __init__(self, seed: float) -> None:
        self.deficit = seed
        self.missed = False
        """A refill since it was positive."""
        self.missed_before = True
        """One in the spell of credit before; there was none yet."""

    def give(self) -> None:
        if self.deficit > 0:
            self.missed = True
        else:
            self.deficit += QUANTUM

    def charge(self, cost: float) -> None:
        was_positive = self.deficit > 0
        self.deficit -= cost
        if was_positive and self.deficit <= 0:
            self.missed, self.missed_before = False, self.missed


class Pair:
    """One member, twice."""

    def __init__(self, level: DeficitLevel, name: str, seed: float) -> None:
        self.account: Account = level.join(name, weight=1)
        self.account.start_from(seed)
        self.naive = Naive(seed)
        self.queued = 0

    def wait(self) -> None:
        self.account.waiting += 1
        self.queued += 1

    def admit(self, cost: float) -> None:
        self.account.waiting -= 1
        self.account.running += 1
        self.account.charge(cost)
        self.naive.charge(cost)
        self.queued -= 1

    def charge(self, cost: float) -> None:
        self.account.charge(cost)
        self.naive.charge(cost)


def refill(level: DeficitLevel, pairs: list[Pair]) -> None:
    """Once by the level, and one by one for those that see every refill."""
    queued = [one.naive for one in pairs if one.queued]
    while queued and all(one.deficit <= 0 for one in queued):
        for one in pairs:
            one.naive.give()
    check_refill(level)


def test_a_light_member_is_one_that_missed_a_refill():
    seen: Counter[str] = Counter()

    @given(
        seeds=st.lists(st.sampled_from([-250.0, -30.0, 0.0, 70.0]), min_size=2, max_size=4),
        chance=st.integers(0, 10_000),
    )
    def check(seeds: list[float], chance: int) -> None:
        rng = Random(chance)
        level = DeficitLevel(DeficitRules(quantum=QUANTUM))
        pairs = [Pair(level, str(number), seed) for number, seed in enumerate(seeds)]
        for _ in range(100):
            pair = rng.choice(pairs)
            match rng.choice(["wait", "admit", "charge", "refill", "refill"]):
                case "wait":
                    pair.wait()
                case "admit" if pair.queued and pair.naive.deficit > 0:
                    pair.admit(rng.choice([0, 20, 120, 230]))
                case "charge":
                    pair.charge(rng.choice([1, 10, 60]))
                case "refill":
                    refill(level, pairs)
            for one in pairs:
                assert one.account.deficit == one.naive.deficit
            for one in [one for one in pairs if one.naive.deficit > 0]:  # no other is looked at
                missed = one.naive.missed, one.naive.missed_before
                assert one.account.is_light is any(missed)
                seen[str(missed)] += 1

    check()
    assert len(seen) == 4 and min(seen.values()) > 100, seen
