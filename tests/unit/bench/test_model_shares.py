"""The models that share, in virtual time: what the figures of `bench/results/model-shares.md` rest on, in short."""

from __future__ import annotations

from math import inf

import pytest

from bench.model_shares import CASES, ONE_BY_ONE, simulate


@pytest.mark.parametrize("case", CASES)
def test_engine_seconds_are_the_fairest_ones(case: str) -> None:
    uses, fairest = CASES[case]
    found = simulate(uses, shared=True, seconds=150.0, joins_s={}).seconds(50.0, inf)
    assert found == pytest.approx(fairest, abs=0.1)


def test_without_shares_two_models_give_more_than_one() -> None:
    uses, fairest = CASES["another tenant at the small one"]
    found = simulate(uses, shared=False, seconds=100.0, joins_s={}).seconds(50.0, inf)
    assert found["law"] == pytest.approx(fairest["law"] / 2, abs=0.05)
    assert sum(found.values()) == pytest.approx(sum(fairest.values()), abs=0.01)


def test_who_has_its_share_elsewhere_comes_last_and_comes() -> None:
    runs = [
        simulate(ONE_BY_ONE, shared=shared, seconds=200.0, joins_s={}) for shared in (False, True)
    ]
    alone_s, shared_s = (run.between_answers_s("small", "ads", 50.0) for run in runs)
    assert alone_s < shared_s < inf
