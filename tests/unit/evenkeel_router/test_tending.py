"""What departed replicas left is computed before it is needed; the first book waits until the past is known (R8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.ledger import Totals
from evenkeel_router.app import background
from evenkeel_router.core.reported import Seen
from evenkeel_router.edge.tending import Tending, reckon
from evenkeel_router.state import RouterState
from evenkeel_router.stores.keeping import Keeping

from tests.support.routers import PATIENCE_S, QUICK, config_for
from tests.unit.evenkeel_router.test_keeping import Memory


async def test_what_the_departed_left_is_at_hand_and_what_lives_is_not_touched() -> None:
    state = RouterState(config_for())
    clients = [f"ns/t/{n}" for n in range(1000)]
    rows = [ClientReport(name, 0, 0, 0, 9.0, 9.0, 9.0, 1, -5.0, -5.0, 0, 0) for name in clients]
    for replica, incarnation in (("r0", "gone"), ("r1", "lives")):
        state.books.meets(replica, incarnation, policy="DLPM", now_s=0.0)
        state.books.observe(incarnation, rows, policy="DLPM", sequence=1, since=0)
    state.books.meets("r0", "next", policy="DLPM", now_s=1.0)
    await reckon(state)
    assert not list(state.ledger.closing_steps("gone"))
    assert list(state.ledger.closing_steps("lives"))


async def wrote_a_book(state: RouterState, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            while not state.ledger.book.rank.height:  # noqa: ASYNC110 - the ledger has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


async def test_the_first_book_waits_until_every_replica_has_reported() -> None:
    listed = ReplicaConfig(name="r0", url="http://127.0.0.1:1", reports="tcp://127.0.0.1:2")
    state = RouterState(config_for(listed), timing=replace(QUICK, seal_interval_s=0.0))
    state.replicas = {"r0": listed}
    state.ledger.received("other", "ns/t/a", Totals(service=1))
    async with background(Tending(state, lambda: frozenset({state.ledger.router})).run()):
        assert not await wrote_a_book(state, 0.5)
        state.reports["r0"] = Seen(
            incarnation="one", policy="DLPM", sequence=1, received_s=0.0, counted=True
        )
        assert await wrote_a_book(state, PATIENCE_S)


async def test_a_replica_that_never_answers_delays_the_first_book_for_a_limited_time() -> None:
    listed = ReplicaConfig(name="r0", url="http://127.0.0.1:1", reports="tcp://127.0.0.1:2")
    timing = replace(QUICK, seal_interval_s=0.0, settle_s=0.01)
    state = RouterState(config_for(listed), timing=timing)
    state.replicas = {"r0": listed}
    state.ledger.received("other", "ns/t/a", Totals(service=1))
    async with background(Tending(state, lambda: frozenset({state.ledger.router})).run()):
        assert await wrote_a_book(state, PATIENCE_S)


async def test_no_book_is_written_before_the_store_was_read() -> None:
    state = RouterState(config_for(), timing=replace(QUICK, seal_interval_s=0.0))
    state.ledger.received("other", "ns/t/a", Totals(service=1))
    keeping = Keeping(
        state.ledger, Memory(), interval_s=lambda: 3600.0, now=asyncio.get_running_loop().time
    )
    state.keeping = keeping
    async with background(Tending(state, lambda: frozenset({state.ledger.router})).run()):
        assert not await wrote_a_book(state, 0.5)
        async with background(keeping.run()):
            assert await wrote_a_book(state, PATIENCE_S)
