"""Deficits: one level of the tree service → tenant → client, with DLPM's refill (design R1, R9).

Place in the flow: `dlpm` keeps one level of tenants and, below each tenant, one of its clients. All quantities
are weighted tokens; a negative deficit is a debt.

The surprising thing: nobody gains by being refilled. All queued members of a level always get the same
number of quanta, and only when none of them is positive, which is what bounds their difference
(DLPM, Theorem 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Rejoin(Enum):
    """What becomes of the deficit of a member that left and comes back (R4)."""

    KEEP_DEBT = "KeepDebt"
    """A debt stays, credit is forfeited: q := min(q, 0)."""
    PAPER = "Paper"
    """q := 0, as Algorithm 1 prints it: forgives up to U each time, which can be farmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeficitRules:
    """What all levels of one policy have in common."""

    quantum: float = 8000.0
    """Q^u: what a member of weight 1 gets per refill, weighted tokens."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    remembered: int = 65_536
    """Members per level that left and are still known; beyond that the smallest debts are forgiven."""

    def __post_init__(self) -> None:
        if not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; it must be positive")
        if self.remembered < 1:
            raise ValueError(f"remembered is {self.remembered}; it must be at least 1")


@dataclass(slots=True, eq=False)
class Account:
    """A member of a level: a tenant, or a client of a tenant."""

    name: str
    level: DeficitLevel
    parent: Account | None
    weight: float = 1.0
    deficit: float = 0.0
    waiting: int = 0
    """Requests in the queue."""
    running: int = 0
    """Requests in the batch."""
    path: tuple[Account, ...] = field(init=False)
    """From the tenant down to this account."""
    _children: DeficitLevel | None = None

    def __post_init__(self) -> None:
        self.path = (*self.parent.path, self) if self.parent else (self,)

    @property
    def children(self) -> DeficitLevel:
        """The level below, made when first asked for."""
        if self._children is None:
            self._children = DeficitLevel(self.level.rules)
        return self._children

    def charge(self, cost: float) -> None:
        """Lines 23 and 26."""
        was_positive = self.deficit > 0
        self.deficit -= cost
        if self.waiting:
            self.level.positive += (self.deficit > 0) - was_positive

    def begin_waiting(self) -> None:
        """One more request in the queue."""
        self.waiting += 1
        if self.waiting == 1 and self.deficit > 0:
            self.level.positive += 1

    def end_waiting(self) -> None:
        """One request fewer in the queue."""
        self.waiting -= 1
        if self.waiting == 0 and self.deficit > 0:
            self.level.positive -= 1


class DeficitLevel:
    """The list l of Algorithm 1: members that have a request waiting or running, with their deficits."""

    __slots__ = ("_departed", "members", "positive", "rounds", "rules")

    def __init__(self, rules: DeficitRules) -> None:
        self.rules = rules
        self.members: dict[str, Account] = {}
        self.rounds = 0
        """Quanta given to every queued member so far."""
        self.positive = 0
        """Queued members with a positive deficit, so that line 5 costs nothing."""
        self._departed: dict[str, Account] = {}

    def knows(self, name: str) -> bool:
        """Whether `name` was here before, as far as the level remembers."""
        return name in self.members or name in self._departed

    def join(self, name: str, *, weight: float, parent: Account | None = None) -> Account:
        """Line 12: the account of `name`: new, or come back with what it left with. The newest weight counts."""
        account = self.members.get(name)
        if account is None:
            account = self._departed.pop(name, None) or Account(name, self, parent)
            self.members[name] = account
        account.weight = weight
        return account

    def leave_if_idle(self, account: Account) -> None:
        """A member with nothing waiting and nothing running leaves (§1.13 c)."""
        if account.waiting or account.running:
            return
        del self.members[account.name]
        keeps_debt = self.rules.rejoin is Rejoin.KEEP_DEBT
        account.deficit = min(account.deficit, 0.0) if keeps_debt else 0.0
        self._departed[account.name] = account
        if len(self._departed) > self.rules.remembered:
            self._forget()

    def refill(self) -> bool:
        """CheckRefill, lines 3 to 8; whether anybody was refilled.

        Closed form of line 7 repeated until a queued member is positive (§1.13 b): the same number of
        quanta for all queued members, the smallest that makes one of them positive. Members without queued
        work stop once they are positive.
        """
        if self.positive:
            return False
        quantum = self.rules.quantum
        needs = {
            account: int(-account.deficit // (quantum * account.weight)) + 1
            for account in self.members.values()
            if account.deficit <= 0
        }
        rounds = min(need for account, need in needs.items() if account.waiting)
        for account, need in needs.items():
            account.deficit += min(rounds, need) * quantum * account.weight
            if account.waiting and account.deficit > 0:
                self.positive += 1
        self.rounds += rounds
        return True

    def known(self) -> Iterator[Account]:
        """Members, then those that left and are remembered."""
        yield from self.members.values()
        yield from self._departed.values()

    def _forget(self) -> None:
        """Forget half of those that left: the smallest debts, among equals those that left first."""
        by_debt = sorted(self._departed.values(), key=lambda gone: gone.deficit, reverse=True)
        for account in by_debt[: len(by_debt) // 2]:
            del self._departed[account.name]
