"""What every fleet policy promises, whatever its name."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.fleet.contract import Dispatch, replica_set
from evenkeel_fairshare.fleet.registry import POLICIES, FleetPolicyConfig, make_policy
from hypothesis import given, settings
from hypothesis import strategies as st

OPTIONS = FleetPolicyConfig(worker_quantum=200.0, max_clients=4)
SLOTS = 6

events = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(0, 5),  # client: more than a policy may remember
            st.integers(1, 500),  # input tokens
            st.sets(st.integers(0, SLOTS - 1)),  # who holds the longest match, stale ones included
        ),
        st.tuples(st.just("finish"), st.integers(0, 9), st.integers(0, 300), st.just(set())),
        st.tuples(st.just("join"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
        st.tuples(st.just("leave"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
        st.tuples(st.just("hide"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
    ),
    max_size=60,
)
Events = list[tuple[str, int, int, set[int]]]


def play(name: str, script: Events) -> list[int]:
    """Run a script of a fleet's life; returns the slots chosen, having checked each."""
    policy = make_policy(name, OPTIONS)
    live: set[int] = set()
    hidden: set[int] = set()
    running: list[tuple[Dispatch, int]] = []
    outstanding = [0] * SLOTS
    chosen = []
    for verb, number, tokens, holders in script:
        if verb == "join" and number not in live:
            live.add(number)
            policy.joined(number)
        elif verb == "leave" and number in live:
            live.remove(number)
            policy.left(number)
        elif verb == "hide":
            hidden ^= {number}
        elif verb == "finish" and running:
            request, slot = running.pop(number % len(running))
            outstanding[slot] -= 1
            policy.finished(request, slot, tokens)
        elif verb == "send" and live - hidden:
            request = Dispatch(f"client-{number}", tokens, longest=replica_set(sorted(holders)))
            slot_chosen = policy.select(request, replica_set(sorted(live - hidden)), outstanding)
            assert slot_chosen in live - hidden
            policy.dispatched(request, slot_chosen)
            running.append((request, slot_chosen))
            outstanding[slot_chosen] += 1
            chosen.append(slot_chosen)
        for client in range(6):
            assert set(policy.credit(f"client-{client}")) <= live
    return chosen


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(script=events)
def test_only_routable_replicas_are_chosen_and_every_run_alike(name: str, script: Events) -> None:
    assert play(name, script) == play(name, script)


@pytest.mark.parametrize("name", POLICIES)
def test_every_replica_gets_work_when_requests_stay(name: str) -> None:
    policy = make_policy(name, OPTIONS)
    outstanding = [0] * SLOTS
    for slot in range(SLOTS):
        policy.joined(slot)
    for _ in range(10 * SLOTS):
        request = Dispatch("a", 50)
        slot = policy.select(request, replica_set(range(SLOTS)), outstanding)
        assert slot is not None
        policy.dispatched(request, slot)
        outstanding[slot] += 1
    assert min(outstanding) > 0


@pytest.mark.parametrize("name", POLICIES)
def test_the_only_routable_replica_is_chosen_however_loaded_or_indebted(name: str) -> None:
    policy = make_policy(name, OPTIONS)
    for slot in range(3):
        policy.joined(slot)
    for count in range(20):
        request = Dispatch("a", 5000, longest=replica_set([0]))
        assert policy.select(request, replica_set([1]), [0, count, 0]) == 1
        policy.dispatched(request, 1)
        policy.finished(request, 1, 700)


@pytest.mark.parametrize("name", POLICIES)
def test_a_reused_slot_starts_as_a_fresh_one(name: str) -> None:
    """A policy whose slot 1 changed hands goes on like one whose newcomer got another number."""
    chosen = []
    for newcomer in (1, 2):
        policy = make_policy(name, OPTIONS)
        policy.joined(0)
        policy.joined(1)
        spent = Dispatch("a", 5000)
        assert policy.select(spent, replica_set([1]), [0] * 3) == 1
        policy.dispatched(spent, 1)
        policy.left(1)
        policy.joined(newcomer)
        credit = policy.credit("a")
        chosen.append((credit.get(0), credit.get(newcomer)))
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_holds_nothing_gives_nothing_back(name: str) -> None:
    assert make_policy(name).pull(0, 10**6, 0.0) == ()
