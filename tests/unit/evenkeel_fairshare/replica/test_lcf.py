"""Least counter first, where it differs from VTC: who comes late, or comes back."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.policies.registry import policies
from evenkeel_laboratory.policies.vtc_artifact import ArtifactLcf

from tests.support.replica import admit, arrive, decode, request

WITHOUT_LIFT = pytest.mark.parametrize("make", [Lcf, ArtifactLcf])


def busy_then_newcomer(policy: ReplicaPolicy) -> list[str]:
    """`a` was served five requests and has three more; `b` comes with three."""
    arrive(policy, *(request(f"a{n}", "a") for n in range(8)))
    admit(policy, room=5)
    arrive(policy, *(request(f"b{n}", "b") for n in range(3)))
    return admit(policy)


@WITHOUT_LIFT
def test_a_newcomer_is_served_alone_until_it_has_got_as_much(make):
    assert busy_then_newcomer(make()) == ["b0", "b1", "b2", "a5", "a6", "a7"]


def test_with_the_lift_they_take_turns():
    assert busy_then_newcomer(Vtc()) == ["a5", "b0", "a6", "b1", "a7", "b2"]


@WITHOUT_LIFT
def test_the_client_that_left_last_lifts_none_into_an_empty_queue(make):
    policy = make()
    arrive(policy, request("a0", "a"))
    admit(policy)
    arrive(policy, request("b0", "b"))
    assert policy.clients()["b"].deficit == 0


def test_no_client_is_forgotten():
    policy = Lcf(sweep_above=1)
    for number in range(20):
        arrive(policy, gone := request(f"r{number}", f"c{number}"))
        admit(policy)
        policy.leave(gone, 0.0)
    assert len(policy.clients()) == 20


def test_counters_are_charged_as_those_of_vtc():
    policy = Lcf()
    one = request("one", "a", client_weight=2)
    arrive(policy, one)
    admit(policy)
    decode(policy, one, 3)
    assert policy.clients()["a"].deficit == -(100 + 3 * 2) / 2


def test_the_registry_makes_both():
    assert type(make_policy("LCF")) is Lcf
    literal = policies(printed=False, artifact=True)["LCF"]
    assert type(literal(ReplicaPolicyConfig())) is ArtifactLcf
