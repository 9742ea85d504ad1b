"""How often a client's own requests overtake its oldest one: `Order.max_overtaken` times and no more.

Requests come and are matched at random, clients on two levels; some are answered `LATER`, some are aborted, some are retracted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH, Order, longest_match
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replica import request


class Replica:
    """A policy, and how often every request was overtaken while it was its client's oldest."""

    def __init__(self, rng: Random, quantum: float, order: Order) -> None:
        self.rng = rng
        self.policy = Dlpm(rules=DeficitRules(quantum=quantum), order=order)
        self.waiting: dict[Request, None] = {}
        self.running: list[Request] = []
        self.order = order
        self.overtaken: Counter[Request] = Counter()
        self.limits: defaultdict[str, int] = defaultdict(lambda: order.max_overtaken)
        """Of the oldest request of each client."""
        self.reached = False
        self.made = 0

    def live(self, room: int, refusing: float, disturbing: float) -> None:
        """Pass after pass, each of which lets at most `room` in."""
        for _ in range(60):
            for _ in range(self.rng.randrange(2 * min(room, 20))):
                self.arrive()
            self.serve(room, refusing)
            if self.rng.random() < disturbing:
                self.rng.choice([self.retract, self.give_up])()
            self.finish()

    def arrive(self) -> None:
        self.made += 1
        client = self.rng.choice(["s/a", "s/a", "s/a", "s/b", "t/c"])
        one = request(str(self.made), client, client[0], extend=self.rng.choice([1, 30]))
        one.matched_tokens = self.rng.choice([0, 10, 20, 30])
        self.waiting[one] = None
        self.policy.arrive(one, 0.0)

    def serve(self, room: int, refusing: float) -> None:
        """A pass. Who is told `LATER` may be overtaken in it."""
        conversation = self.policy.admissions(0.0)
        later: set[Request] = set()
        proposed = next(conversation, None)
        while proposed is not None:
            outcome = AdmissionResult.ADMITTED if room else AdmissionResult.NO_ROOM
            if room and self.rng.random() < refusing:
                outcome = AdmissionResult.LATER
                later.add(proposed)
            elif room:
                self._admitted(proposed, later)
                room -= 1
            try:
                proposed = conversation.send(outcome)
            except StopIteration:
                return

    def _admitted(self, one: Request, later: set[Request]) -> None:
        oldest = self._oldest(one.client)
        if oldest is not one and oldest not in later:
            self.overtaken[oldest] += 1
            assert self.overtaken[oldest] <= self.limits[one.client]
            self.reached |= self.overtaken[oldest] == self.limits[one.client]
        self._take_out(one)
        self.running.append(one)

    def _take_out(self, one: Request) -> None:
        is_oldest = self._oldest(one.client) is one
        del self.waiting[one], self.overtaken[one]
        if is_oldest and self.order.grows_with_queue:
            others = sum(other.client == one.client for other in self.waiting) - 1
            self.limits[one.client] = max(self.order.max_overtaken, others)

    def _oldest(self, client: str) -> Request | None:
        return next((one for one in self.waiting if one.client == client), None)

    def retract(self) -> None:
        """Who is retracted goes first, and whose place it takes counts anew afterwards."""
        if self.running:
            one = self.running.pop(self.rng.randrange(len(self.running)))
            one.matched_tokens = 0
            self.overtaken.pop(self._oldest(one.client), None)
            self.waiting = {one: None, **self.waiting}
            self.policy.requeue(one, 0.0)

    def give_up(self) -> None:
        if self.waiting:
            one = self.rng.choice([*self.waiting])
            self._take_out(one)
            self.policy.leave(one, 0.0)

    def finish(self) -> None:
        for one in self.running:
            self.policy.leave(one, 0.0)
        self.running = []


@pytest.mark.parametrize(
    "order",
    [
        LONGEST_MATCH,
        *(Order(longest_match, most) for most in (1, 8)),
        Order(longest_match, 8, grows_with_queue=True),
    ],
    ids=["default", "once", "eight", "grows"],
)
def test_the_oldest_of_a_client_is_overtaken_by_its_own_so_often_and_no_more(order: Order):
    reached = 0

    @given(
        chance=st.integers(0, 10_000),
        quantum=st.sampled_from([10, 300, 10_000]),
        room=st.sampled_from([3, 40, 200]),
        refusing=st.sampled_from([0.0, 0.1]),
        disturbing=st.sampled_from([0.0, 0.05]),
    )
    def check(chance: int, quantum: float, room: int, refusing: float, disturbing: float) -> None:
        nonlocal reached
        replica = Replica(Random(chance), quantum, order)
        replica.live(room, refusing, disturbing)
        reached += replica.reached

    check()
    assert reached > 0
