"""Routers lend each other places at engines (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from evenkeel_contract.placeswire import (
    PlaceGrant,
    PlacesAnswer,
    PlacesAsk,
    PlacesMessageError,
    PlaceWant,
    decode_answer,
    decode_ask,
    encode,
)
from evenkeel_router.gate.borrowing import Borrowing, Transport
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.lending import AT_ONCE, LONGEST_LOAN_S, LOST_S, Lending
from evenkeel_router.ledger.contacts import Peer

from tests.support.router_rooms import is_empty
from tests.support.routers import until
from tests.unit.evenkeel_router.test_gate_calls import FLOOD, LIGHT, PLACES, World

PEER = Peer("a", "http://a")


class Lender(World):
    """A router whose engines are full of a flood's requests, and more of them wait."""

    def __init__(self, replicas: int = 4) -> None:
        super().__init__(replicas)
        self.lending: Lending = self.rooms.lending
        self.ask(FLOOD, 4 * PLACES * replicas)

    async def asked(self, ask: PlacesAsk) -> PlacesAnswer:
        """Ask, and end requests until there is a place."""
        answer = asyncio.ensure_future(self.lending.answer(ask))
        for _ in range(40):
            await asyncio.sleep(0)
            if answer.done():
                break
            self.end(0)
        return await answer


def ask(
    sequence: int,
    *clients: str,
    seen: int = 0,
    held: Sequence[int] = (),
    asked: str = "router",
    router: str = "b",
) -> PlacesAsk:
    wants = tuple(PlaceWant(client, 100, 9) for client in clients)
    return PlacesAsk(router, asked, sequence, seen, tuple(held), wants)


async def test_a_place_that_is_free_is_lent_to_a_client_of_another_router() -> None:
    lender = Lender()
    answer = await lender.asked(ask(1, LIGHT.identity))
    (grant,) = answer.grants
    assert (answer.router, grant.number, grant.client) == ("router", 1, LIGHT.identity)
    gate = lender.rooms.gates.gate(grant.replica)
    assert gate is not None
    assert gate.at_engine == PLACES
    assert lender.lending.lent == 1
    assert (
        LIGHT.identity not in gate.held(lender.rooms.service_ledger.accounting.cost)
        or not (gate.held(lender.rooms.service_ledger.accounting.cost)[LIGHT.identity].state[3])
    ), "the other router publishes its request"
    waits = gate.clients.total()
    await lender.lending.answer(ask(2, seen=1, held=[1]))
    assert gate.clients.total() == waits
    await lender.lending.answer(ask(3, seen=1))
    assert lender.lending.lent == 0
    assert gate.clients.total() == waits - 1, "a request of the flood has the place now"
    assert gate.at_engine == PLACES


async def test_a_loan_costs_its_client_nothing_in_the_end() -> None:
    lender = Lender()
    (grant,) = (await lender.asked(ask(1, LIGHT.identity))).grants
    gate = lender.rooms.gates.gate(grant.replica)
    assert gate is not None
    before = gate.policy.clients()[LIGHT.identity].deficit
    await lender.lending.answer(ask(2, seen=1))
    after = gate.policy.clients().get(LIGHT.identity)
    assert after is None or after.deficit > before


async def test_a_place_that_may_not_have_arrived_is_offered_again() -> None:
    lender = Lender()
    first = await lender.asked(ask(1, LIGHT.identity))
    again = await lender.lending.answer(ask(2, LIGHT.identity))
    assert again.grants == first.grants
    assert lender.lending.lent == 1


async def test_few_places_for_one_client_are_on_their_way() -> None:
    lender = Lender()
    await lender.asked(ask(1, LIGHT.identity))
    for number in range(20):
        lender.end(number)
    assert lender.lending.lent == AT_ONCE


async def test_a_further_question_gets_no_more_places_than_are_on_their_way() -> None:
    lender = Lender()
    await lender.asked(ask(1, LIGHT.identity))
    for number in range(20):
        lender.end(number)
    await lender.lending.answer(ask(2, LIGHT.identity))
    for number in range(20):
        lender.end(number)
    assert lender.lending.lent == AT_ONCE


async def test_a_place_that_its_router_cannot_use_goes_to_a_request_here() -> None:
    lender = Lender()
    (grant,) = (await lender.asked(ask(1, LIGHT.identity))).grants
    gate = lender.rooms.gates.gate(grant.replica)
    assert gate is not None
    waits = gate.clients.total()
    question = asyncio.ensure_future(lender.lending.answer(ask(2, LIGHT.identity, seen=1)))
    await asyncio.sleep(0)
    assert (lender.lending.lent, gate.at_engine) == (0, PLACES)
    assert gate.clients.total() == waits - 1
    lender.lending.end()
    await question


