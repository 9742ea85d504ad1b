"""Many cells with the same tenants, in virtual time: do the sums over cells follow the global weights (R21)?

    python -m bench.cells [--seconds 3600] [--seed 0] [--clients 1000000] [--tenants 1000] [--out bench/results]

10,000 GPUs in 160 cells and 3 regions. A million clients of 1,000 tenants: numbers of clients after Zipf, weights 1 to 8, each tenant
mostly in one region. Requests are a fluid: each client's home is a cell of its region, by a hash of tenant and prefix root; once
its home is behind its second choice by `OVERFLOW_S` of work, its requests go there. Load follows the hour of each region, each tenant's load
wanders, and one in twenty floods for some minutes. A request that waited for two minutes is gone. Inside a cell service is the fluid
that the cell's ledger bounds: what tenants ask for, in shares of the cell's weights.

Three runs over the same load: `alone`: each cell uses the global weights; `joined`: `fairshare.cells`, with each cell's own figures, and
those of the others that are one interval old; `ideal`: all cells know everything at once. From 1/3 to 1/2 of the time one region is cut
off from the two others; at 2/3 a cell is lost. `--without` leaves out a cause of errors: `cut`, `loss`, `hours` (the load of a region
changes with its hour) or `wander` (the load of a tenant changes).
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

from bench.cells_world import CAUSES, CELLS, REGIONS, Array, World, without, world

INTERVAL: Final = 5
"""Seconds from one exchange to the next."""
SILENCE: Final = 3 * INTERVAL
"""Age in seconds from which on another cell's figures do not count."""
OVERFLOW_S: Final = 20.0
PATIENCE_S: Final = 120.0
ROUNDS: Final = 8
"""Steps of the ideal run in each second."""


@dataclass
class Cost:
    """What the cells spent, CPU seconds and bytes."""

    weigh_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rates:
    """What all cells measured in one interval, by tenant and cell."""

    served: Array
    demand: Array
    is_full: NDArray[np.bool_]
    """Whether a cell cannot serve all demand, by cell."""

    @classmethod
    def of(cls, measured: tuple[Array, Array], capacity: Array) -> Rates:
        """`measured`: rates of service, and what waits at the end."""
        served, waiting = measured
        demand = np.minimum(served + waiting / INTERVAL, capacity)  # `demand_of`, of all at once
        return cls(served, demand, demand.sum(axis=0) > capacity)


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
            before, known = known, (served / INTERVAL, backlog)
            if self.system == "joined":
                self._exchange(begin, known, before, capacity)
            served_by_interval.append(served.sum(axis=1))
            if progress and begin % 300 == 0:
                print(f"{self.system}: {begin} of {seconds} s", flush=True)
        return np.array(served_by_interval)

    def _exchange(
        self, now: int, known: tuple[Array, Array], before: tuple[Array, Array], capacity: Array
    ) -> None:
        """Each cell computes its weights from its own figures, and from those of the others of the interval before.

        Cells that cannot hear others leave them out.
        """
        world = self.world
        own, others = Rates.of(known, capacity), Rates.of(before, capacity)
        self._measure_messages(own.served, own.demand)
        is_cut = world.cut_s[0] + SILENCE <= now < world.cut_s[1]
        sides = (
            [world.region == REGIONS - 1, world.region != REGIONS - 1]
            if is_cut
            else [world.region >= 0]
        )
        for side in sides:
            heard = np.flatnonzero(side & (capacity > 0))
            everywhere = others.served[:, heard].sum(axis=1)
            full = heard[others.is_full[heard]]
            given, asked = others.served[:, full].sum(axis=1), others.demand[:, full].sum(axis=1)
            self.weights[:, heard] = world.weights[:, None]
            for cell in heard[own.is_full[heard]]:
                begin = time.process_time()
                served, demand = others.served[:, cell], others.demand[:, cell]
                in_full = float(
                    others.is_full[cell]
                )  # whether it is one of those that were added up
                elsewhere = everywhere - served
                left, wanted = given - in_full * served, asked - in_full * demand
                tenants = {
                    str(tenant): TenantInCell(
                        weight=float(world.weights[tenant]),
                        served=float(own.served[tenant, cell]),
                        demand=float(own.demand[tenant, cell]),
                        elsewhere=max(0.0, float(elsewhere[tenant])),
                        full=CellSums(
                            max(0.0, float(left[tenant])), max(0.0, float(wanted[tenant]))
                        ),
                    )
                    for tenant in np.flatnonzero(own.demand[:, cell] > 0)
                }
                floor = self.floor / max(1, len(full))
                found = local_weights(tenants, float(capacity[cell]), floor=floor)
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
    parser.add_argument("--without", nargs="*", choices=CAUSES, default=[], help="causes of errors")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    drawn = without(
        world(tenants=args.tenants, clients=args.clients, seconds=args.seconds, seed=args.seed),
        args.without,
    )
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
