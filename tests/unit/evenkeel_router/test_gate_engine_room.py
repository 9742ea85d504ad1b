"""How many more requests a router may send to an engine with a small batch that others use too."""

from __future__ import annotations

from typing import Any

from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.engine_room import STARVES, EngineRoom, Spare
from evenkeel_router.gate.sharing import ClientAtGate, Sharing
from evenkeel_router.gate.window import GatedRequest

A, B = "ns/a/c", "ns/b/c"
PLACES = 2


def request(**fields: Any) -> GatedRequest:
    return GatedRequest("r", A, "ns/a", 0.0, input_tokens=9, max_output_tokens=9, **fields)


def room(
    *, here: float = 0.0, elsewhere: float = 0.0, running: float = 0.0, spare: Spare | None = None
) -> EngineRoom:
    """An engine with two places. Requests of A wait here and of B at another router, which runs so many."""
    sharing = Sharing("one", EqualWeights())
    at = {"one": {A: ClientAtGate(0.0, here)}, "two": {B: ClientAtGate(0.0, elsewhere)}}
    sharing.update(at, EqualWeights(), quantum=0.0)
    made = EngineRoom(sharing, spare or Spare())
    made.published_elsewhere = running
    read(made, running)
    made.engine.limit = PLACES
    return made


def read(room: EngineRoom, running: float, waiting: float = 0.0, *, waits: bool = True) -> None:
    load = EngineLoad(running, waiting, 0.5)
    room.read(load, unanswered=0, held_up=False, streams_held_up=False, waits=waits)


def sent(room: EngineRoom) -> int:
    """How many more go there."""
    for number in range(9):
        if not room.takes(1):
            return number
        room.went(request())
    raise AssertionError("it has no limit")


def test_a_router_that_is_alone_uses_all_places() -> None:
    assert sent(room(here=3)) == PLACES


def test_places_are_dealt_out_while_requests_wait_at_other_routers() -> None:
    assert sent(room(here=3, elsewhere=3)) == 1


def test_nothing_is_sent_to_an_engine_that_is_full_of_others_requests() -> None:
    assert sent(room(here=3, elsewhere=3, running=2)) == 0
    assert sent(room(here=1, running=2)) == 0


def test_a_request_takes_the_place_of_another_one_of_its_router() -> None:
    full = room(here=3, elsewhere=3, running=1)
    first = request()
    full.went(first)
    read(full, 2)
    full.left(first)
    full.published_elsewhere = 2  # old: one of them has ended
    assert full.takes(1)


def test_requests_that_starve_get_the_spare_place_of_their_router() -> None:
    spare = Spare()
    one, other = (room(here=3, elsewhere=3, running=2, spare=spare) for _ in range(2))
    for each in (one, other):
        for _ in range(STARVES):
            read(each, 2)
    last = request()
    assert one.takes(1)
    one.went(last)
    assert not one.takes(1)
    assert not other.takes(1)
    one.left(last)
    assert other.takes(1)


def test_a_place_beyond_the_own_portion_is_owed_to_others() -> None:
    shared = room(here=3, elsewhere=3)
    assert not shared.owes_place
    shared.went(request())
    assert shared.owes_place
    shared.went(request(lent=True))
    assert not shared.owes_place


def test_a_loan_counts_once() -> None:
    """The other router publishes the request that runs on it."""
    lender = room(here=3, elsewhere=3)
    lender.went(request(lent=True))
    lender.published_elsewhere = 1
    read(lender, 1)
    assert lender._elsewhere == 0
    borrower = room(here=3, elsewhere=3, running=1)
    borrower.went(request(is_outside=True))
    read(borrower, 1)
    assert (borrower.borrowed, borrower._read_own) == (1, 0)


def test_routers_with_too_many_requests_give_up_those_beyond_their_portions() -> None:
    full = room()
    for _ in range(PLACES):
        full.went(request())
    full.published_elsewhere = 4
    read(full, 2, 4)
    full.engine.limit = PLACES
    full.left(request())
    assert not full.takes(1)


def test_a_borrowed_place_is_its_routers_again_when_the_request_ends() -> None:
    """It was read while the request ran there: it is not a place that became free since."""
    shared, guest = room(here=3, elsewhere=3, running=1), request(is_outside=True)
    shared.went(guest)
    read(shared, 2)
    assert not shared.takes(1)
    shared.left(guest)
    assert not shared.takes(1)


def test_an_engine_that_others_fill_is_not_known_to_have_a_place() -> None:
    """A limit above the batch is an attempt for a router without requests there, too."""
    shared = room(here=3, elsewhere=3, running=2)
    for waiting in (2, 2):
        read(shared, 2, waiting)
    shared.engine.limit = PLACES + 1
    assert not shared.is_known(1)
    empty = room(here=3)
    empty.engine.limit = PLACES + 1
    assert empty.is_known(1)
