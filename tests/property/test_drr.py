"""DRR's balances stay in their range, its clients close together; it is a ring gone round; with a tiny quantum, VTC."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, count

from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.drr import Drr
from evenkeel_fairshare.replica.vtc import Vtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine
from tests.support.examples import examples
from tests.support.loads import MAX_INPUT_TOKENS, Load, loads, run
from tests.support.replica import admit, arrive, decode, request


def balances(policy: ReplicaPolicy) -> dict[str, float]:
    return {client: state.deficit for client, state in policy.clients().items()}


def test_balances_stay_in_their_range_and_backlogged_clients_close_together():
    """U as for DLPM. Two that always wait have turns in turn: at most one more for one of them, a quantum.

    So W_f - W_g = (K_f - K_g)·Q + what both balances rose by, each by less than U + Q: at most 2U + 3Q.
    """
    seen: Counter[str] = Counter()

    @given(
        load=loads(),
        quantum=st.sampled_from([1, 10, 60, 300, 2000]),
        kv_time=st.sampled_from([0, 500]),
    )
    def check(load: Load, quantum: float, kv_time: float) -> None:
        cost = LinearCost(kv_time=kv_time)
        u = dlpm_overshoot(
            max_input_tokens=MAX_INPUT_TOKENS, memory_tokens=load.memory_tokens, kv_time=kv_time
        )
        policy = Drr(rules=DeficitRules(quantum=quantum), cost=cost)
        played = run(policy, load, cost=cost, probe=balances, full_input=True)
        for client in load.clients:
            for balance in played.parties[client.identity].probes:
                assert balance is None or -u < balance <= quantum
        for one, other in combinations([client.identity for client in load.clients], 2):
            for span in played.backlogged(one, other):
                gaps = [
                    played.parties[one].service[t] - played.parties[other].service[t] for t in span
                ]
                assert max(gaps) - min(gaps) <= 2 * u + 3 * quantum
                seen["longer than a quantum"] += max(gaps) - min(gaps) > quantum

    check()
    assert seen["longer than a quantum"] > 0


@given(load=loads())
def test_with_a_quantum_below_all_costs_it_is_vtc(load):
    """All clients are there from the start and wait to the end, so none is lifted; their weights prevent ties."""
    weights = {client: (number + 2) ** 0.5 for number, client in enumerate(load.clients)}
    sendings = sorted(load.sendings, key=lambda sending: sending.client.identity)

    def until_a_client_has_nothing_waiting(policy: ReplicaPolicy) -> list[str]:
        engine = AbstractEngine(policy, load.memory_tokens)
        for number, sending in enumerate(sendings):
            job = sending.job(number)
            job.client_weight = weights[sending.client]
            engine.submit(job)
        log: list[str] = []
        while len({job.client for job in engine.queue}) == len(weights):
            log += [job.id for job in engine.step()]
        return log

    drr = until_a_client_has_nothing_waiting(Drr(rules=DeficitRules(quantum=1e-6)))
    assert drr and drr == until_a_client_has_nothing_waiting(Vtc())


@dataclass(eq=False)
class Chair:
    """A client's place in the ring that is gone round."""

    number: int
    balance: float = 0.0
    step: float = 0.0
    queue: list[Request] = field(default_factory=list)
    running: int = 0


class Ring:
    """App. C.2 step by step: a walk round the ring gives a quantum to each client with nothing left."""

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self.chairs: dict[str, Chair] = {}
        self.place = 0
        self._numbers = count(1)

    def arrive(self, request: Request) -> None:
        if request.client not in self.chairs:
            self.chairs[request.client] = Chair(next(self._numbers))
        chair = self.chairs[request.client]
        chair.step = self.quantum * request.client_weight
        chair.queue.append(request)

    def admit(self, room: int) -> list[str]:
        admitted: list[str] = []
        while any(chair.queue for chair in self.chairs.values()):
            chair = next((c for c in self.chairs.values() if c.number == self.place), None)
            if chair is None or not chair.queue or chair.balance <= 0:
                self._go_on()
                continue
            if len(admitted) == room:
                break
            request = chair.queue.pop(0)
            chair.balance -= (
                request.input_tokens + request.output_tokens
            )  # of a retracted one, both
            chair.running += 1
            admitted.append(request.id)
        return admitted

    def decode(self, client: str, cost: float) -> None:
        self.chairs[client].balance -= cost

    def requeue(self, request: Request) -> None:
        chair = self.chairs[request.client]
        chair.running -= 1
        chair.queue.insert(0, request)

    def leave(self, request: Request) -> None:
        chair = self.chairs[request.client]
        if request in chair.queue:
            chair.queue.remove(request)
        else:
            chair.running -= 1
        self._clear(request.client)

    def _go_on(self) -> None:
        ring = sorted(self.chairs.items(), key=lambda item: item[1].number)
        name, chair = next((item for item in ring if item[1].number > self.place), ring[0])
        self.place = chair.number
        if chair.balance < 0 or (chair.queue and chair.balance == 0):
            chair.balance += chair.step
        self._clear(name)

    def _clear(self, client: str) -> None:
        chair = self.chairs[client]
        if not chair.queue and not chair.running and chair.balance >= 0:
            del self.chairs[client]


# What happens: who comes with how long an input at which weight; a pass with room for so many; and what becomes of
# the n-th of those that run (decode, requeue, finish) or wait (abort).
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("arrive"),
            st.sampled_from("abcd"),
            st.integers(1, 300),
            st.sampled_from([1, 2, 4]),
        ),
        st.tuples(st.just("pass"), st.integers(0, 6)),
        st.tuples(
            st.sampled_from(["decode", "requeue", "finish", "abort"]),
            st.integers(0, 9),
            st.integers(1, 90),
        ),
    ),
    max_size=60,
)


@given(events=EVENTS, quantum=st.sampled_from([10, 64, 100, 500]))
@examples(100)
def test_the_schedule_is_that_of_a_walk_round_the_ring(events, quantum):
    policy, ring = Drr(rules=DeficitRules(quantum=quantum)), Ring(quantum)
    waiting: list[Request] = []
    running: list[Request] = []
    for number, (what, *details) in enumerate(events):
        if what == "arrive":
            client, size, weight = details
            one = request(str(number), client, extend=size, client_weight=weight)
            arrive(policy, one)
            ring.arrive(one)
            waiting.append(one)
        elif what == "pass":
            admitted = admit(policy, room=details[0])
            assert admitted == ring.admit(details[0])
            entered = [next(one for one in waiting if one.id == id_) for id_ in admitted]
            waiting = [one for one in waiting if one not in entered]
            running += entered
        elif pool := waiting if what == "abort" else running:
            one = pool[details[0] % len(pool)]
            if what == "decode":
                decode(policy, one, details[1])
                ring.decode(one.client, 2 * details[1])
                continue
            pool.remove(one)
            if what == "requeue":
                policy.requeue(one, 0.0)
                ring.requeue(one)
                waiting.insert(0, one)
            else:
                policy.leave(one, 0.0)
                ring.leave(one)
        have = {client: state.deficit for client, state in policy.clients().items()}
        assert have == {client: chair.balance for client, chair in ring.chairs.items()}
