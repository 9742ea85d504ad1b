"""What a ledger keeps up to date with its rows, so that no question passes over all accounts: seeds, changed accounts, demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from evenkeel_fairshare.ledger.merge_table import MergeTable

DEMAND_ROUNDS: Final = 3
"""Rounds of requested rates in which a client's rate counts. Every round has all clients that are not silent."""


class Seeds:
    """The seeds of clients and tenants at all incarnations (R5). No zeros."""

    def __init__(self) -> None:
        self.promised: dict[str, dict[str, float]] = {}
        """Client or tenant → incarnation → its seed there, which a known router promised."""
        self.unpromised: dict[str, dict[str, float]] = {}
        """Client or tenant → incarnation → its seed there, which no known router promised (R8)."""

    def note(self, incarnation: str, name: str, seed: float | None, *, promised: bool) -> None:
        """The seed of a client or tenant at an incarnation may have changed; None: it has none there."""
        if not (seed or name in self.promised or name in self.unpromised):
            return
        for seeds in (self.promised, self.unpromised):
            if name in seeds:
                seeds[name].pop(incarnation, None)
                if not seeds[name]:
                    del seeds[name]
        if seed:
            seeds = self.promised if promised else self.unpromised
            seeds.setdefault(name, {})[incarnation] = seed

    def of(
        self, name: str, alive: AbstractSet[str], counts: Callable[[str], bool]
    ) -> Iterator[float]:
        """The seeds of a client or tenant at the incarnations of `alive`. `counts`: at which a seed counts that no router promised."""
        if seeds := self.promised.get(name):
            is_all = seeds.keys() <= alive  # a quarter of the time of an intersection
            yield from seeds.values() if is_all else map(seeds.__getitem__, seeds.keys() & alive)
        if seeds := self.unpromised.get(name):
            yield from map(seeds.__getitem__, filter(counts, seeds.keys() & alive))


class Changes:
    """Numbers the changes of a ledger's accounts, and of the incarnations that it takes for alive."""

    def __init__(self) -> None:
        self.revision = 1
        self.live_revision = 1
        """Revision from which on the incarnations that are alive are the same."""
        self._live: frozenset[str] = frozenset()
        self._unnumbered: dict[str, None] = {}
        """Incarnations whose accounts changed since the last `number`."""
        self._changed: dict[str, int] = {}
        """Incarnation → revision of the last change of its account, oldest first."""

    def note(self, incarnation: str) -> None:
        """An account changed."""
        self._unnumbered[incarnation] = None

    def forget(self, incarnation: str) -> None:
        """An account was removed."""
        self._unnumbered.pop(incarnation, None)
        self._changed.pop(incarnation, None)

    def number(self, live: frozenset[str]) -> None:
        """Give all changes since the last call the next revision. `live`: the incarnations that are alive now."""
        is_new = live != self._live
        self.revision += bool(is_new or self._unnumbered)
        if is_new:
            self._live, self.live_revision = live, self.revision
        for name in self._unnumbered:
            self._changed.pop(name, None)
            self._changed[name] = self.revision  # the newest
        self._unnumbered.clear()

    def since(self, revision: int) -> list[str]:
        """Incarnations whose accounts changed after a revision."""
        changed = reversed(self._changed.items())
        return [name for name, _ in takewhile(lambda item: item[1] > revision, changed)]


@dataclass(slots=True)
class Demand:
    """The requested rates of clients at one router (design §6)."""

    rates: MergeTable = field(default_factory=lambda: MergeTable(columns=1))
    head: float = 0.0
    """Rounds of rates that are here."""

    def rate(self, client: str) -> float:
        """Weighted tokens per second; 0 without a rate in the last rounds."""
        is_current = self.rates.cell(client, 0) > self.head - DEMAND_ROUNDS
        return self.rates.cell(client, 1) if is_current else 0.0

    def current(self) -> tuple[str, ...]:
        """The clients whose rates count."""
        return self.rates.since(self.head - DEMAND_ROUNDS).names

    def drop_stale(self) -> None:
        """Give back the memory of clients that request nothing any more. Rows that count nothing may return: they age again."""
        stale = self.rates.until(self.head - DEMAND_ROUNDS)
        if 4 * len(stale) > len(self.rates):  # a drop moves all rows
            self.rates.drop(stale)
