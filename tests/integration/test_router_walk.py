"""The files that one streamed chat request runs code of are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from evenkeel_router.app import Router

from tests.support.raw_clients import answer_to_chat
from tests.support.routers import fleet, until

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(f"{ROOT}/{folder}/" for folder in ("router", "fairshare", "contract"))
ROOMS = ("transport", "api", "request", "fleet", "gate", "ledger", "telemetry")


def listed() -> set[str]:
    """As ARCHITECTURE.md has them, from the root of the tree."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"compares this list with what runs.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    found = set()
    for line in block[1].splitlines():
        room, names = line.split(maxsplit=1)
        folder = f"router/evenkeel_router/{room}" if room in ROOMS else f"{room}/evenkeel_{room}"
        found |= {f"{folder}/{name}.py" for name in names.split(", ")}
    return found


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
    found = set[str]()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or path in found or not path.startswith(PRODUCT):
            return
        if oldest(frame).startswith(f"{ROOT}/router/evenkeel_router/transport/"):
            found.add(path)

    sys.setprofile(note)
    try:
        await answer_to_chat(connection)
    finally:
        sys.setprofile(None)
        connection[1].close()
    return {path.removeprefix(f"{ROOT}/") for path in found}


async def test_a_request_runs_the_files_that_architecture_lists() -> None:
    async with fleet(1) as (router, _):
        assert await ran(router) == listed()
