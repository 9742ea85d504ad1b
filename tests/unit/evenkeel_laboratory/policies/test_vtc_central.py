"""Distributed VTC: what happens at one replica counts at all. Input costs 1, an output token 2."""

from __future__ import annotations

from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.experiments.setup import Setup
from evenkeel_laboratory.policies.vtc_central import CentralCounters, CentralVtc
from evenkeel_simulator.engine.profiles import PROFILES

from tests.support.replica import admit, arrive, decode, request


def two() -> tuple[CentralVtc, CentralVtc]:
    central = CentralCounters()
    return CentralVtc(central), CentralVtc(central)


def counter(policy: CentralVtc, client: str) -> float:
    return -policy.clients()[client].deficit


def test_service_at_one_replica_counts_at_the_other():
    first, second = two()
    for policy in (first, second):
        arrive(policy, request("a0", "a"), request("a1", "a"), request("b0", "b"))
    assert admit(first, room=1) == ["a0"]
    assert counter(second, "a") == 100
    assert admit(second, room=1) == ["b0"]
    running = next(iter(first._running))
    decode(first, running, 30)
    assert counter(first, "a") == counter(second, "a") == 100 + 30 * 2


def test_a_new_client_is_lifted_to_the_least_that_waits_anywhere():
    first, second = two()
    arrive(first, request("a0", "a"), request("a1", "a"))
    assert admit(first, room=1) == ["a0"]
    arrive(second, request("new", "new"))
    assert counter(second, "new") == 100


def test_a_client_that_waits_elsewhere_is_not_lifted():
    first, second = two()
    arrive(first, request("low", "low"))
    arrive(second, request("a0", "a"), request("a1", "a"))
    assert admit(second, room=1) == ["a0"]
    arrive(second, request("low2", "low"))
    assert counter(first, "low") == counter(second, "low") == 0


def test_into_empty_queues_the_last_to_leave_them_is_the_level():
    first, second = two()
    arrive(first, request("a0", "a"))
    arrive(second, request("b0", "b", extend=10))
    assert admit(second) == ["b0"]
    assert admit(first) == ["a0"]
    decode(first, next(iter(first._running)), 5)
    arrive(second, request("new", "new"))
    assert counter(second, "new") == 100 + 10


def order_after_service_elsewhere(first: Vtc, second: Vtc) -> list[str]:
    """Client `wide` has replica `second` for itself, and meets `narrow` at replica `first`."""
    arrive(first, *(request(f"{client}{n}", client) for n in range(3) for client in ("w", "n")))
    arrive(second, *(request(f"elsewhere{n}", "w") for n in range(3)))
    assert len(admit(second)) == 3
    return admit(first)


def test_only_central_counters_make_a_client_wait_for_service_elsewhere():
    assert order_after_service_elsewhere(Vtc(), Vtc()) == ["n0", "w0", "n1", "w1", "n2", "w2"]
    assert order_after_service_elsewhere(*two()) == ["n0", "n1", "n2", "w0", "w1", "w2"]


def test_each_fleet_of_experiments_has_counters_of_its_own():
    setup = Setup(profile=PROFILES["a10g-llama3.2-3b"], replicas=2, replica_policy="vtc-central")
    one, other = setup.fleet().replica_policy, setup.fleet().replica_policy
    same, twin, stranger = one(), one(), other()
    arrive(same, request("a0", "a"))
    assert admit(same) == ["a0"]
    arrive(twin, request("a1", "a"))
    arrive(stranger, request("a2", "a"))
    assert [policy.clients()["a"].deficit for policy in (twin, stranger)] == [-100, 0]
