"""Many cells with the same tenants, in virtual time: do the sums over cells follow the global weights (R21)?

    python -m bench.cells [--seconds 3600] [--seed 0] [--clients 1000000] [--tenants 1000] [--out bench/results]

10,000 GPUs in 160 cells and 3 regions. A million clients of 1,000 tenants: numbers of clients after Zipf, weights 1 to 8, each tenant
mostly in one region. Requests are a fluid: each client's home is a cell of its region, by a hash of tenant and prefix root; once
its home is behind its second choice by `OVERFLOW_S` of work, its requests go there. Load follows the hour of each region, each tenant's load
wanders, and one in twenty floods for some minutes. A request that waited for two minutes is gone. Inside a cell service is the fluid
that the cell's ledger bounds: what tenants ask for, in shares of the cell's weights.

Three runs over the same load: `alone`: each cell uses the global weights; `joined`: `fairshare.cells`, with figures that are one interval
old; `ideal`: all cells know everything at once. From 1/3 to 1/2 of the time one region is cut off from the two others; at 2/3 a cell is lost.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import matplotlib
import msgspec
import numpy as np
from evenkeel_fairshare.cells import FLOOR, CellSums, TenantInCell, local_weights
from matplotlib import pyplot
from numpy.typing import NDArray

Array = NDArray[np.float64]

GPUS: Final = 10_000
CELLS: Final = 160
REGIONS: Final = 3
TOKENS_PER_GPU: Final = 20_000.0
"""Weighted tokens per second of a GPU."""
INTERVAL: Final = 5
"""Seconds from one exchange to the next."""
SILENCE: Final = 3 * INTERVAL
"""Age in seconds from which on another cell's figures do not count."""
OVERFLOW_S: Final = 20.0
PATIENCE_S: Final = 120.0
LOAD: Final = 1.15
"""Mean offered load over capacity."""
ROUNDS: Final = 8
"""Steps of the ideal run in each second."""


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


@dataclass
class Cost:
    """What the cells spent, CPU seconds and bytes."""

    weigh_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@dataclass
