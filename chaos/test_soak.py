"""Hours in minutes: memory stays flat while replicas come and go and clients never stop.

`EVENKEEL_SOAK_S` is the duration; the default is four minutes.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from chaos.rig.notes import Notes
from chaos.rig.scene import Scene, scene

SOAK_S = float(os.environ.get("EVENKEEL_SOAK_S", "240"))
GROWTH = 1.1
"""Above what it was after a third of the time."""


async def churn_for(on: Scene, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        oldest = next(iter(on.fleet.replicas))
        await on.fleet.add_replica()
        await on.fleet.scale_down(oldest)
        await asyncio.sleep(3)


async def test_memory_is_flat(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path) as on:
        await churn_for(on, SOAK_S / 3)
        before = {name: router.memory_bytes() for name, router in on.fleet.routers.items()}
        await churn_for(on, 2 * SOAK_S / 3)
        after = {name: router.memory_bytes() for name, router in on.fleet.routers.items()}
        pages = [await on.reader.pages_of(name) for name in on.fleet.routers]
    note(f"bytes after a third of the time {before}, at the end {after}; {pages} pages kept")
    on.assert_bounded(note)
    assert all(after[name] < GROWTH * before[name] for name in before), (before, after)
    # What departed replicas served has been folded into the book, but for the last 42 seconds: 30 in which a
    # replica may come back, and the time until the next book.
    assert max(pages) <= on.fleet.most_replicas + 10
