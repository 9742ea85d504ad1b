"""What `bench.gate` says of the gate, at the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gate_load import Figures, promises

PLUG_IN = Figures(
    light=0.8, ttft_p50_s=0.1, ttft_p99_s=2.0, output_per_s=1000.0, hit_rate=0.5, queue=70.0, batch=8.0
)  # fmt: skip
GATE = replace(
    PLUG_IN, light=0.761, ttft_p99_s=3.0, output_per_s=970.0, hit_rate=0.471, queue=2.0, batch=7.76
)


def test_the_gate_meets_every_limit_that_it_just_reaches() -> None:
    assert [one.name for one in promises(GATE, PLUG_IN) if not one.met] == []


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"light": 0.75}, "light's part"),
        ({"light": 0.85}, "light's part"),
        ({"ttft_p99_s": 3.1}, "single tenant's TTFT p99 / plug-in's"),
        ({"output_per_s": 960.0}, "output tokens/s / plug-in's"),
        ({"hit_rate": 0.46}, "hit rate − plug-in's, points"),
        ({"queue": 3.0}, "engine's queue, median"),
        ({"batch": 7.7}, "batch / plug-in's"),
    ],
)
def test_a_figure_beyond_its_limit_is_a_miss(changed: dict[str, float], missed: str) -> None:
    found = promises(replace(GATE, **changed), PLUG_IN)
    assert [one.name for one in found if not one.met] == [missed]


def test_rounds_are_compared_by_the_median_of_each_figure() -> None:
    rounds = [replace(GATE, queue=queue, light=light) for queue, light in ((1, 0.9), (9, 0.8), (2, 0.7))]  # fmt: skip
    assert Figures.median(rounds) == replace(GATE, queue=2.0, light=0.8)
