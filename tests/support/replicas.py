"""Simulated replicas for integration tests: settings that are quick, and waiting for what must come true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from evenkeel_simulator.server.settings import Settings

FAST = 50.0
"""Engine seconds per second: tests need the order of things, not their duration."""
DEADLINE_S = 30.0


def settings(**overrides: Any) -> Settings:
    """A replica on free ports."""
    given = {"model": "sim", "port": 0, "speed": FAST, **overrides}
    return Settings(**given)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` holds; fails after a deadline that only a broken test reaches."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for is a state, not an event)
            await asyncio.sleep(0.005)
