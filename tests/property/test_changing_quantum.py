"""DLPM's bounds while the quantum changes (`clientQuantum: Auto`): they hold with the largest quantum in force.

Every refill gives all members of a level the same quantum per weight, whatever its size at that time. So the proofs of
Theorems 4.1 and 4.2 change in one place: a deficit is at most the largest quantum (docs/design/0005).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from itertools import combinations, permutations
from random import Random

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support import theorems as bounds
from tests.support.loads import MAX_INPUT_TOKENS, Load, largest_rise, loads, run

QUANTA = (1.0, 10.0, 60.0, 300.0)


class Changing(Dlpm):
    """Takes one of `QUANTA` before every third pass or so, instead of a measurement."""

    def __init__(self, seed: int, warmup_s: float) -> None:
        super().__init__(rules=DeficitRules(quantum=QUANTA[0]), warmup_s=warmup_s)
        self.rng = Random(seed)
        self.changes = 0

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        if self.rng.random() < 0.3:
            self.changes += 1
            self.change_quantum(self.rng.choice(QUANTA))
        yield from super().admissions(now_s)


@pytest.mark.parametrize("tenants", [1, 3], ids=["flat", "two levels"])
@pytest.mark.parametrize("warmup_s", [0.0, 15.0], ids=["warm", "warming up"])
def test_the_largest_quantum_bounds_the_difference_of_backlogged_members(tenants, warmup_s):
    seen: Counter[str] = Counter()
    deferred = DEFERRED_REFILLS if warmup_s else 0

    @given(load=loads(tenants=tenants, weighted=True), seed=st.integers(0, 2**32))
    def check(load: Load, seed: int) -> None:
        policy = Changing(seed, warmup_s)
        played = run(policy, load, probe=lambda policy: {})
        unit = dlpm_overshoot(max_input_tokens=MAX_INPUT_TOKENS, memory_tokens=load.memory_tokens)
        weight = {client.identity: client.weight for client in load.clients}
        tenant = {client.identity: client.tenant for client in load.clients}
        for one, other in combinations(weight, 2):
            if tenant[one] != tenant[other]:
                continue
            pair = (weight[one], weight[other])
            bound = bounds.dlpm_backlogged_gap(unit, max(QUANTA), pair, deferred_refills=deferred)
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] / pair[0] - second[t] / pair[1] for t in interval]
                assert max(gaps) - min(gaps) <= bound
                seen["both waited"] += 1
        for one, other in permutations(weight, 2):
            if tenant[one] != tenant[other]:
                continue
            pair = (weight[one], weight[other])
            bound = bounds.dlpm_shortfall(unit, max(QUANTA), pair, deferred_refills=deferred)
            ours, theirs = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one):
                lead = largest_rise(theirs[t] / pair[1] - ours[t] / pair[0] for t in interval)
                assert lead <= bound
        seen["changes"] += policy.changes

    check()
    assert seen["both waited"] > 0 and seen["changes"] > 0
