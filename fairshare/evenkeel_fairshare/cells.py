"""Weights of tenants inside one cell, so that their sums over all cells follow the global weights (R21).

A cell is one fleet with one ledger: inside it shares are exact. Above it only tenants exist. Each cell publishes what it serves
each tenant, what waits, and its capacity; each computes the weights of its own tenants from the others' figures, once per interval.

Let x be what a cell serves a tenant, X the tenant's sum over all cells, W its global weight, d its demand in this cell, p the
part of this cell in its demand in all cells that cannot serve all demand, and K the cell's capacity; all but W and p are weighted
tokens per second. The global weights ask for the sums that are fairest (max-min by weight) under the demands and capacities of all cells; these sums
minimise the sum of X²/W. Each cell takes

    e = x + p·(W·level - X)          its step towards the level, of which each cell does its part
    x' = e, but at least 0 and at most d, with the level at which all x' add up to K

All cells may do so at the same time. As (h₁ + … + h_n)² <= h₁²/p₁ + … + h_n²/p_n for parts that add up to 1, each cell minimises its
part of an upper bound that touches the sum of X²/W at the present x. So that sum falls with every interval until it is least
(`docs/design/cells.md`).

A cell gives each tenant the weight e. Who asks for less than e gets what it asks for, and the others divide the rest by e,
which is x'. What a tenant is ahead elsewhere thus lowers its weight here, and never stops it: `FLOOR`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeVar

FLOOR: Final = 0.01
"""The least part of its level that a tenant keeps over all cells that cannot serve all demand, however much it is ahead elsewhere: its
requests there are served too. Each of n such cells gives it an n-th of that: with a part for each cell, a tenant with requests in 50 of
them would have half of its share too much."""
STEP: Final = 0.5
"""Part of the way to its level that a tenant goes in one interval. With figures that are one interval old a whole step would swing
without end; half of one ends within some intervals, also if figures are two intervals old."""


ROUNDING: Final = 1e-9
"""Part of a capacity that is no demand: sums of floats are inexact."""
STEP_TENANTS: Final = 100
"""Tenants of one step of work that is done in steps: a fraction of a millisecond."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]


class CellSums(NamedTuple):
    """Sums over cells, of one tenant. Weighted tokens per second."""

    served: float
    demand: float


NO_CELLS: Final = CellSums(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInCell:
    """A tenant as one cell sees it. Rates are weighted tokens per second."""

    weight: float
    """Global weight."""
    served: float
    """Rate of service in this cell."""
    demand: float
    """Rate of service in this cell if it were alone there (`demand_of`)."""
    elsewhere: float = 0.0
    """Sum of its rates in all other cells."""
    full: CellSums = NO_CELLS
    """Sums of the tenant over the other cells that cannot serve all demand."""

    @property
    def part(self) -> float:
        """This cell's part in the tenant's next step: half by what it could give up here, half by what it could take."""
        if self.full.demand <= 0:
            return 1.0  # no other cell takes a step for it
        give = _part(self.served, self.full.served)
        take = _part(self.demand - self.served, self.full.demand - self.full.served)
        return STEP * (give + take) / 2

    def entitled(self, level: float) -> float:
        """The tenant's rate here at a level, whatever it asks for."""
        everywhere = self.served + self.elsewhere
        return self.served + self.part * (self.weight * level - everywhere)

    def taken(self, level: float) -> float:
        """The tenant's rate here at a level, at most its demand."""
        return min(self.demand, max(0.0, self.entitled(level)))

    def level_of(self, rate: float) -> float:
        """The level at which it is entitled to a rate here."""
        return (self.served + self.elsewhere + (rate - self.served) / self.part) / self.weight


def demand_of(served: float, waiting: float, *, capacity: float, interval_s: float) -> float:
    """Demand of a tenant in a cell: its rate and what waits over one interval, at most all that the cell has.

    `waiting`: weighted tokens that its waiting requests will cost.
    """
    return min(served + waiting / interval_s, capacity)


def level_of(tenants: Mapping[str, TenantInCell], capacity: float) -> float | None:
    """The level at which the tenants take all of the capacity; None if they ask for no more than that."""
    return at_once(_level(tenants, capacity))


def local_weights(
    tenants: Mapping[str, TenantInCell], capacity: float, *, floor: float = FLOOR
) -> dict[str, float]:
    """The result of `weighing`, at once."""
    return at_once(weighing(tenants, capacity, floor=floor))


def weighing(
    tenants: Mapping[str, TenantInCell], capacity: float, *, floor: float = FLOOR
) -> Steps[dict[str, float]]:
    """Tenant → its weight inside the cell for the next interval; in steps.

    `tenants` are those with demand here; `floor` is this cell's part of `FLOOR`. The weights add up to the sum of their global weights,
    so that quanta keep their size. A cell that serves all demand uses the global weights.
    """
    level = yield from _level(tenants, capacity)
    if level is None or level <= 0:
        return {name: one.weight for name, one in tenants.items()}
    entitled: dict[str, float] = {}
    for part in _parts(tenants.items()):
        entitled |= {
            name: max(one.entitled(level), floor * one.weight * level) for name, one in part
        }
        yield
    scale = sum(one.weight for one in tenants.values()) / sum(entitled.values())
    yield
    return {name: rate * scale for name, rate in entitled.items()}


def _level(tenants: Mapping[str, TenantInCell], capacity: float) -> Steps[float | None]:
    if sum(one.demand for one in tenants.values()) <= capacity:
        return None
    parts = []
    for part in _parts(tenants.values()):
        parts.append(sorted(_bends(part)))
        yield
    bends = merge(*parts)
    level, slope = next(bends)
    # Where the demand of one ends with the capacity, rounding must not decide whether the level rises to that of the next one.
    taken, enough = 0.0, capacity * (1 - ROUNDING)
    for n, (at, more) in enumerate(bends):
        if taken + slope * (at - level) >= enough:
            break
        taken += slope * (at - level)
        level, slope = at, slope + more
        if n % STEP_TENANTS == 0:
            yield
    return level + (capacity - taken) / slope if slope > 0 else level


def _parts(every: Iterable[_Item]) -> Iterator[list[_Item]]:
    rest = iter(every)
    while part := list(islice(rest, STEP_TENANTS)):
        yield part


def at_once(steps: Steps[_Result]) -> _Result:
    """The result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _part(own: float, others: float) -> float:
    return own / (own + others) if own > 0 else 0.0


def _bends(tenants: Iterable[TenantInCell]) -> Iterator[tuple[float, float]]:
    """Where the sum of what tenants take bends: (level, change of its slope)."""
    for one in tenants:
        if (slope := one.weight * one.part) > 0:
            yield one.level_of(0.0), slope
            yield one.level_of(one.demand), -slope
