"""Parts of a replica, and clients that are ahead, from the figures of all gates."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_router.gate.sharing import STALL, ClientAtGate, Sharing
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

A, B, C = "ns/a/c", "ns/b/c", "ns/c/c"
WEIGHTS = EqualWeights()
At = Mapping[str, Mapping[str, tuple[float, float]]]


def update(sharing: Sharing, at: At, *, quantum: float = 0.0) -> dict[str, float]:
    """`at`: by router and client, (service, waiting)."""
    rows = {
        router: {client: ClientAtGate(*row) for client, row in clients.items()}
        for router, clients in at.items()
    }
    return sharing.update(rows, WEIGHTS, quantum=quantum)


@pytest.mark.parametrize(
    ("others", "want"),
    [
        ({}, 1.0),
        ({"two": {B: (0.0, 0.0)}}, 1.0),  # nothing waits there
        ({"two": {B: (0.0, 9.0)}}, 0.5),
        ({"two": {A: (0.0, 1.0)}}, 0.75),
        ({"two": {B: (0.0, 1.0)}, "three": {C: (0.0, 5.0)}}, 1 / 3),
        ({"two": {A: (0.0, 3.0), B: (0.0, 1.0)}}, 0.25),
    ],
)
def test_the_part_is_what_the_clients_that_wait_here_are_owed(others: At, want: float) -> None:
    sharing = Sharing("one", WEIGHTS)
    update(sharing, {"one": {A: (0.0, 3.0)}, **others})
    assert sharing.part == pytest.approx(want)


def test_a_request_at_an_empty_gate_has_a_part_at_once() -> None:
    sharing = Sharing("one", WEIGHTS)
    update(sharing, {"one": {A: (0.0, 0.0)}, "two": {B: (0.0, 1.0)}})
    assert sharing.part == 0
    sharing.divide({A: 1.0})
    assert sharing.part == 0.5


def test_only_service_at_other_routers_since_the_last_news_is_charged_here() -> None:
    sharing = Sharing("one", WEIGHTS)
    assert not update(sharing, {"one": {A: (10.0, 1.0)}, "two": {A: (100.0, 1.0)}})
    news = {"one": {A: (15.0, 1.0)}, "two": {A: (107.0, 1.0)}, "new": {A: (50.0, 1.0)}}
    assert update(sharing, news) == {A: 7.0}
    assert update(sharing, news) == {}


def served(sharing: Sharing, *, here: float, there: float, times: int = 6) -> None:
    """A waits here and B at another router, and get so much from news to news."""
    for n in range(times + 1):
        update(sharing, {"one": {A: (n * here, 1.0)}, "two": {B: (n * there, 1.0)}}, quantum=10.0)


def test_a_gate_whose_clients_are_ahead_waits_for_the_others() -> None:
    sharing = Sharing("one", WEIGHTS)
    served(sharing, here=90.0, there=10.0)
    assert sharing.holds([A])
    assert not sharing.holds([A, C])  # C got nothing yet
    behind = Sharing("one", WEIGHTS)
    served(behind, here=10.0, there=90.0)
    assert not behind.holds([A])
    even = Sharing("one", WEIGHTS)
    served(even, here=50.0, there=50.0)
    assert not even.holds([A])


def test_a_client_that_no_longer_waits_holds_up_no_other() -> None:
    sharing = Sharing("one", WEIGHTS)
    served(sharing, here=90.0, there=10.0)
    update(sharing, {"one": {A: (600.0, 1.0)}, "two": {B: (70.0, 0.0)}})
    assert not sharing.holds([A])


def test_a_router_that_cannot_use_its_part_is_not_waited_for_for_good() -> None:
    sharing = Sharing("one", WEIGHTS)
    served(sharing, here=90.0, there=10.0)
    still = {"one": {A: (540.0, 1.0)}, "two": {B: (60.0, 1.0)}}
    for _ in range(STALL - 1):
        update(sharing, still)
        assert sharing.holds([A])
    update(sharing, still)
    assert not sharing.holds([A])


def test_the_debt_of_an_idle_client_fades_and_its_credit_is_lost() -> None:
    sharing = Sharing("one", WEIGHTS)
    served(sharing, here=90.0, there=10.0)
    for n in range(30):  # A is away, and B and C wait at the other router
        at = {B: (60.0 + 20 * n, 1.0), C: (20.0 * n, 1.0)}
        update(sharing, {"one": {A: (540.0, 0.0)}, "two": at}, quantum=10.0)
    update(sharing, {"one": {A: (540.0, 1.0)}, "two": {B: (640.0, 1.0)}}, quantum=10.0)
    assert not sharing.holds([A])


@examples(100)
@given(
    waiting=st.lists(
        st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 50), max_size=3),
        min_size=1,
        max_size=5,
    ),
    places=st.integers(1, 9),
    offset=st.floats(0, 1, exclude_max=True),
)
def test_the_portions_of_all_routers_are_whole_and_make_up_the_places(
    waiting: list[dict[str, int]], places: int, offset: float
) -> None:
    at = {
        f"r{n}": {client: (0.0, float(count)) for client, count in one.items()}
        for n, one in enumerate(waiting)
    }
    portions = []
    for router in at:
        sharing = Sharing(router, WEIGHTS, offset=offset)
        update(sharing, at)
        portions.append(sharing.portion(places))
        if sharing.others_wait:
            assert abs(portions[-1] - places * sharing.part) < 1 + 1e-6
    if sum(map(bool, waiting)) > 1:
        assert sum(portions) == places


def test_over_many_replicas_a_small_part_is_a_place_at_some() -> None:
    at = {"one": {A: (0.0, 1.0)}, "two": {A: (0.0, 7.0)}}
    places = []
    for number in range(64):
        sharing = Sharing("one", WEIGHTS, offset=number / 64)
        update(sharing, at)
        places.append(sharing.portion(2))
    assert sum(places) == 64 * 2 / 8