@pytest.mark.parametrize("used", [False, True])
async def test_only_a_place_that_was_used_is_lent_on_at_once(used: bool) -> None:
    """A place that came back unused goes to a request that waits here: questions of other routers may be as old."""
    lender = Lender()
    (grant,) = (await lender.asked(ask(1, LIGHT.identity))).grants
    gate = lender.rooms.gates.gate(grant.replica)
    assert gate is not None
    if used:
        await lender.lending.answer(ask(2, seen=1, held=[1]))
    third = asyncio.ensure_future(lender.lending.answer(ask(1, "ns/third/c", router="c")))
    await asyncio.sleep(0)
    assert lender.lending.lent == 1
    waits = gate.clients.total()
    back = asyncio.ensure_future(lender.lending.answer(ask(3, seen=1)))
    await asyncio.sleep(0)
    assert lender.lending.lent == used
    assert gate.clients.total() == waits - (not used)
    lender.lending.end()
    assert [one.client for one in (await third).grants] == ["ns/third/c"] * used
    assert (await back).grants == ()


async def test_a_place_that_is_held_for_too_long_is_free() -> None:
    lender = Lender()
    await lender.asked(ask(1, LIGHT.identity))
    await lender.lending.answer(ask(2, seen=1, held=[1]))
    assert lender.lending.lent == 1
    (loan,) = lender.lending._borrowers["b"]._loans.values()
    loan.since_s -= LONGEST_LOAN_S + 1
    await lender.lending.answer(ask(3, seen=1, held=[1]))
    assert lender.lending.lent == 0


async def test_an_older_question_changes_nothing() -> None:
    lender = Lender()
    await lender.asked(ask(5, LIGHT.identity))
    await lender.lending.answer(ask(4, seen=1))
    assert lender.lending.lent == 1


async def test_numbers_of_another_process_hold_nothing() -> None:
    lender = Lender()
    await lender.asked(ask(1, LIGHT.identity))
    await lender.lending.answer(ask(2, seen=9, held=[1], asked="an earlier one"))
    assert lender.lending.lent == 0


async def test_a_router_that_asks_no_more_holds_nothing() -> None:
    lender = Lender()
    await lender.asked(ask(1, LIGHT.identity))
    lender.lending.expire()
    assert lender.lending.lent == 1
    lender.lending._borrowers["b"].heard_s -= LOST_S + 1
    lender.lending.expire()
    assert (lender.lending.lent, len(lender.rooms.gates.foreign)) == (0, 0)


@pytest.mark.parametrize("name", ["light", "ns/light", "/a/b", "a/b/c/d", "//"])
async def test_a_name_that_is_no_identity_gets_no_place(name: str) -> None:
    lender = Lender()
    question = asyncio.ensure_future(lender.lending.answer(ask(1, name)))
    await asyncio.sleep(0)
    for number in range(20):
        lender.end(number)
    assert lender.lending.lent == 0
    lender.lending.end()
    assert (await question).grants == ()


async def test_a_router_lends_itself_nothing() -> None:
    lender = Lender()
    answer = await lender.lending.answer(ask(1, LIGHT.identity, router="router"))
    assert answer == PlacesAnswer("router", ())


class Borrower(World):
    """A router that knows that its engines are full of another router's requests."""

    def __init__(self, replicas: int = 4) -> None:
        super().__init__(replicas, incarnation="b")
        for gate in self.gates:
            gate.read(EngineLoad(PLACES, 0, 0.5), 0.0)
            gate.share({}, self.rooms.service_ledger.weights, running_elsewhere=PLACES)


@asynccontextmanager
async def borrowing(borrower: World, send: Transport) -> AsyncIterator[None]:
    """Its questions to one peer."""
    gates, router = borrower.rooms.gates, borrower.rooms.service_ledger.ledger.router
    task = asyncio.create_task(
        Borrowing(gates, router, send, peers=lambda: [PEER], interval_s=lambda: 0.01).run()
    )
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_request_that_finds_no_room_gets_a_place_of_another_router() -> None:
    lender, borrower = Lender(), Borrower()

    async def send(peer: Peer, question: PlacesAsk) -> PlacesAnswer:
        answer = await lender.lending.answer(decode_ask(encode(question)))
        return decode_answer(encode(answer))

    async with borrowing(borrower, send):
        borrower.ask(LIGHT)
        assert borrower.waits(LIGHT) == 1
        await until(lambda: len(lender.rooms.gates.foreign) == 1, "the question")
        while not lender.lending.lent:
            lender.end(0)
        ((waiting, _),) = borrower.open.items()
        await until(lambda: waiting.turn is not None and bool(waiting.turn.called), "the place")
        borrower.follow()
        (attempt,) = borrower.at_engines()
        assert attempt.turn is not None
        assert attempt.turn.request.is_outside
        assert lender.lending.lent == 1
        borrower.end(0)
        await until(lambda: lender.lending.lent == 0, "the place to be given back")
    assert is_empty(borrower.rooms)
    assert lender.is_within_limits()


