"""The files that one streamed chat request runs code of are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import asyncio
from types import FrameType

from evenkeel_router.app import Router

from tests.support.raw_clients import answer_to_chat
from tests.support.routers import fleet, until
from tests.support.walks import ROOT, listed, noted

FOLDERS = ("router", "fairshare", "contract")
PRODUCT = tuple(f"{ROOT}/{folder}/" for folder in FOLDERS)
ROOMS = {
    room: f"router/evenkeel_router/{room}"
    for room in ("transport", "api", "request", "fleet", "gate", "ledger", "telemetry")
}
TRANSPORT = f"{ROOT}/router/evenkeel_router/transport/"


def oldest(frame: FrameType | None) -> str:
    """The file of the oldest caller that is ours."""
    found = ""
    while frame is not None:
        path = frame.f_code.co_filename
        found = path if path.startswith(PRODUCT) else found
        frame = frame.f_back
    return found


async def ran(router: Router) -> set[str]:
    """What runs for one request: not what runs beside it, nor in the simulated replica."""
    connection = await asyncio.open_connection("127.0.0.1", router.traffic_port)
    await answer_to_chat(connection)  # the first one of a client makes more: its totals, its seed
    accounts = router.rooms.service_ledger.ledger.replica_accounts
    await until(lambda: any(len(one.clients) for one in accounts.values()), "a report of it")
    try:
        with noted(FOLDERS, lambda frame: oldest(frame).startswith(TRANSPORT)) as found:
            await answer_to_chat(connection)
    finally:
        connection[1].close()
    return found


async def test_a_request_runs_the_files_that_architecture_lists() -> None:
    async with fleet(1) as (router, _):
        assert await ran(router) == listed("One streamed chat request", ROOMS)
