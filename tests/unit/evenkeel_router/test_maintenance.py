"""What departed replicas left is computed before it is needed; the first closed totals wait until the past is known (R8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from evenkeel_contract.reports import ClientReport, unserved
from evenkeel_contract.routerconfig import TenantConfig
from evenkeel_fairshare.ledger import Ledger
from evenkeel_router.api.identity import UNPAID, client_of
from evenkeel_router.ledger import maintenance as module
from evenkeel_router.ledger.maintenance import LedgerMaintenance, compute_closings
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.transport.background import background

from tests.support.routers import PATIENCE_S, QUICK, config_for
from tests.unit.evenkeel_router.test_persistence import Memory


async def test_what_the_departed_left_is_at_hand_and_what_lives_is_not_touched() -> None:
    rooms = Rooms.make(config_for())
    clients = [f"ns/t/{n}" for n in range(1000)]
    rows = [ClientReport(name, 0, 0, 0, 9.0, 9.0, 9.0, 1, -5.0, -5.0, 0, 0) for name in clients]
    for replica, incarnation in (("r0", "gone"), ("r1", "lives")):
        rooms.service_ledger.accounting.meets(replica, incarnation, policy="DLPM", now_s=0.0)
        rooms.service_ledger.accounting.observe(
            incarnation, rows, policy="DLPM", sequence=1, since=0
        )
    rooms.service_ledger.accounting.meets("r0", "next", policy="DLPM", now_s=1.0)
    await compute_closings(rooms.service_ledger)
    assert not list(rooms.service_ledger.ledger.closing_steps("gone"))
    assert list(rooms.service_ledger.ledger.closing_steps("lives"))


async def wrote_closed_totals(ledger: Ledger, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            while not ledger.closed_totals.rank.height:  # noqa: ASYNC110 - the ledger has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


def maintained(
    all_reported: Callable[[], bool], *, settle_s: float = 30.0
) -> tuple[Rooms, LedgerMaintenance]:
    rooms = Rooms.make(config_for())
    ledger = rooms.service_ledger.ledger
    ledger.received("other", "ns/t/a", 1)
    timing = replace(QUICK, compact_interval_s=0.0, settle_s=settle_s)
    members = frozenset({ledger.router})
    return rooms, LedgerMaintenance(rooms.service_ledger, timing, lambda: members, all_reported)


async def test_the_first_closed_totals_wait_until_every_replica_has_reported() -> None:
    reported: list[bool] = []
    rooms, maintenance = maintained(lambda: bool(reported))
    async with background(maintenance.run()):
        assert not await wrote_closed_totals(rooms.service_ledger.ledger, 0.5)
        reported.append(True)
        assert await wrote_closed_totals(rooms.service_ledger.ledger, PATIENCE_S)


async def test_a_silent_replica_delays_the_first_closed_totals_for_a_limited_time() -> None:
    rooms, maintenance = maintained(lambda: False, settle_s=0.01)
    async with background(maintenance.run()):
        assert await wrote_closed_totals(rooms.service_ledger.ledger, PATIENCE_S)


async def test_rows_that_a_replica_gave_back_go_while_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_LOOK_S", 0.02)
    rooms, maintenance = maintained(lambda: True)
    accounting, ledger = rooms.service_ledger.accounting, rooms.service_ledger.ledger
    accounting.meets("r0", "lives", policy="DLPM", now_s=0.0)
    row = ClientReport("ns/t/c", 0, 0, 0, 9.0, 9.0, 9.0, 1, 0.0, 0.0, 0, 0, aborted=2)
    owes = ClientReport("ns/t/d", 0, 0, 0, 9.0, 9.0, 9.0, 1, -5.0, -5.0, 0, 0)
    ledger.received("lives", "ns/t/c", 9.0)
    accounting.observe("lives", [row, owes], policy="DLPM", sequence=1, since=0)
    assert accounting.held("lives", "ns/t/c").aborted == 2
    rest = ClientReport("ns/t/*", 0, 0, 0, 9.0, 9.0, 9.0, 1, 0.0, 0.0, 0, 0)
    rows = [unserved("ns/t/c*"), rest]
    accounting.observe("lives", rows, policy="DLPM", sequence=2, since=1)
    assert accounting.held("lives", "ns/t/c").aborted == 0
    account = ledger.replica_accounts["lives"]
    async with background(maintenance.run()), asyncio.timeout(PATIENCE_S):
        while "ns/t/c*" in account.clients:  # noqa: ASYNC110 - the ledger has no event
            await asyncio.sleep(0.01)
    assert set(account.clients) == {"ns/t/d", "ns/t/*"}
    assert not account.accounts[ledger.router].clients
    assert ledger.served("ns/t/*") == 9.0


async def test_what_routers_received_goes_once_a_report_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COVERED_LOOK_S", 0.02)
    rooms, maintenance = maintained(lambda: True)
    accounting, ledger = rooms.service_ledger.accounting, rooms.service_ledger.ledger
    accounting.meets("r0", "lives", policy="DLPM", now_s=0.0)
    accounting.meets_unreported("r1", 0.0)
    gate = accounting.unreported("r1")
    tenant = TenantConfig(namespace="ns", name="t")
    runs, ended = client_of(tenant, "runs"), client_of(tenant, "ended")
    for client in (runs, ended):
        for name in ("lives", gate):
            ledger.received(name, client.identity, 9.0)
            row = ClientReport(client.identity, 0, 0, 0, 9.0, 9.0, 9.0, 1, 0.0, 0.0, 0, 0)
            at = int(ledger.sequence(name))
            accounting.observe(name, [row], policy="DLPM", sequence=at + 1, since=at)
    accounting.sends("r0", runs, paid=UNPAID, now_s=0.0)
    accounts = ledger.replica_accounts
    own = accounts["lives"].accounts[ledger.router]
    async with background(maintenance.run()), asyncio.timeout(PATIENCE_S):
        while ended.identity in own.clients:  # noqa: ASYNC110 - the ledger has no event
            await asyncio.sleep(0.01)
    assert set(own.clients) == {runs.identity}
    assert set(accounts[gate].accounts[ledger.router].clients) == {runs.identity, ended.identity}
    assert ledger.served(ended.identity) == 18.0


async def test_no_book_is_written_before_the_store_was_read() -> None:
    rooms, maintenance = maintained(lambda: True)
    persistence = rooms.service_ledger.persistence = Persistence(
        rooms.service_ledger.ledger,
        Memory(),
        interval_s=lambda: 3600.0,
        now=asyncio.get_running_loop().time,
    )
    async with background(maintenance.run()):
        assert not await wrote_closed_totals(rooms.service_ledger.ledger, 0.5)
        async with background(persistence.run()):
            assert await wrote_closed_totals(rooms.service_ledger.ledger, PATIENCE_S)
