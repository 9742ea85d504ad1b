"""Free places that call requests from other gates, and places lent to other routers (R12): limits hold, and each request is served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from evenkeel_router.gate.lending import LOST_S
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.router_rooms import client, is_empty
from tests.unit.evenkeel_router.test_gate_calls import FLOOD, LIGHT, PLACES, World
from tests.unit.evenkeel_router.test_gate_lending import Lender, ask

Step = tuple[int, int]


@examples(40)
@given(
    replicas=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=60),
)
def test_engines_get_no_more_than_their_limits_and_no_request_is_lost(
    replicas: int, steps: Sequence[Step]
) -> None:
    async def run() -> None:
        world, clients = World(replicas), [client(f"t{n}") for n in range(4)]
        for kind, number in steps:
            if kind < 5:
                world.ask(clients[min(number, 3)], 1 + number % 7)
            else:
                world.end(number)
            assert world.is_within_limits()
        for _ in range(len(world.open)):
            world.end(0)
        assert not world.open
        assert is_empty(world.rooms)
        assert not len(world.rooms.gates._waiting)

    asyncio.run(run())


@examples(20)
@given(floods=st.integers(1, 6), replicas=st.integers(2, 6), numbers=st.randoms())
def test_no_client_is_passed_for_ever(floods: int, replicas: int, numbers: Random) -> None:
    """Each flood keeps requests waiting at every gate, yet a single request gets a place within a bound."""

    async def run() -> None:
        world = World(replicas)
        clients = [client(f"flood{n}") for n in range(floods)]
        world.ask(clients[0], PLACES * replicas)
        for one in clients:
            world.ask(one, 3 * replicas)
        world.ask(LIGHT)
        ended = 0
        while world.waits(LIGHT):
            world.end(numbers.randrange(99))
            for one in clients:
                world.ask(one, max(0, 3 * replicas - world.waits(one)))
            ended += 1
            assert ended <= 12 * (1 + floods) * PLACES

    asyncio.run(run())


@examples(30)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60),
)
def test_loans_and_own_requests_together_stay_within_the_limits(
    steps: Sequence[tuple[int, int]],
) -> None:
    async def run() -> None:
        lender = Lender(3)
        sequence = {"b": 0, "c": 0}
        polls = []
        for kind, number in steps:
            if kind < 3:
                lender.end(number)
            elif kind == 3:
                lender.ask(FLOOD)
            else:
                router = "bc"[number % 2]
                sequence[router] += 1
                question = ask(sequence[router], f"ns/t{number % 5}/c", router=router, seen=number % 4, held=[1])  # fmt: skip
                polls.append(asyncio.ensure_future(lender.lending.answer(question)))
                await asyncio.sleep(0)
            assert lender.is_within_limits()
        for borrower in lender.lending._borrowers.values():
            borrower.heard_s -= LOST_S + 1
        lender.lending.expire()
        await asyncio.gather(*polls)
        for _ in range(len(lender.open)):
            lender.end(0)
        assert is_empty(lender.rooms)
        assert (lender.lending.lent, len(lender.rooms.gates.foreign)) == (0, 0)

    asyncio.run(run())
