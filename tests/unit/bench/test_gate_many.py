"""`bench.gate_many` at a small size: what it measures, not how fast this machine is."""

from __future__ import annotations

import pytest

from bench.gate_many import Figures, Load, run


@pytest.mark.parametrize("everywhere", [False, True])
def test_each_router_serves_the_light_client_and_the_engines_work(everywhere: bool) -> None:
    figures = run(Load(engines=8, warmup_s=4.0, seconds=6.0, routers=2, everywhere=everywhere))
    assert all(figures.waits_s)
    assert len(figures.waits_s) == 2
    assert 0.8 < figures.used <= 1.0
    assert figures.queue < 8


@pytest.mark.parametrize(("engines", "places", "routers"), [(1, 8, 1), (8, 4, 3)])
def test_short_requests_use_the_places_of_engines_of_steps(
    engines: int, places: int, routers: int
) -> None:
    load = Load(engines, places, service_s=0.8, step_s=0.1, routers=routers, warmup_s=4.0, seconds=10.0)  # fmt: skip
    assert run(load).used > 0.95


def test_the_table_has_a_row_for_each_router() -> None:
    text = Figures(waits_s=[[0.1, 0.3], [0.2]], queue=1.5, used=0.98).table()
    assert text.splitlines()[2:] == [
        "| 0 | 2 | 0.200 | 0.300 | 0.300 |",
        "| 1 | 1 | 0.200 | 0.200 | 0.200 |",
        "",
        "Requests inside the engines' queues: 1.5 (mean).",
        "Time of places that was used: 0.980 of the possible.",
    ]