class Run:
    """One run of all cells."""

    world: World
    system: str
    floor: float = FLOOR
    cost: Cost = field(default_factory=Cost)

    def run(self, *, progress: bool = True) -> Array:
        """Weighted tokens that each tenant was served, by interval and tenant."""
        world = self.world
        seconds, tenants = world.rate.shape
        of, first, second, count = world.groups
        self.weights = np.repeat(world.weights[:, None], CELLS, axis=1)
        backlog = np.zeros((tenants, CELLS))
        capacity = world.capacity.copy()
        known = np.zeros((tenants, CELLS)), np.zeros((tenants, CELLS))
        last = np.zeros((tenants, CELLS))
        served_by_interval = []
        for begin in range(0, seconds, INTERVAL):
            if begin >= world.lost_s and capacity[world.lost]:
                capacity[world.lost] = 0.0
                backlog[:, world.lost] = 0.0
            asked_s = backlog.sum(axis=0) / np.maximum(capacity, 1.0)
            asked_s[capacity == 0] = np.inf
            at = np.where(asked_s[first] > asked_s[second] + OVERFLOW_S, second, first)
            number = np.bincount(of * CELLS + at, count, tenants * CELLS).reshape(tenants, CELLS)
            served = np.zeros((tenants, CELLS))
            for now in range(begin, begin + INTERVAL):
                offered = number * world.rate[now][:, None] * world.hour[now][world.region]
                backlog += offered
                if self.system == "ideal":
                    given = last = ideal(backlog, capacity, world.weights, last)
                else:
                    given = filled(backlog, self.weights, capacity)
                served += given
                backlog = np.minimum(backlog - given, PATIENCE_S * offered)
            if self.system == "joined":
                self._exchange(begin, known, capacity)
            known = served / INTERVAL, backlog
            served_by_interval.append(served.sum(axis=1))
            if progress and begin % 300 == 0:
                print(f"{self.system}: {begin} of {seconds} s", flush=True)
        return np.array(served_by_interval)

    def _exchange(self, now: int, known: tuple[Array, Array], capacity: Array) -> None:
        """Each cell computes its weights from the figures of the interval before. Cells that cannot hear others leave them out."""
        world = self.world
        served, waiting = known
        demand = np.minimum(served + waiting / INTERVAL, capacity)  # `demand_of`, of all at once
        self._measure_messages(served, demand)
        is_cut = world.cut_s[0] + SILENCE <= now < world.cut_s[1]
        sides = (
            [world.region == REGIONS - 1, world.region != REGIONS - 1]
            if is_cut
            else [world.region >= 0]
        )
        for side in sides:
            heard = np.flatnonzero(side & (capacity > 0))
            everywhere = served[:, heard].sum(axis=1)
            full = heard[demand[:, heard].sum(axis=0) > capacity[heard]]
            given, asked = served[:, full].sum(axis=1), demand[:, full].sum(axis=1)
            self.weights[:, heard] = world.weights[:, None]
            for cell in full:
                begin = time.process_time()
                tenants = {
                    str(tenant): TenantInCell(
                        weight=float(world.weights[tenant]),
                        served=float(served[tenant, cell]),
                        demand=float(demand[tenant, cell]),
                        elsewhere=float(everywhere[tenant] - served[tenant, cell]),
                        full=CellSums(
                            float(given[tenant] - served[tenant, cell]),
                            float(asked[tenant] - demand[tenant, cell]),
                        ),
                    )
                    for tenant in np.flatnonzero(demand[:, cell] > 0)
                }
                found = local_weights(tenants, float(capacity[cell]), floor=self.floor / len(full))
                self.cost.weigh_s.append(time.process_time() - begin)
                for tenant, weight in found.items():
                    self.weights[int(tenant), cell] = weight

    def _measure_messages(self, served: Array, demand: Array) -> None:
        """What one cell sends, and what it takes to read the messages of all others and to add them up."""
        if len(self.cost.read_s) >= 5 or not demand.any():
            return
        messages = [
            msgspec.msgpack.encode(
                [
                    (
                        f"team-{tenant:04d}/tenant",
                        round(float(served[tenant, cell]), 1),
                        round(float(demand[tenant, cell]), 1),
                    )
                    for tenant in np.flatnonzero(demand[:, cell] > 0)
                ]
            )
            for cell in range(CELLS)
        ]
        self.cost.sent.append(int(np.mean([len(message) for message in messages])))
        begin = time.process_time()
        everywhere: dict[str, float] = {}
        for message in messages:
            for name, rate, _ in msgspec.msgpack.decode(
                message, type=list[tuple[str, float, float]]
            ):
                everywhere[name] = everywhere.get(name, 0.0) + rate
        self.cost.read_s.append(time.process_time() - begin)


def filled(demand: Array, weights: Array, capacity: Array) -> Array:
    """What each tenant gets in each cell: its demand, at most in shares of the weights."""
    full = np.flatnonzero(demand.sum(axis=0) > capacity)
    found = demand.copy()
    found[:, full] = _cut_to(0.0, weights[:, full], demand[:, full], capacity[full])
    return found


def ideal(demand: Array, capacity: Array, weights: Array, start: Array) -> Array:
    """The fairest sums over all cells, by the steps of `fairshare.cells`. They begin with what was found for the second before."""
    weight = weights[:, None]
    demand = np.minimum(demand, capacity)
    full = np.flatnonzero(demand.sum(axis=0) > capacity)
    found = filled(demand, np.maximum(start, 1e-6 * weight), capacity)
    elsewhere = found.sum(axis=1) - found[:, full].sum(axis=1)
    here, asked = found[:, full], demand[:, full]
    for _ in range(ROUNDS):
        everywhere = (elsewhere + here.sum(axis=1))[:, None]
        part = (_parts(here) + _parts(asked - here)) / 2
        here = _cut_to(here - part * everywhere, part * weight, asked, capacity[full])
    found[:, full] = here
    return found


