"""Two tenants, 4 to 1, through a fleet whose replicas are replaced again and again: their gap does not grow (R7)."""

from __future__ import annotations

from random import Random

import pytest
from evenkeel_contract.enginesettings import WARMUP_S

from tests.support.replacements import Fleet

OPENED = {"gold": 300, "bronze": 300}
"""So many that both are queued everywhere but where a replica is new; there bronze has more than its share."""


def drift(*, warmup_s: float, seed: int, times: int = 20) -> float:
    """How much gold's lead changed with each replacement, weighted tokens over weights."""
    fleet = Fleet(Random(seed), OPENED, warmup_s)
    fleet.begin()
    before = fleet.lead()
    for _ in range(times):
        fleet.replace(3.0)
    return (fleet.lead() - before) / times


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lead_does_not_drift_with_each_replacement(seed: int) -> None:
    assert abs(drift(warmup_s=WARMUP_S, seed=seed)) < 250


def test_without_a_warmup_it_does() -> None:
    """And it is for want of a warm-up only: the fleet, its clients and chance are the same."""
    assert drift(warmup_s=0.0, seed=1) < -300
