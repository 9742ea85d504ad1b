"""VTC with known output lengths. An output token costs 2."""

from __future__ import annotations

import pytest
from evenkeel_laboratory.policies.vtc_oracle import OracleVtc

from tests.support.replica import admit, arrive, decode, request


def prepaid(policy: OracleVtc, id: str = "one", **fields) -> float:
    """What an admission charges beyond its input."""
    arrive(policy, request(id, id, **fields))
    assert admit(policy) == [id]
    return -policy.clients()[id].deficit - 100


def test_the_true_length_is_prepaid():
    policy = OracleVtc()
    assert prepaid(policy, expected_output_tokens=7) == 7 * 2


def test_without_a_known_length_the_client_s_own_requests_predict():
    policy = OracleVtc()
    served = request("served", "a")
    arrive(policy, served)
    admit(policy)
    decode(policy, served, 10)
    policy.leave(served, 0.0)
    before = -policy.clients()["a"].deficit
    arrive(policy, request("next", "a"))
    admit(policy)
    assert -policy.clients()["a"].deficit - before == 100 + 10 * 2


def test_errors_are_spread_over_half_the_length_either_way_and_average_out():
    drawn = [
        prepaid(OracleVtc(error=0.5, seed=3), f"r{n}", expected_output_tokens=1000) / 2
        for n in range(2000)
    ]
    assert 500 <= min(drawn) < 520 and 1480 < max(drawn) <= 1500
    assert sum(drawn) / len(drawn) == pytest.approx(1000, rel=0.02)


def test_errors_depend_on_seed_and_request_alone():
    draws = [
        [
            prepaid(OracleVtc(error=0.5, seed=seed), name, expected_output_tokens=900)
            for name in "ab"
        ]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][0] != draws[0][1]


@pytest.mark.parametrize("length", [1, 40, 90])
def test_an_ended_request_has_paid_for_its_output_whatever_was_predicted(length):
    policy = OracleVtc(error=1.0)
    one = request("one", expected_output_tokens=40)
    arrive(policy, one)
    admit(policy)
    decode(policy, one, length)
    policy.leave(one, 0.0)
    assert -policy.clients()["a"].deficit == 100 + 2 * length


@pytest.mark.parametrize("error", [-0.1, 1.1, float("nan")])
def test_an_error_outside_its_range_is_refused(error):
    with pytest.raises(ValueError, match="prediction_error"):
        OracleVtc(error=error)
