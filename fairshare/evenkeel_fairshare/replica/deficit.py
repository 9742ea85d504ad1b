"""Deficits: one level of the tree service → tenant → client, with DLPM's refill (design R1, R9).

Place in the flow: `dlpm` keeps one level of tenants and, below each tenant, one of its clients. All quantities
are weighted tokens; a negative deficit is a debt.

The surprising thing: a refill touches nobody. All queued members of a level always get the same number of
quanta, and only when none of them is positive, so a level need only count its rounds; who was last charged
in which round says what it has got since. This is the closed form of Algorithm 1's lines 3 to 8, and what
bounds the difference between members (DLPM, Theorem 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from evenkeel_fairshare.replica.lowest import Lowest, Ranked

WITHHELD: Final = 8
"""Rounds: what somebody who comes late to a new replica may make up for there, at most."""


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
    """Q^u: what a member of weight 1 gets per round, weighted tokens."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    remembered: int = 65_536
    """Members per level that left and are still known; beyond that the smallest debts are forgiven."""

    def __post_init__(self) -> None:
        if not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; it must be positive")
        if self.remembered < 1:
            raise ValueError(f"remembered is {self.remembered}; it must be at least 1")


class Account(Ranked):
    """A member of a level: a tenant, or a client of a tenant.

    Its `rank` is the round of its level in which it is positive, or became so: it is now, if that is not ahead.
    """

    __slots__ = (
        "_balance",
        "_children",
        "_round",
        "_sparing",
        "level",
        "name",
        "path",
        "running",
        "seed",
        "step",
    )

    def __init__(self, name: str, level: DeficitLevel, parent: Account | None) -> None:
        super().__init__()
        self.name = name
        self.level = level
        self.path: tuple[Account, ...] = (*parent.path, self) if parent else (self,)
        """From the tenant down to this account."""
        self.running = 0
        """Requests in the batch."""
        self.seed = 0.0
        """What the deficit started from (R5)."""
        self.step = level.rules.quantum
        """What one round gives: Q^u times the weight."""
        self._children: DeficitLevel | None = None
        self._balance = 0.0
        self._round = 0
        self._sparing = True

    @property
    def sparing(self) -> bool:
        """Whether a round came that it did not need: while it lived on this credit, or on the one before; or it has just come."""
        return self._sparing or self.rank < self.level.rounds

    @property
    def deficit(self) -> float:
        """q_i. Rounds count from the last charge on, up to the one that makes the deficit positive."""
        rounds, rank = self.level.rounds, self.rank
        got = (rank if rank < rounds else rounds) - self._round  # noqa: FURB136 min() is dearer
        return self._balance + got * self.step if got > 0 else self._balance

    @property
    def children(self) -> DeficitLevel:
        """The level below, made when first asked for."""
        if self._children is None:
            self._children = DeficitLevel(self.level.rules, warming=self.level.warming)
        return self._children

    def charge(self, cost: float) -> None:
        """Lines 23 and 26; `cost` is not negative."""
        # `_set(deficit - cost)` in one piece: this runs for every token.
        now = self.level.rounds
        balance = (self._balance if self._round == now else self.deficit) - cost
        self._balance = balance
        self._round = now
        if balance > 0:
            return  # its rank stays the round in which it became positive
        if self.rank <= now:
            self._sparing = self.rank < now
        self.rank = now + int(-balance // self.step) + 1

    def begin_waiting(self) -> None:
        """One more request in the queue."""
        self.waiting += 1
        if self.waiting == 1:
            self.level.queued.add(self)

    def admit(self, cost: float) -> None:
        """One request goes from the queue to the batch, which costs `cost`."""
        self.waiting -= 1
        self.running += 1
        self.charge(cost)

    def weigh(self, weight: float) -> None:
        """From now on a round gives `weight` quanta."""
        step = self.level.rules.quantum * weight
        if step != self.step:
            deficit = self.deficit
            self.step = step
            self._set(deficit)
            if self.waiting:
                self.level.queued.add(self)

    def start_from(self, seed: float) -> None:
        """Take over what departed replicas left (R5): debt or credit, which the ledger keeps in range."""
        self.seed = seed
        self._set(seed)

    def leave(self) -> None:
        """Out of the list l: what is left of the deficit stays as it is until `come_back` (R4)."""
        keeps_debt = self.level.rules.rejoin is Rejoin.KEEP_DEBT
        self._balance = min(self.deficit, 0.0) if keeps_debt else 0.0
        self._round = self.rank = self.level.rounds  # no round gives it anything
        self._sparing = True

    def come_back(self) -> None:
        """Into the list l again."""
        self._set(self._balance)

    def _set(self, deficit: float) -> None:
        now = self.level.rounds
        self._balance = deficit
        self._round = now
        # §1.13 b: as many rounds as it takes to be positive; that is none, or fewer, where it is.
        self.rank = now + int(-deficit // self.step) + 1


class DeficitLevel:
    """The list l of Algorithm 1: members that have a request waiting or running, with their deficits."""

    __slots__ = ("_departed", "members", "queued", "reach", "rounds", "rules", "warming")

    def __init__(self, rules: DeficitRules, *, warming: bool = False) -> None:
        self.rules = rules
        self.warming = warming
        """The last `WITHHELD` rounds are not given yet: whoever needs the fewest goes first all the same."""
        self.members: dict[str, Account] = {}
        self.queued: Lowest[Account] = Lowest()
        self.rounds = 0
        """Quanta given to every queued member so far."""
        self.reach = 0
        """Who ranks no higher counts as positive: `rounds`, and those withheld while the level warms up."""
        self._departed: dict[str, Account] = {}

    def knows(self, name: str) -> bool:
        """Whether `name` was here before, as far as the level remembers."""
        return name in self.members or name in self._departed

    def join(self, name: str, *, weight: float, parent: Account | None = None) -> Account:
        """Line 12: the account of `name`: new, or come back with what it left with. The newest weight counts."""
        account = self.members.get(name)
        if account is None:
            account = self._departed.pop(name, None) or Account(name, self, parent)
            account.come_back()
            self.members[name] = account
        account.weigh(weight)
        return account

    def leave_if_idle(self, account: Account) -> None:
        """A member with nothing waiting and nothing running leaves (§1.13 c)."""
        if account.waiting or account.running:
            return
        account.leave()
        del self.members[account.name]
        self._departed[account.name] = account
        if len(self._departed) > self.rules.remembered:
            self._forget()

    def refill(self) -> None:
        """CheckRefill, lines 3 to 8.

        Line 7 repeated until a queued member is positive: the same number of quanta for all queued members,
        the smallest that makes one of them positive (§1.13 b).
        """
        first = self.queued.find()
        if first is not None:
            self.advance(int(first.rank))

    def advance(self, rank: int) -> None:
        """Quanta until those of this rank count as positive."""
        self.reach = max(self.reach, rank)
        self.rounds = max(self.rounds, self.reach - (WITHHELD if self.warming else 0))

    def begin_pass(self) -> None:
        """While it warms up nobody stays positive from one pass to the next: who came since may need less."""
        self.reach = self.rounds

    def end_warming(self) -> None:
        """No round is withheld any more; those that were are given to everybody alike, so that nobody missed any."""
        self.warming, here = False, list(self.members.values())
        gone = list(self._departed.values())
        for account in gone:
            account.come_back()
        ranks = [int(account.rank) for account in here or gone]
        self.rounds = self.reach = max(self.rounds, min(ranks, default=0))
        for account in gone:
            account.leave()

    def known(self) -> Iterator[Account]:
        """Members, then those that left and are remembered."""
        yield from self.members.values()
        yield from self._departed.values()

    def _forget(self) -> None:
        """Forget half of those that left: the smallest debts, among equals those that left first."""
        by_debt = sorted(self._departed.values(), key=lambda gone: gone.deficit, reverse=True)
        for account in by_debt[: len(by_debt) // 2]:
            del self._departed[account.name]
