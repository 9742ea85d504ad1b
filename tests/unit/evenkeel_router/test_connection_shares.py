"""Who loses a connection when a port is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from evenkeel_router.transport.connection_shares import (
    NO_KEY,
    Closing,
    ConnectionShares,
    Yields,
    losses,
    party_of,
)
from hypothesis import given
from hypothesis import strategies as st

BOUND = 64


@dataclass(eq=False)
class Fake:
    """A connection without a socket."""

    holder: str
    since_s: float = 0.0
    waits: bool = False
    working: bool = False
    closed: list[Fake] = field(default_factory=list)

    @property
    def yields(self) -> Yields | None:
        return None if self.working else (self.waits, self.since_s)

    def make_room(self) -> None:
        self.closed.append(self)


def full(*groups: tuple[str, int], **state: bool) -> tuple[ConnectionShares, list[Fake]]:
    """A port with so many connections of each holder, opened in turn one second apart; and where closed ones are listed."""
    shares, closed = ConnectionShares(lambda: BOUND), list[Fake]()
    for holder, count in groups:
        for _ in range(count):
            shares.add(Fake(holder, float(len(shares.open)), closed=closed, **state))
    return shares, closed


def test_the_tenant_that_holds_most_loses_its_oldest_connection() -> None:
    shares, closed = full(("ns/small/c", 10), ("ns/large/c", 40), ("/1.1.1.1", 14))
    new = Fake("/2.2.2.2", 99.0, closed=closed)
    shares.add(new)
    assert [(one.holder, one.since_s) for one in closed] == [("ns/large/c", 10.0)]
    assert new in shares.open
    assert shares.closed == {("ns/large", Closing.FULL): 1}


def test_within_a_tenant_the_client_that_holds_most_loses() -> None:
    shares, closed = full(("ns/a/few", 10), ("ns/a/many", 30), ("ns/b/c", 24))
    shares.add(Fake("/2.2.2.2", 99.0))
    assert [one.holder for one in closed] == ["ns/a/many"]


def test_idle_connections_of_a_tenant_close_before_bodies_that_arrive() -> None:
    shares, closed = full(("ns/a/c", 20), waits=True)
    for number in range(44):
        shares.add(Fake("ns/a/c", 20.0 + number, closed=closed))
    shares.add(Fake("/2.2.2.2", 99.0))
    assert [(one.waits, one.since_s) for one in closed] == [(False, 20.0)]


def test_requests_that_the_router_works_on_close_for_nobody() -> None:
    shares, closed = full(("ns/a/c", 50), working=True)
    for number in range(14):
        shares.add(Fake("ns/b/c", float(number), closed=closed))
    shares.add(Fake("/2.2.2.2", 99.0))
    assert [(one.holder, one.since_s) for one in closed] == [("ns/b/c", 0.0)]


def test_a_port_on_which_all_work_closes_nothing() -> None:
    shares, closed = full(("ns/a/c", BOUND), working=True)
    shares.add(Fake("ns/a/c", 99.0, working=True))
    assert not closed
    assert len(shares.open) == BOUND + 1


def test_without_a_key_a_quarter_is_all_that_is_held_when_others_come() -> None:
    shares, closed = full(("/1.1.1.1", 40), ("/2.2.2.2", 24))
    for number in range(60):
        shares.add(Fake("ns/a/c", 100.0 + number, closed=closed))
    kept = Counter(one.holder for one in shares.open)
    assert kept == {"ns/a/c": 48, "/1.1.1.1": 8, "/2.2.2.2": 8}


def test_without_a_key_the_address_that_holds_most_loses_and_not_the_new_one() -> None:
    shares, closed = full(("/1.1.1.1", 40), *((f"/9.9.9.{n}", 1) for n in range(24)))
    for number in range(20):
        shares.add(Fake(f"/8.8.8.{number}", 100.0 + number, closed=closed))
    assert {one.holder for one in closed} == {"/1.1.1.1"}
    assert [one.since_s for one in closed] == [float(n) for n in range(20)]


def test_without_a_key_unread_answers_close_before_new_connections() -> None:
    shares, closed = full(("/1.1.1.1", 32))
    for number in range(32):
        shares.add(Fake("/1.1.1.1", 100.0 + number, waits=True, closed=closed))
    shares.add(Fake("/1.1.1.1", 200.0, closed=closed))
    assert [(one.waits, one.since_s) for one in closed] == [(True, 100.0)]


def test_a_connection_that_got_a_request_meanwhile_is_not_closed() -> None:
    shares, closed = ConnectionShares(lambda: 640), list[Fake]()
    fakes = [Fake("ns/a/c", float(n), closed=closed) for n in range(640)]
    for one in fakes:
        shares.add(one)
    shares.add(Fake("ns/b/c", 999.0, closed=closed))  # chooses eleven at a time
    fakes[1].working = True
    fakes[2].since_s = 1000.0
    shares.remove(fakes[3])
    for _ in range(2):
        shares.add(Fake("ns/b/c", 999.0, closed=closed))
    assert closed == [fakes[0], fakes[4]]


def test_a_smaller_bound_closes_as_many_as_are_too_many() -> None:
    bound, closed = 64, list[Fake]()
    shares = ConnectionShares(lambda: bound)
    for number in range(64):
        shares.add(Fake("ns/a/c", float(number), closed=closed))
    bound = 16
    shares.add(Fake("ns/b/c", 99.0, closed=closed))
    assert len(shares.open) == 16
    assert all(one.holder == "ns/a/c" for one in closed)


HELD = st.dictionaries(
    st.sampled_from(
        [f"{party}/{name}" for party in ("", "ns/a", "ns/b", "ns/c") for name in "xyz"]
    ),
    st.integers(1, 40),
    min_size=1,
)


@given(HELD, st.integers(1, 60), st.integers(1, 30))
def test_no_party_within_an_equal_share_loses_to_a_larger_one(
    held: dict[str, int], bound: int, count: int
) -> None:
    lost = losses(Counter(held), Counter(held), bound, count)
    assert sum(lost.values()) == min(count, sum(held.values()))
    sizes: Counter[str] = Counter()
    for holder, size in held.items():
        sizes[party_of(holder)] += size
    left = sizes.copy()
    for holder, size in lost.items():
        left[party_of(holder)] -= size
    losers = {party_of(holder) for holder in lost} - {NO_KEY}
    for loser in losers:
        assert all(left[loser] >= left[other] - 1 for other in sizes if other != NO_KEY)
    with_key = {party for party in sizes if party != NO_KEY}
    if any(left[party] for party in with_key) and left[NO_KEY] * 4 > bound:
        assert not losers, "those without a key held more than a quarter until the end"


@given(HELD, st.data())
def test_only_what_may_close_is_lost(held: dict[str, int], data: st.DataObject) -> None:
    may_close = Counter({one: data.draw(st.integers(0, size)) for one, size in held.items()})
    lost = losses(Counter(held), +may_close, 40, 500)
    assert lost == +may_close
