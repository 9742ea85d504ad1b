"""Levels, lifts and leads: how far ahead of the least served each client is (design R4, §7).

Place in the flow: pages and book → service per member → **levels** → metrics. Scheduling does not use them: it
goes by deficits (`standing`), which only DLPM keeps; service tells the truth under any policy. A scope is the service, whose members are the tenants, or a tenant, whose members are its clients. Its
level is the least service of a backlogged member; it only rises. A member that becomes backlogged is lifted to
it: whoever was idle is owed nothing for that time. Levels and lifts merge by maximum.

The surprising thing: after a time in which nobody was backlogged the level jumps to the most served of those
who come first. What somebody took while nobody else wanted it is nobody's loss (VTC, Algorithm 2, line 10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

SERVICE_SCOPE: Final = ""
"""The scope whose members are the tenants; a tenant is the scope of its clients."""

Served = Callable[[str], float]
"""Normalised service of a member, all incarnations together, without lift."""


class Registers:
    """Names → numbers that only rise; joined by maximum. Remembers in which order they changed."""

    __slots__ = ("_ticks", "_values", "tick")

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._ticks: dict[str, int] = {}
        self.tick = 0
        """How many changes there were here."""

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> float:
        return self._values.get(name, 0.0)

    def raise_to(self, name: str, value: float) -> bool:
        """Join one number; whether it rose."""
        if value <= self._values.get(name, 0.0):
            return False
        self.tick += 1
        self._values[name] = value
        self._ticks.pop(name, None)
        self._ticks[name] = self.tick
        return True

    def merge(self, values: Mapping[str, float]) -> None:
        """Join numbers."""
        for name, value in values.items():
            self.raise_to(name, value)

    def since(self, tick: int) -> dict[str, float]:
        """What changed here after `tick`."""
        changed = {}
        for name in reversed(self._ticks):
            if self._ticks[name] <= tick:
                break
            changed[name] = self._values[name]
        return changed

    def forget(self, name: str) -> None:
        """Drop a number. A peer may bring it back, which does no harm: it is below its scope's level."""
        self._values.pop(name, None)
        self._ticks.pop(name, None)


class Levels:
    """The levels of all scopes and the lifts of their members."""

    __slots__ = ("_backlogged", "levels", "lifts")

    def __init__(self) -> None:
        self.levels = Registers()
        self.lifts = Registers()
        self._backlogged: dict[str, frozenset[str]] = {}

    def observe(self, scope: str, backlogged: Sequence[str], served: Served) -> None:
        """Take note of who is backlogged in a scope now: lift those who come, then raise the level."""
        before = self._backlogged.get(scope, frozenset())
        now = frozenset(backlogged)
        if not now:
            self._backlogged.pop(scope, None)
            return
        self._backlogged[scope] = now
        lifted = {name: served(name) + self.lifts[name] for name in now}
        if not before:
            self.levels.raise_to(scope, max(lifted.values()))
        level = self.levels[scope]
        for name in now - before:
            if lifted[name] < level:
                self.lifts.raise_to(name, level - served(name))
                lifted[name] = level
        self.levels.raise_to(scope, min(lifted.values()))

    def lead(self, scope: str, name: str, served: Served) -> float:
        """How far a member is ahead of the level; negative while it was idle."""
        return served(name) + self.lifts[name] - self.levels[scope]

    def backlogged(self, scope: str) -> frozenset[str]:
        """Members that were backlogged when last observed."""
        return self._backlogged.get(scope, frozenset())