async def test_a_place_that_no_request_needs_is_given_back() -> None:
    lender, borrower = Lender(), Borrower()

    async def send(peer: Peer, question: PlacesAsk) -> PlacesAnswer:
        return await lender.lending.answer(question)

    async with borrowing(borrower, send):
        borrower.ask(LIGHT)
        await until(lambda: len(lender.rooms.gates.foreign) == 1, "the question")
        ((attempt, _),) = borrower.open.items()
        attempt.refused()  # its client leaves
        while not lender.lending.lent:
            lender.end(0)
        await until(lambda: lender.lending.lent == 0, "the place to be given back")
    assert is_empty(borrower.rooms)


class Scripted:
    """A peer that gives these answers, then none."""

    def __init__(self, *answers: PlacesAnswer) -> None:
        self._answers = answers
        self.asked: list[PlacesAsk] = []

    async def __call__(self, peer: Peer, question: PlacesAsk) -> PlacesAnswer:
        self.asked.append(question)
        if len(self.asked) > len(self._answers):
            await asyncio.Event().wait()
        return self._answers[len(self.asked) - 1]

    async def all_said(self) -> PlacesAsk:
        """The question after all answers."""
        await until(lambda: len(self.asked) > len(self._answers), "the next question")
        return self.asked[-1]


GRANT = PlaceGrant(1, LIGHT.identity, "r0")


async def test_a_place_that_comes_twice_is_taken_once() -> None:
    borrower, peer = Borrower(), Scripted(*[PlacesAnswer("a", (GRANT,))] * 2)
    async with borrowing(borrower, peer):
        borrower.ask(LIGHT, 2)
        question = await peer.all_said()
        assert (question.seen, question.held) == (1, (1,))
        assert borrower.rooms.gates.moved == 1


async def test_nothing_is_held_of_a_process_that_is_gone() -> None:
    borrower = Borrower()
    peer = Scripted(PlacesAnswer("a", (GRANT,)), PlacesAnswer("a again", ()))
    async with borrowing(borrower, peer):
        borrower.ask(LIGHT, 2)
        await until(lambda: len(peer.asked) == 2, "the second question")
        borrower.ask(LIGHT)
        question = await peer.all_said()
    assert (question.asked, question.seen, question.held) == ("a again", 0, ())


async def test_the_end_of_an_older_loan_leaves_one_of_its_number() -> None:
    borrower = Borrower()
    peer = Scripted(PlacesAnswer("a", (GRANT,)), PlacesAnswer("a again", (GRANT,)))
    async with borrowing(borrower, peer):
        borrower.ask(LIGHT, 3)
        assert (await peer.all_said()).held == (1,)
        borrower.follow()
        borrower.end(0)
        count = len(peer.asked)
        borrower.ask(FLOOD)
        await until(lambda: len(peer.asked) > count, "a further question")
        assert peer.asked[-1].held == (1,)


async def test_a_router_that_holds_the_most_wants_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_router.gate.borrowing.MOST_HELD", 1)
    borrower, peer = Borrower(), Scripted(PlacesAnswer("a", (GRANT,)))
    async with borrowing(borrower, peer):
        borrower.ask(LIGHT, 2)
        question = await peer.all_said()
    assert (question.held, question.wants) == ((1,), ())


async def test_a_peer_that_does_not_answer_delays_no_request() -> None:
    borrower, asked = Borrower(), []

    async def send(peer: Peer, question: PlacesAsk) -> PlacesAnswer:
        asked.append(question)
        raise OSError("it is away")

    async with borrowing(borrower, send):
        borrower.ask(LIGHT)
        await until(lambda: bool(asked), "the question")
        assert borrower.waits(LIGHT) == 1
        for gate in borrower.gates:  # the engines are found to have room
            gate.read(EngineLoad(0, 0, 0.5), 0.0)
        borrower.rooms.gates.rebalance()
        assert borrower.waits(LIGHT) == 0


async def test_a_router_that_finds_itself_among_its_peers_asks_itself_rarely() -> None:
    borrower, asked = Borrower(), []

    async def send(peer: Peer, question: PlacesAsk) -> PlacesAnswer:
        asked.append(question)
        return await borrower.rooms.lending.answer(question)

    async with borrowing(borrower, send):
        borrower.ask(LIGHT)
        await until(lambda: bool(asked), "the question")
        await asyncio.sleep(0.1)
    assert len(asked) == 1


def test_a_message_with_too_much_or_of_another_version_is_refused() -> None:
    question = ask(1, LIGHT.identity, seen=1, held=[1])
    assert decode_ask(encode(question)) == question
    answer = PlacesAnswer("router", (PlaceGrant(1, LIGHT.identity, "r0"),))
    assert decode_answer(encode(answer)) == answer
    for data in (b"", b"\x02" + encode(question)[1:], encode(ask(1, *["a"] * 65)), encode(answer)):
        with pytest.raises(PlacesMessageError):
            decode_ask(data)
