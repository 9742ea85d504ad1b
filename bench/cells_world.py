"""A world for `cells`: a million clients of many tenants, 160 cells in 3 regions, and the load of each second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GPUS: Final = 10_000
CELLS: Final = 160
REGIONS: Final = 3
TOKENS_PER_GPU: Final = 20_000.0
"""Weighted tokens per second of a GPU."""
LOAD: Final = 1.15
"""Mean offered load over capacity."""
CAUSES: Final = ("cut", "loss", "hours", "wander")
"""What makes shares err: a region that is cut off, a lost cell, the hour of each region, and each tenant's own changes."""


@dataclass(frozen=True)
class World:
    """What does not depend on the weights. Arrays are by tenant and cell, if nothing else is said."""

    weights: Array
    """Global weights, by tenant."""
    capacity: Array
    """Weighted tokens per second, by cell."""
    region: NDArray[np.int64]
    """The number of each cell's region."""
    groups: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Array]
    """Clients with the same tenant, home and second choice: these three, and their number."""
    rate: Array
    """Weighted tokens per second that one client asks for, by second and tenant."""
    hour: Array
    """Factor of the load, by second and region."""
    lost: int
    lost_s: int
    cut_s: tuple[int, int]
    """Time in which the last region hears nothing of the others."""


def world(*, tenants: int, clients: int, seconds: int, seed: int) -> World:
    """Draw one."""
    rng = np.random.default_rng(seed)
    region = np.arange(CELLS) % REGIONS
    capacity = np.full(CELLS, GPUS / CELLS) * TOKENS_PER_GPU
    of = rng.choice(tenants, size=clients, p=_zipf(tenants))
    homes = rng.integers(REGIONS, size=tenants)
    away = rng.random(clients) < 0.25
    place = np.where(away, rng.integers(REGIONS, size=clients), homes[of])
    first, second = _choices(place, region, clients, rng)
    code = (of * CELLS + first) * CELLS + second
    codes, counts = np.unique(code, return_counts=True)
    groups = codes // CELLS**2, codes // CELLS % CELLS, codes % CELLS, counts.astype(float)
    wander = _wander(tenants, seconds, rng)
    hour = 1 + 0.5 * np.sin(
        2 * np.pi * (np.arange(seconds)[:, None] / seconds + np.arange(REGIONS) / REGIONS)
    )
    rate = wander * (LOAD * capacity.sum() / clients)
    numbers = np.bincount(of, minlength=tenants)
    rate *= LOAD * capacity.sum() / (rate @ numbers).mean()
    return World(
        weights=rng.choice([1.0, 2.0, 4.0, 8.0], size=tenants) * _size(numbers),
        capacity=capacity,
        region=region,
        groups=groups,
        rate=rate,
        hour=hour,
        lost=7,
        lost_s=seconds * 2 // 3,
        cut_s=(seconds // 3, seconds // 2),
    )


def without(drawn: World, causes: Sequence[str]) -> World:
    """The same world without some causes of errors (`CAUSES`)."""
    end = len(drawn.rate)
    changes: dict[str, Any] = {
        "cut": {"cut_s": (2 * end, 2 * end)},
        "loss": {"lost_s": 2 * end},
        "hours": {"hour": np.ones_like(drawn.hour)},
        "wander": {"rate": np.tile(drawn.rate.mean(axis=0), (end, 1))},
    }
    for cause in causes:
        drawn = replace(drawn, **changes[cause])
    return drawn


def _size(numbers: NDArray[np.int64]) -> Array:
    """Larger tenants bought more, though not in proportion."""
    found: Array = np.maximum(1.0, np.round(np.sqrt(numbers / max(1.0, numbers.mean()))))
    return found


def _zipf(number: int) -> Array:
    parts: Array = 1 / np.arange(1, number + 1)
    found: Array = parts / parts.sum()
    return found


def _choices(
    place: NDArray[np.int64], region: NDArray[np.int64], clients: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Home and second choice of each client among the cells of its region, as rendezvous hashing draws them."""
    first, second = np.empty(clients, np.int64), np.empty(clients, np.int64)
    for number in range(REGIONS):
        cells = np.flatnonzero(region == number)
        here = np.flatnonzero(place == number)
        one = rng.integers(len(cells), size=len(here))
        other = (one + rng.integers(1, len(cells), size=len(here))) % len(cells)
        first[here], second[here] = cells[one], cells[other]
    return first, second


def _wander(tenants: int, seconds: int, rng: np.random.Generator) -> Array:
    """Each tenant's load over its mean: log-normal with a memory of five minutes, and floods."""
    keep = np.exp(-1 / 300)
    level = rng.normal(size=tenants)
    found = np.empty((seconds, tenants))
    for second in range(seconds):
        level = keep * level + np.sqrt(1 - keep**2) * rng.normal(size=tenants)
        found[second] = np.exp(0.5 * level)
    for tenant in rng.choice(tenants, size=tenants // 20, replace=False):
        begin = rng.integers(seconds * 3 // 4)
        found[begin : begin + seconds // 6, tenant] *= 10
    return found
