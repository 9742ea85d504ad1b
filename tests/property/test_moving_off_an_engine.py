"""Routers take back what waits at one engine, which lets go late: nothing that ran there is paid again elsewhere (R11).

The engine is the simulator's and so is its time; the routers' rules are the real ones. What each router knows is a report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import Request
from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.ledger.held_work import HeldWork, TakenBack
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.evenkeel_simulator.engine_support import PROFILE, Queue, make_request

CLIENT = "ns/t/a"
COST = LinearCost()
INPUT, OUTPUT = 20, 10
RUN = 4
POLL_S = 0.1
STEPS = 4000


class Youngest(Queue):
    """Admits the youngest first, so that what routers take for waiting runs."""

    def order(self) -> list[Request]:
        return self.queue[::-1]


@dataclass
class Router:
    """One client's requests at the engine by one router."""

    drains_s: float
    open: dict[int, EngineRequest] = field(default_factory=dict)
    taken: list[tuple[TakenBack, dict[int, EngineRequest]]] = field(default_factory=list)
    told: dict[int, Paid] = field(default_factory=dict)
    """What was taken back, and what of it is paid."""
    waits: bool = False
    """Whether what it took back is not certain yet."""

    def heard(self, held: HeldWork) -> list[EngineRequest]:
        """A report: what was taken is told, and what waits is taken; the latter."""
        if self.waits:
            taken, _ = self.taken[-1]
            self.waits = not taken.is_settled(held)
            told = taken.verdict(held)
            for number in taken.numbers:
                self.told[number] = told.paid.get(number, UNPAID)
            return []
        unanswered = [n for n, one in sorted(self.open.items()) if not one.output_tokens]
        count = held.waiting_here(len(self.open), len(unanswered))
        if not count:
            return []
        taken = TakenBack(held, held.share(len(self.open)), tuple(unanswered[-count:]))
        requests = {number: self.open.pop(number) for number in taken.numbers}
        self.taken.append((taken, requests))
        self.waits = True
        return list(requests.values())


def an_engine() -> Engine:
    config = EngineConfig(kv_tokens=1000, max_running=RUN, admission=AdmissionRule.RESERVATION)
    return Engine(config, Youngest(), PROFILE, cost=COST)


def serve(
    routers: list[Router], each: int, *, lag_s: float, output: int = OUTPUT, steps: int = STEPS
) -> Engine:
    """Drain an engine that has `each` requests of every router, and lets go of what is broken off after `lag_s`."""
    engine = an_engine()
    for number in range(each * len(routers)):
        one = make_request(str(number), tail=INPUT, output=output, client=CLIENT)
        routers[number % len(routers)].open[number] = one
        engine.submit(one, 0.0)
    now_s, broken_off, polls = 0.0, [], [router.drains_s for router in routers]
    for _ in range(steps):
        if (step := engine.step(now_s)) is None:
            break
        now_s = step.end_s
        for due_s, one in [late for late in broken_off if late[0] <= now_s]:
            broken_off.remove((due_s, one))
            engine.abort(one.id, now_s)
        for at, router in enumerate(routers):
            router.open = {n: one for n, one in router.open.items() if one.finished_s is None}
            if polls[at] <= now_s:
                polls[at] = now_s + POLL_S
                for one in router.heard(_held(engine)):
                    broken_off.append((now_s + lag_s, one))
    for router in routers:
        router.heard(_held(engine))
    return engine


def paid_elsewhere(routers: list[Router], *, output: int = OUTPUT) -> float:
    """What another engine charges for all that was taken back."""
    engine, now_s = an_engine(), 0.0
    for router in routers:
        for number, paid in router.told.items():
            one = make_request(str(number), tail=INPUT, output=output, client=CLIENT)
            one.charge_input, one.paid_output_tokens = not paid.input, paid.output_tokens
            engine.submit(one, now_s)
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
    totals = engine.accounts.clients.get(CLIENT)
    return totals.service if totals else 0.0


def _held(engine: Engine) -> HeldWork:
    totals = engine.accounts.clients[CLIENT]
    return HeldWork(
        totals.requests,
        totals.running,
        len(engine.policy),
        totals.aborted,
        totals.aborted_tokens,
    )


@examples(100)
@given(
    drains_s=st.lists(st.floats(0.2, 1.5), min_size=1, max_size=4),
    each=st.integers(3, 20),
    lag_s=st.floats(0.0, 0.8),
)
def test_what_ran_is_never_taken_for_what_did_not(
    drains_s: list[float], each: int, lag_s: float
) -> None:
    routers = [Router(at_s) for at_s in drains_s]
    serve(routers, each, lag_s=lag_s)
    requests = {n: one for r in routers for _, taken in r.taken for n, one in taken.items()}
    began = {number for number, one in requests.items() if one.admitted_s is not None}
    never = {n for router in routers for n, paid in router.told.items() if paid == UNPAID}
    # Not which, but how many: a client's requests are alike to whoever only counts them.
    assert len(began) <= len(requests) - len(never)


def test_most_of_what_waited_pays_where_it_goes_and_only_there() -> None:
    routers = [Router(0.5), Router(0.5)]
    serve(routers, 20, lag_s=0.0)
    taken = sum(len(numbers.numbers) for router in routers for numbers, _ in router.taken)
    never = [paid for router in routers for paid in router.told.values() if paid == UNPAID]
    assert len(never) > taken / 2


@examples(100)
@given(
    drains_s=st.floats(0.05, 1.5), each=st.integers(3, 20), lag_s=st.floats(0.0, 0.8),
    output=st.integers(1, 40),
)  # fmt: skip
def test_computed_work_of_a_relocated_request_is_paid_at_its_first_replica(
    drains_s: float, each: int, lag_s: float, output: int
) -> None:
    """However late the engine lets go, and whichever it runs: each token that a client gets is paid once."""
    router = Router(drains_s)
    engine = serve([router], each, lag_s=lag_s, output=output)
    paid = engine.accounts.clients[CLIENT].service + paid_elsewhere([router], output=output)
    assert paid == each * (COST.input_cost(INPUT) + COST.output_cost(INPUT, 0, output))
