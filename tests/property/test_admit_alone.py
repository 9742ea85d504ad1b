"""`admit_alone` leaves a policy as `arrive` and a pass leave it."""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replica import admit, decode, request

CLIENTS = ("a", "b", "c")


class Replica:
    """A policy, and its requests by id."""

    def __init__(self, quantum: float | None, *, short: bool) -> None:
        self.policy = Dlpm(rules=DeficitRules(quantum=quantum))
        self.short = short
        self.requests: dict[str, Request] = {}
        self.last: list[str] = []

    def send(self, number: int, client: str, extend: int) -> list[str]:
        """The requests that the batch takes; it has three places."""
        one = request(f"{client}{number}", client, f"t{client}", extend=extend)
        running = [id for id, other in self.requests.items() if other not in self.policy.waiting()]
        self.requests[one.id] = one
        room, alone = 3 - len(running), not len(self.policy)
        if self.short and alone and room > 0 and self.policy.admit_alone(one, float(number)):
            return [one.id]
        self.policy.arrive(one, float(number))
        return admit(self.policy, room=room)

    def end(self, number: int) -> list[str]:
        """One of the running requests makes tokens, turns out to have computed fewer, and leaves."""
        running = [one for one in self.requests.values() if one not in self.policy.waiting()]
        if not running:
            return []
        one = running[number % len(running)]
        decode(self.policy, one, 1 + number % 7)
        self.policy.corrected(
            one, extend_tokens=max(1, one.extend_tokens - number % 90), output_tokens=9
        )
        self.policy.leave(one, float(number))
        del self.requests[one.id]
        return admit(self.policy, room=1)


step = st.tuples(st.sampled_from(CLIENTS), st.integers(1, 300), st.booleans())


@given(quantum=st.sampled_from([None, 30.0, 400.0]), steps=st.lists(step, max_size=60))
def test_the_short_way_changes_no_decision_and_no_account(
    quantum: float | None, steps: list[tuple[str, int, bool]]
) -> None:
    short, usual = Replica(quantum, short=True), Replica(quantum, short=False)
    for number, (client, tokens, comes) in enumerate(steps):
        for replica in (short, usual):
            replica.last = replica.send(number, client, tokens) if comes else replica.end(tokens)
        assert short.last == usual.last
        assert short.policy.clients() == usual.policy.clients()
