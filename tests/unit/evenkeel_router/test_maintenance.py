"""What departed replicas left behind is reckoned before somebody asks for it."""

from __future__ import annotations

from evenkeel_contract.reports import ClientReport
from evenkeel_router.ledger.maintenance import reckon
from evenkeel_router.state import RouterState

from tests.support.routers import config_for


async def test_what_the_departed_left_is_at_hand_and_what_lives_is_not_touched() -> None:
    state = RouterState(config_for())
    clients = [f"ns/t/{n}" for n in range(1000)]
    rows = [ClientReport(name, 0, 0, 0, 9.0, 9.0, 9.0, 1, -5.0, -5.0, 0, 0) for name in clients]
    for replica, incarnation in (("r0", "gone"), ("r1", "lives")):
        state.accounting.meets(replica, incarnation, policy="DLPM", now_s=0.0)
        state.accounting.observe(incarnation, rows, policy="DLPM", sequence=1, since=0)
    state.accounting.meets("r0", "next", policy="DLPM", now_s=1.0)
    await reckon(state)
    assert not list(state.ledger.closing_steps("gone"))
    assert list(state.ledger.closing_steps("lives"))
