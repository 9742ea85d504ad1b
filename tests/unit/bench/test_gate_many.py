"""`bench.gate_many` at a small size: what it measures, not how fast this machine is."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bench.gate_many import Engine, Figures, Load, run


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


@pytest.mark.parametrize("everywhere", [False, True])
def test_each_router_serves_the_light_client_and_the_engines_work(everywhere: bool) -> None:
    figures = run(Load(engines=8, warmup_s=4.0, seconds=6.0, routers=2, everywhere=everywhere))
    assert all(figures.waits_s)
    assert len(figures.waits_s) == 2
    assert 0.8 < figures.used <= 1.0
    assert figures.queue < 8


def test_the_table_has_a_row_for_each_router() -> None:
    text = Figures(waits_s=[[0.1, 0.3], [0.2]], queue=1.5, used=0.98).table()
    assert text.splitlines()[2:] == [
        "| 0 | 2 | 0.200 | 0.300 | 0.300 |",
        "| 1 | 1 | 0.200 | 0.200 | 0.200 |",
        "",
        "Requests inside the engines' queues: 1.5 (mean).",
        "Time of places that was used: 0.980 of the possible.",
    ]