def _cut_to(base: Array | float, slope: Array, demand: Array, need: Array) -> Array:
    """`base + slope * level`, at least 0 and at most the demand, with the level of each cell for which these add up to `need`."""
    asks = demand > 0
    over = np.where(asks, slope, 1.0)
    begins, ends = np.where(asks, -base / over, 0.0), np.where(asks, (demand - base) / over, 0.0)
    change = np.where(asks, slope, 0.0)
    at = np.concatenate((begins, ends))
    order = np.argsort(at, axis=0)
    at = np.take_along_axis(at, order, axis=0)
    steep = np.cumsum(np.take_along_axis(np.concatenate((change, -change)), order, axis=0), axis=0)
    taken = np.zeros_like(at)
    np.cumsum(steep[:-1] * np.diff(at, axis=0), axis=0, out=taken[1:])
    last = np.maximum((taken < need).sum(axis=0) - 1, 0)  # the last bend before the level
    cells = np.arange(len(need))
    level = at[last, cells] + (need - taken[last, cells]) / np.maximum(steep[last, cells], 1e-300)
    return np.clip(base + slope * level, 0.0, demand)


def _parts(amounts: Array) -> Array:
    """Parts of each row."""
    sums: Array = amounts.sum(axis=1)[:, None]
    return amounts / np.maximum(sums, 1e-9)


def errors(served: Array, owed: Array) -> Array:
    """How far each tenant's service over the whole time is from that of the ideal run, as a part of that."""
    found: Array = np.abs(served.sum(axis=0) - owed.sum(axis=0)) / owed.sum(axis=0)
    return found


def save(folder: Path, served: dict[str, Array], owed: Array) -> None:
    """Write each tenant's service in each run, and plot the errors in the course of time."""
    matplotlib.use("Agg")
    with (folder / "cells.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tenant", "ideal", *served])
        columns = [owed.sum(axis=0), *(one.sum(axis=0) for one in served.values())]
        writer.writerows([n, *(f"{one[n]:.4g}" for one in columns)] for n in range(owed.shape[1]))
    figure, axes = pyplot.subplots(figsize=(8, 4))
    minutes = 60 // INTERVAL
    for system, found in served.items():
        by_minute = [
            errors(found[at : at + minutes], owed[at : at + minutes])
            for at in range(0, len(owed) - minutes + 1, minutes)
        ]
        axes.plot([np.quantile(one, 0.95) for one in by_minute], label=f"{system}, 95th percentile")
        axes.plot([one.mean() for one in by_minute], "--", label=f"{system}, mean")
    axes.set(xlabel="minute", ylabel="share error of a tenant in this minute", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "cells.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument(
        "--floor",
        type=float,
        default=FLOOR,
        help="what a tenant keeps of its level over all full cells",
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    drawn = world(tenants=args.tenants, clients=args.clients, seconds=args.seconds, seed=args.seed)
    runs = {system: Run(drawn, system, args.floor) for system in ("ideal", "alone", "joined")}
    served = {system: run.run() for system, run in runs.items()}
    cost = runs["joined"].cost
    for system in ("alone", "joined"):
        found = errors(served[system], served["ideal"])
        total = served[system].sum() / served["ideal"].sum()
        print(
            f"{system}: share error over the time: median {np.median(found):.3f}, p95 {np.quantile(found, 0.95):.3f}, "
            f"most {found.max():.3f}; all tokens {total:.4f} of the ideal run"
        )
    print(
        f"per cell and interval of {INTERVAL} s: weights {1e3 * np.mean(cost.weigh_s):.1f} ms CPU, "
        f"reading {CELLS} messages {1e3 * np.mean(cost.read_s):.0f} ms CPU; a message {np.mean(cost.sent):.0f} bytes"
    )
    if args.out:
        owed = served.pop("ideal")
        save(args.out, served, owed)


if __name__ == "__main__":
    main()
