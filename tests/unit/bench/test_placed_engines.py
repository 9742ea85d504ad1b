"""Engines with places: who is served, when, and what they report."""

from __future__ import annotations

import asyncio
from random import Random

from bench.placed_engines import Engine


async def test_an_engine_serves_as_many_at_once_as_it_has_places_in_order() -> None:
    engine, began = Engine(2, 1.0, Random(0)), []

    async def request(number: int) -> None:
        await engine.place()
        began.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert (began, engine.running, engine.queue) == ([0, 1], 2, 3)
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    for _ in range(3):
        engine.leave()
        await asyncio.sleep(0)
    assert (began, engine.running, engine.queue) == ([0, 1, 3, 4], 1, 0)


async def test_an_engine_of_steps_fills_places_between_two_of_them() -> None:
    engine = Engine(2, 1.0, Random(0), step_s=0.01)
    tasks = [asyncio.create_task(engine.place()) for _ in range(3)]
    await asyncio.sleep(0)
    assert (engine.running, engine.queue) == (0, 3)
    await asyncio.gather(*tasks[:2])
    assert (engine.running, engine.queue) == (2, 1)
    engine.leave()
    await tasks[2]
    assert (engine.reported, engine.running) == ((1, 1), 2)
    for _ in range(2):
        engine.leave()
