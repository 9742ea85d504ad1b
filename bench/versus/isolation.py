"""What isolation (R13) costs a team above its share at half load, in virtual time.

While a request of the big team runs, the plug-in holds back the prefill of others, so that the big team keeps at least half of its
share of its speed alone. It does so too where no request has to wait for capacity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from heapq import merge
from typing import Final

from evenkeel_contract.enginesettings import ISOLATION
from evenkeel_fairshare.measures import percentile
from evenkeel_laboratory.experiments.setup import Setup, simulate
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.workload import Workload

from bench.versus.workloads import BIG, CASES, ENGINES, HALF_LOAD, PROFILE, SMALL

SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Effect:
    """95th percentiles under D2LPM + DLPM, seconds."""

    small_ttft_s: float
    big_gap_s: float
    """Mean time between tokens of a request."""


@cache
def effect(isolation: float | None) -> Effect:
    """What an isolation does to the small team; None: no isolation."""
    case = CASES[HALF_LOAD]
    programs = merge(
        *(crowd.arrivals(SECONDS, 1) for crowd in case.crowds), key=lambda one: one.arrival_s
    )
    setup = Setup(
        profile=PROFILES[PROFILE],
        replicas=ENGINES,
        engine=replace(EngineConfig(), isolation=isolation),
    )
    records, _ = simulate(setup, Workload(HALF_LOAD, programs, case.clients()))
    ttfts = [one.ttft_s for one in records if one.client == SMALL and one.ttft_s is not None]
    gaps = [one.itl_s for one in records if one.client == BIG and one.itl_s is not None]
    return Effect(percentile(ttfts, 95), percentile(gaps, 95))


def sentence() -> str:
    """What the page of the head to head says of isolation."""
    on, off = effect(ISOLATION), effect(None)
    minutes = f"{SECONDS / 60:.0f} minutes of this workload in virtual time"
    return (
        f"What isolation does to the plug-in's figures ({minutes}): the small team's TTFT p95 is {_ms(on.small_ttft_s)} with "
        f"`isolation: {ISOLATION:.0%}`, the default, and {_ms(off.small_ttft_s)} with `Off`; the big team's time between tokens (p95) is "
        f"{_ms(on.big_gap_s)} and {_ms(off.big_gap_s)}. It keeps the prompts of a team above its share off the requests of others, "
        "also where capacity is left."
    )


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:.0f} ms"
