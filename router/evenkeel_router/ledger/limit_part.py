"""One router's part of one limit of a tenant: a token bucket, or a number of concurrent requests. Pure.

Part and level are fractions of the whole limit. A part p refills at p times the limit's rate and holds at most p times
its burst, so routers whose parts sum to 1 admit together what a single bucket admits. A part that moves takes
its level along: the taker does not get it refilled.
"""

from __future__ import annotations

import math
from typing import Final

from evenkeel_contract.limitswire import LimitGift, LimitWant

TINY: Final = 1e-9
"""Below this, a difference is a rounding error."""
DEMAND_S: Final = 5.0
"""Demand decays by e in this time, so parts follow clients within seconds."""
NO_DEMAND: Final = 0.02
"""A single request counts as demand for about 20 s."""


class LimitPart:
    """One limit here. With `fill_s` 0 it does not refill: what is taken comes back by `put`."""

    __slots__ = ("_demand", "_demand_s", "_level", "_updated_s", "fill_s", "name", "part", "size")

    def __init__(
        self,
        name: str,
        *,
        size: float,
        fill_s: float,
        part: float,
        level: float,
        now_s: float,
    ) -> None:
        """`level` may be more than `part`; it counts up to there."""
        self.name = name
        self.size = size
        self.fill_s = fill_s
        self.part = part
        self._level = min(level, self._most()) if fill_s else part
        self._updated_s = now_s
        self._demand = 0.0
        self._demand_s = now_s

    def resize(self, size: float, fill_s: float, now_s: float) -> None:
        """A changed limit: what was used stays used."""
        used = (self.part - self.level(now_s)) * self.size
        self.size, self.fill_s = size, fill_s
        self._level = self.part - used / size

    def free(self, now_s: float) -> float:
        """Requests or tokens that may be used here at `now_s`; negative: a debt."""
        return self.level(now_s) * self.size

    def level(self, now_s: float) -> float:
        """What is free, as a fraction of the whole burst."""
        if self.fill_s:
            passed_s = max(0.0, now_s - self._updated_s)
            grown = self._level + self._most() * passed_s / self.fill_s
            self._level = min(self._most(), grown)
        self._updated_s = max(self._updated_s, now_s)
        return self._level

    def _most(self) -> float:
        return max(0.0, self.part)

    def take(self, amount: float, now_s: float) -> None:
        """Use `amount`, below zero if need be; a negative amount gives back."""
        self._level = self.level(now_s) - amount / self.size
        if self.fill_s:
            self._level = min(self._most(), self._level)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until the whole limit has `amount` free, if other routers have nothing free now."""
        missing = amount / self.size - self.level(now_s)
        return max(0.0, missing * self.fill_s)

    def asked(self, amount: float, now_s: float) -> None:
        """A request of this size came, admitted or not."""
        self._demand = self.demand(now_s) + amount / self.size
        self._demand_s = now_s

    def demand(self, now_s: float) -> float:
        """What came lately, as a fraction of the whole; 0 where it came long ago."""
        demand = self._demand * math.exp(-max(0.0, now_s - self._demand_s) / DEMAND_S)
        return demand if demand * self.size >= NO_DEMAND else 0.0

    def want(self, need: float, now_s: float) -> LimitWant:
        """What this router asks others for: `need` is level, as a fraction of the whole."""
        return LimitWant(
            limit=self.name,
            size=self.size,
            fill_s=self.fill_s,
            demand=self.demand(now_s),
            part=self.part,
            need=max(0.0, need),
        )

    def give(self, want: LimitWant, demand_of_others: float, now_s: float) -> LimitGift | None:
        """Hand over what the asker lacks and what its share of the demand is; it is gone from here at once."""
        level = self.level(now_s)
        need = min(want.need, max(0.0, level))
        fair = self._fair(want, demand_of_others, now_s)
        part = min(max(fair, need, -want.part, 0.0), self._most())
        if not self.fill_s:
            part = carried = min(part, max(0.0, level))  # only what is not in use
        elif self.part - part > TINY:
            carried = level * part / self.part  # a debt goes along, too
            carried = max(need, carried) if level > 0.0 else carried
        else:  # the last of it
            part, carried = self.part, level
            if part < 0.0 or not (want.demand or want.part > 0.0):
                part = carried = 0.0
        if abs(part) <= TINY and abs(carried) <= TINY:
            return None
        self.part -= part
        self._level = level - carried
        return LimitGift(limit=self.name, part=part, level=carried)

    def _fair(self, want: LimitWant, demand_of_others: float, now_s: float) -> float:
        """What the asker lacks of its share of the demand.

        A part that is too small for one request is of no use: such parts would have to be put together again for each
        request. Of two routers that would both get one, the router with more demand gets all.
        """
        own = self.demand(now_s)
        all_demand = own + want.demand + demand_of_others
        if not all_demand:
            return 0.0
        fair = (self.part * want.demand - want.part * own) / all_demand
        smallest = 1.0 / self.size
        if self.part - fair < smallest - TINY:
            fair = self.part if want.demand > own else self.part - smallest
        if not self.fill_s:
            fair = math.floor(fair * self.size + TINY) / self.size
        return fair if want.part + fair >= smallest - TINY else 0.0

    def receive(self, gift: LimitGift, now_s: float) -> None:
        """Another router's gift."""
        level = self.level(now_s)
        self.part += gift.part
        self._level = level + gift.level
        if self.fill_s:
            self._level = min(self._most(), self._level)

    def count(self, missing: float, now_s: float, *, full: bool) -> None:
        """A census found a part that no router has; negative: a part that two routers have."""
        level = self.level(now_s)
        self.part += missing
        self._level = level + missing if full or not self.fill_s else min(self._most(), level)
