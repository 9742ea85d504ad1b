"""D2LPM's fleet half against Algorithm 2 as it is printed, and the invariants of ALGORITHMS §2.4."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

SLOTS = 4
WEIGHTS = {"a": 1, "b": 1, "c": 3}
slots = st.integers(0, SLOTS - 1)
some_slots = st.sets(slots)
clients = st.sampled_from(sorted(WEIGHTS))
sends = st.tuples(st.just("send"), clients, st.integers(1, 120), some_slots, some_slots)
usages = st.one_of(
    st.none(),
    st.just(NOTHING),
    st.builds(Usage, st.integers(1, 200), st.just(0), st.integers(0, 60)),
)
others = st.one_of(
    st.tuples(st.just("finish"), st.integers(0, 50), usages),
    st.tuples(st.just("join"), slots),
    st.tuples(st.just("leave"), slots),
)
scripts = st.lists(st.one_of(sends, sends, sends, others), max_size=60)
Script = list[tuple]  # type: ignore[type-arg]


@dataclass
class Printed:
    """Algorithm 2, line by line, with sets and loops; R5 and R6 added."""

    quantum: int
    q: dict[str, dict[int, int]] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)

    def select(self, client: str, held: set[int], routable: set[int], s: list[int]) -> int:
        q = self.q.setdefault(client, dict.fromkeys(self.live, 0))
        available = {w for w in routable if q[w] > 0}
        while not available:
            for w in routable:
                q[w] += self.quantum * WEIGHTS[client]
            available = {w for w in routable if q[w] > 0}
        return min(held & available or available, key=lambda w: (s[w], w))

    def charge(self, client: str, w: int, tokens: int) -> None:
        if w in self.live:
            self.q[client][w] -= tokens

    def settle(self, client: str, w: int, estimate: int, usage: Usage | None) -> None:
        if w not in self.live or usage is None:
            return
        q = self.q[client]
        refund = estimate - usage.input_tokens - 2 * usage.output_tokens
        if refund > 0:
            refund = max(0, min(refund, self.quantum * WEIGHTS[client] - q[w]))
        q[w] += refund

    def join(self, w: int) -> None:
        for q in self.q.values():
            q[w] = max(q.values(), default=0)
        self.live.add(w)

    def leave(self, w: int) -> None:
        for q in self.q.values():
            q.pop(w, None)
        self.live.discard(w)


@examples(100)
@given(scripts, st.sampled_from([1, 7, 100, 1000]))
def test_the_closed_form_does_what_the_printed_algorithm_does(script: Script, quantum: int) -> None:
    policy, printed = D2lpm(worker_quantum=quantum), Printed(quantum)
    outstanding, running = [0] * SLOTS, []
    for slot in range(2):
        policy.joined(slot)
        printed.join(slot)
    for verb, *details in script:
        if verb == "send":
            client, tokens, held, hidden = details
            routable = printed.live - hidden
            if not routable:
                continue
            request = Dispatch(
                client, tokens, weight=WEIGHTS[client], longest=replica_set(sorted(held))
            )
            slot = policy.select(request, replica_set(sorted(routable)), outstanding)
            assert slot == printed.select(client, held, routable, outstanding)
            policy.dispatched(request, slot)
            printed.charge(client, slot, tokens)
            outstanding[slot] += 1
            running.append((request, slot))
        elif verb == "finish" and running:
            request, slot = running.pop(details[0] % len(running))
            policy.finished(request, slot, details[1])
            printed.settle(request.client, slot, request.input_tokens, details[1])
            outstanding[slot] -= 1
        elif verb == "join" and details[0] not in printed.live:
            policy.joined(details[0])
            printed.join(details[0])
        elif verb == "leave":
            policy.left(details[0])
            printed.leave(details[0])
        for client, q in printed.q.items():
            assert policy.credit(client) == q
            assert all(credit <= quantum * WEIGHTS[client] for credit in q.values())


loads = st.lists(
    st.tuples(st.integers(1, 80), some_slots, st.lists(st.integers(0, 9), min_size=4, max_size=4)),
    min_size=1,
    max_size=80,
)
Loads = list[tuple[int, set[int], list[int]]]


def fleet_of(worker_quantum: float) -> D2lpm:
    policy = D2lpm(worker_quantum=worker_quantum)
    for slot in range(SLOTS):
        policy.joined(slot)
    return policy


@examples(100)
@given(loads)
def test_every_replica_gets_work_until_its_credit_is_spent_between_refills(
    loads: Loads,
) -> None:
    policy = fleet_of(100.0)
    granted: dict[int, float] = {}
    received = dict.fromkeys(range(SLOTS), 0)
    for tokens, held, outstanding in loads:
        before = policy.credit("a")
        request = Dispatch("a", tokens, longest=replica_set(sorted(held)))
        slot = policy.select(request, replica_set(range(SLOTS)), outstanding)
        assert slot is not None
        after = policy.credit("a")
        if after != before:  # a refill
            assert all(credit <= 0 for credit in before.values())
            for each, credit in granted.items():
                assert received[each] >= credit  # everything that the last refill left
            granted = {each: max(0.0, credit) for each, credit in after.items()}
            received = dict.fromkeys(range(SLOTS), 0)
        policy.dispatched(request, slot)
        received[slot] += tokens


@examples(60)
@given(loads)
def test_an_infinite_quantum_is_pure_stickiness_to_the_longest_prefix(loads: Loads) -> None:
    policy = fleet_of(inf)
    for tokens, held, outstanding in loads:
        request = Dispatch("a", tokens, longest=replica_set(sorted(held)))
        slot = policy.select(request, replica_set(range(SLOTS)), outstanding)
        assert slot is not None
        policy.dispatched(request, slot)
        assert slot == min(held or range(SLOTS), key=lambda each: (outstanding[each], each))


@examples(60)
@given(loads)
def test_a_vanishing_quantum_is_least_loaded_among_the_least_used(loads: Loads) -> None:
    policy = fleet_of(2.0**-20)  # sums of tokens and of such quanta have no rounding error
    used = [0] * SLOTS
    for tokens, held, outstanding in loads:
        request = Dispatch("a", tokens, longest=replica_set(sorted(held)))
        slot = policy.select(request, replica_set(range(SLOTS)), outstanding)
        assert slot is not None
        policy.dispatched(request, slot)
        positive = {each for each in range(SLOTS) if used[each] == min(used)}
        used[slot] += tokens
        assert slot == min(held & positive or positive, key=lambda each: (outstanding[each], each))


@examples(60)
@given(loads, st.integers(1, SLOTS - 1))
def test_no_history_lets_a_newcomer_have_more_credit_than_the_others(
    loads: Loads, before: int
) -> None:
    policy = D2lpm(worker_quantum=100.0)
    for slot in range(before):
        policy.joined(slot)
    for tokens, held, outstanding in loads:
        request = Dispatch("a", tokens, longest=replica_set(sorted(held)))
        chosen = policy.select(request, replica_set(range(before)), outstanding)
        assert chosen is not None
        policy.dispatched(request, chosen)
    policy.joined(before)
    credit = dict(policy.credit("a"))
    assert credit.pop(before) == max(credit.values())
