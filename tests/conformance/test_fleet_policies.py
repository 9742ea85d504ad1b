"""What every fleet policy promises, whatever its name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, FleetPolicy, Usage, replica_set
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_laboratory.policies.registry import FLEET_POLICIES as POLICIES
from evenkeel_laboratory.policies.registry import LaboratoryFleetConfig
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

AUTO = "D2LPM, worker quantum Auto"
NAMES = [*POLICIES, AUTO]
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
        st.tuples(st.just("refuse"), st.integers(0, 9), st.just(0), st.just(set())),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0), st.just(set())),
        st.tuples(st.just("join"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
        st.tuples(st.just("leave"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
        st.tuples(st.just("hide"), st.integers(0, SLOTS - 1), st.just(0), st.just(set())),
    ),
    max_size=60,
)
Events = list[tuple[str, int, int, set[int]]]


def policy_of(name: str) -> FleetPolicy:
    worker_quantum = None if name == AUTO else 200.0
    config = LaboratoryFleetConfig(
        worker_quantum=worker_quantum, max_clients=4, deficits=DeficitRules(quantum=200.0)
    )
    return POLICIES["D2LPM" if name == AUTO else name](config)


def slot_for(
    policy: FleetPolicy, request: Dispatch, routable: set[int], outstanding: Sequence[int]
) -> int:
    """The slot of a request. If the policy holds it, the least loaded replica pulls, which gets all that is held."""
    slot = policy.select(request, replica_set(sorted(routable)), outstanding)
    if slot is None:
        slot = min(routable, key=lambda one: (outstanding[one], one))
        assert policy.pull(slot, 10**9, 0.0) == [request]
    return slot


def play(name: str, script: Events) -> list[int]:
    """Run a script of a fleet's life; returns the slots chosen, having checked each."""
    policy = policy_of(name)
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
        elif verb in ("finish", "refuse", "abort") and running:
            request, slot = running.pop(number % len(running))
            outstanding[slot] -= 1
            ends = {"finish": Usage(7 * tokens, tokens, tokens), "refuse": NOTHING, "abort": None}
            policy.finished(request, slot, ends[verb])
        elif verb == "send" and live - hidden:
            request = Dispatch(f"client-{number}", tokens, longest=replica_set(sorted(holders)))
            slot_chosen = slot_for(policy, request, live - hidden, outstanding)
            assert slot_chosen in live - hidden
            policy.dispatched(request, slot_chosen)
            running.append((request, slot_chosen))
            outstanding[slot_chosen] += 1
            chosen.append(slot_chosen)
        for client in range(6):
            assert set(policy.credit(f"client-{client}")) <= live
    return chosen


@pytest.mark.parametrize("name", NAMES)
@examples(60)
@given(script=events)
def test_only_routable_replicas_are_chosen_and_every_run_alike(name: str, script: Events) -> None:
    assert play(name, script) == play(name, script)


@pytest.mark.parametrize("name", NAMES)
def test_every_replica_gets_work_when_requests_stay(name: str) -> None:
    policy = policy_of(name)
    outstanding = [0] * SLOTS
    for slot in range(SLOTS):
        policy.joined(slot)
    for _ in range(10 * SLOTS):
        request = Dispatch("a", 50)
        slot = slot_for(policy, request, set(range(SLOTS)), outstanding)
        policy.dispatched(request, slot)
        outstanding[slot] += 1
    assert min(outstanding) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_only_routable_replica_is_chosen_however_loaded_or_indebted(name: str) -> None:
    policy = policy_of(name)
    for slot in range(3):
        policy.joined(slot)
    for count in range(20):
        request = Dispatch("a", 5000, longest=replica_set([0]))
        assert slot_for(policy, request, {1}, [0, count, 0]) == 1
        policy.dispatched(request, 1)
        policy.finished(request, 1, Usage(4000, 0, 700))


@pytest.mark.parametrize("name", NAMES)
def test_a_reused_slot_starts_as_a_fresh_one(name: str) -> None:
    """A policy whose slot 1 changed hands goes on like one whose newcomer got another number."""
    chosen = []
    for newcomer in (1, 2):
        policy = policy_of(name)
        policy.joined(0)
        policy.joined(1)
        spent = Dispatch("a", 5000)
        assert slot_for(policy, spent, {1}, [0] * 3) == 1
        policy.dispatched(spent, 1)
        policy.left(1)
        policy.joined(newcomer)
        credit = policy.credit("a")
        chosen.append((credit.get(0), credit.get(newcomer)))
    assert chosen[0] == chosen[1]


def sent(name: str, input_tokens: int) -> tuple[FleetPolicy, Dispatch]:
    """A policy of one replica, and a request that was estimated so and sent there."""
    policy = policy_of(name)
    policy.joined(0)
    request = Dispatch("a", input_tokens)
    assert slot_for(policy, request, {0}, [0]) == 0
    policy.dispatched(request, 0)
    return policy, request


@pytest.mark.parametrize("name", NAMES)
@given(estimates=st.lists(st.integers(1, 10**6), min_size=1, max_size=20), data=st.data())
def test_requests_that_never_ran_leave_no_charge(
    name: str, estimates: list[int], data: st.DataObject
) -> None:
    policy, first = sent(name, 20)
    policy.finished(first, 0, Usage(20, 5, 40))
    before = policy.credit("a")
    for estimate in estimates:
        request = Dispatch("a", estimate)
        policy.dispatched(request, 0)
        policy.finished(request, 0, NOTHING)
    assert policy.credit("a") == before
    running = [Dispatch("a", estimate) for estimate in estimates]
    for request in running:
        policy.dispatched(request, 0)
    for request in data.draw(st.permutations(running)):
        policy.finished(request, 0, NOTHING)
    assert policy.credit("a") == before


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_the_count_of_the_replica_replaces_any_estimate_in_the_end(
    name: str, estimate: int, tokens: int, output_tokens: int
) -> None:
    guessed, request = sent(name, estimate)
    guessed.finished(request, 0, Usage(tokens, 0, output_tokens))
    known, request = sent(name, tokens)
    known.finished(request, 0, Usage(tokens, 0, output_tokens))
    assert guessed.credit("a") == known.credit("a")


@pytest.mark.parametrize("name", [name for name in NAMES if "Auto" not in name])
def test_without_a_known_usage_the_estimate_stays(name: str) -> None:
    policy, request = sent(name, 50)
    before = policy.credit("a")
    policy.finished(request, 0, None)
    assert policy.credit("a") == before


def test_the_credit_of_an_automatic_worker_quantum_is_minus_the_open_work() -> None:
    policy, request = sent("D2LPM, worker quantum Auto", 50)
    assert policy.credit("a") == {0: -50.0}
    policy.finished(request, 0, None)
    assert policy.credit("a") == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_holds_nothing_gives_nothing_back(name: str) -> None:
    assert policy_of(name).pull(0, 10**6, 0.0) in ((), [])
