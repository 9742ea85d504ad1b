"""Deficits: one level of the tree service → tenant → client, with DLPM's refill (design R1, R9); and its quantum.

`dlpm` keeps one level of tenants and, below each tenant, one level of its clients. Quantities are weighted tokens; a
negative deficit is a debt.

A refill changes no account. All queued members of a level get the same number of quanta, and only when none of them is
positive. So a level only counts its refills, and an account computes its refills since its last charge. This is the
closed form of Algorithm 1's lines 3 to 8, which bounds the difference between members (DLPM, Theorem 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFERRED_REFILLS: Final = 8
"""Refills that a new replica defers while it warms up. A client that arrives late still gets at most this many."""

SHARE_S: Final = 0.125
"""Seconds of the replica's service in a quantum."""
FIRST_QUANTUM: Final = 1000.0
"""Weighted tokens, until the first measurement; and always where no policy measures."""
SMALLEST_QUANTUM: Final = 100.0
LARGEST_QUANTUM: Final = 8000.0
"""Weighted tokens. Routers take it for replicas that report no quantum (R5)."""
PERIOD_S: Final = 10.0
"""Seconds with waiting requests in a measurement."""
TOLERANCE: Final = 1.5
"""Ratio below which a new measurement changes nothing: a change costs a pass over all clients."""


class Rejoin(Enum):
    """Deficit of a member that returns after being idle (R4)."""

    KEEP_DEBT = "KeepDebt"
    """A debt stays, credit is lost: q := min(q, 0). Refills of others reduce the debt, and it ends once nothing waits (R15)."""
    PAPER = "Paper"
    """q := 0, as Algorithm 1 prints it. Each return cancels a debt of up to U, which a client can exploit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeficitRules:
    """The common parameters of all levels of a policy."""

    quantum: float | None = None
    """Q^u: weighted tokens per refill for a member of weight 1. None: DLPM measures it (`MeasuredQuantum`)."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    remembered: int = 65_536
    """Idle members per level whose debts are kept; beyond this number the smallest debts are cancelled."""
    first_turn: bool = True
    """Whether a member that joins without a debt gets the quantum of the current round (R17). Never with `Rejoin.PAPER`."""

    def __post_init__(self) -> None:
        if not self.first_quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; it must be positive")
        if self.remembered < 1:
            raise ValueError(f"remembered is {self.remembered}; it must be at least 1")

    @property
    def first_quantum(self) -> float:
        """The quantum before any measurement."""
        return FIRST_QUANTUM if self.quantum is None else self.quantum

    @property
    def gives_first_turn(self) -> bool:
        """Whether R17 is in force."""
        return self.first_turn and self.rejoin is Rejoin.KEEP_DEBT


class Account:
    """A member of a level: a tenant, or a client of a tenant."""

    __slots__ = (
        "_balance",
        "_balance_at",
        "_children",
        "held",
        "level",
        "name",
        "path",
        "positive_from",
        "quantum",
        "refused",
        "running",
        "seed",
        "waiting",
        "was_light",
        "weight",
    )

    def __init__(
        self, name: str, level: DeficitLevel, parent: Account | None, *, weight: float
    ) -> None:
        self.name = name
        self.level = level
        self.path: tuple[Account, ...] = (*parent.path, self) if parent else (self,)
        """Accounts from the tenant down to this one."""
        self.waiting = 0
        """Requests in the queue."""
        self.running = 0
        """Requests in the batch."""
        self.refused = 0
        """Waiting requests that the current pass refused."""
        self.held = 0
        """Waiting requests that the engine can begin only after another prompt. Other clients get refills meanwhile."""
        self.seed = 0.0
        """The first deficit (R5)."""
        self.weight = weight
        self.quantum = level.quantum * weight
        """Weighted tokens per refill: Q^u times the weight."""
        self.positive_from = 0
        """Number of the refill that makes the deficit positive, or made it so."""
        self._children: DeficitLevel | None = None
        self._balance = 0.0
        self._balance_at = 0  # the number of refills in the balance
        self.was_light = True
        """Whether a refill came that it did not need, during its credit before this one."""

    @property
    def is_light(self) -> bool:
        """Whether it takes less than its share: a refill came that it did not need, during its current credit or the one
        before. A new member is light."""
        return self.was_light or self.positive_from < self.level.refills

    @property
    def deficit(self) -> float:
        """q_i: the balance and the refills since, up to the one that makes it positive."""
        refills, last = self.level.refills, self.positive_from
        got = (last if last < refills else refills) - self._balance_at  # noqa: FURB136 min() is dearer
        return self._balance + got * self.quantum if got > 0 else self._balance

    @property
    def children(self) -> DeficitLevel:
        """The level below; created at the first use."""
        if self._children is None:
            self._children = DeficitLevel(
                self.level.rules,
                warming_up=self.level.warming_up,
                quantum=self.level.quantum,
                depth=self.level.depth + 1,
                parent=self.level,
            )
        return self._children

    def charge(self, cost: float) -> None:
        """Lines 23 and 26; `cost` is not negative."""
        # An inlined `_set(deficit - cost)`: this runs for every token.
        level = self.level
        now = level.refills
        balance = (self._balance if self._balance_at == now else self.deficit) - cost
        self._balance = balance
        self._balance_at = now
        if balance > 0:
            return  # `positive_from` stays the refill that made it positive
        # This charge ends a credit. The member is light if a refill came during it that it did not need.
        if self.positive_from <= now:
            self.was_light = self.positive_from < now
            level.owing[self] = None
            if self.waiting:
                level.moved[self] = None
        # + 1: a deficit of exactly 0 is not positive.
        self.positive_from = positive = now + int(-balance // self.quantum) + 1
        level.last_debt = max(level.last_debt, positive)

    def pay_back(self, cost: float) -> None:
        """Take back a part of what was charged; `cost` is not negative."""
        self._set(self.deficit + cost)

    def weigh(self, weight: float) -> None:
        """Change the weight: each later refill gives `weight` quanta."""
        self.weight = weight
        quantum = self.level.quantum * weight
        if quantum != self.quantum:
            deficit = self.deficit
            self.quantum = quantum
            self._set(deficit)

    def weigh_debt(self) -> None:
        """Let later refills pay the debt of a member that left in the level's present quantum."""
        if self.deficit < 0:
            self.weigh(self.weight)
            self.positive_from -= 1

    def start_from(self, seed: float) -> None:
        """Start from debt or credit of ended replicas (R5), which the ledger keeps in range.

        Without a debt it has at least the quantum of the current round (R17).
        """
        self.seed = seed
        self._set(seed if seed < 0 else max(seed, self.level.turn * self.weight))

    def leave(self) -> None:
        """Leave the list l: credit is lost (R4). Refills reduce the debt further, to less than a quantum (R15)."""
        keeps_debt = self.level.rules.rejoin is Rejoin.KEEP_DEBT
        self._balance = balance = min(self.deficit, 0.0) if keeps_debt else 0.0
        self._balance_at = now = self.level.refills
        # The last refill that does not make it positive. Without a debt it needs none, so `last_debt` stays.
        self.positive_from = now + int(-balance // self.quantum)
        self.was_light = True

    def come_back(self) -> None:
        """Return to the list l. Without a debt it gets the quantum of the current round (R17), but not of a round in which it was
        here before, or whose quantum paid the last of its debt."""
        level, deficit = self.level, self.deficit
        if deficit == 0 and self.positive_from < level.refills:
            deficit = level.turn * self.weight
        self._set(deficit)

    def renew(self, before: int) -> None:
        """The level ended debts; it had `before` refills. Nothing else changes."""
        # An inlined `_set(deficit)`: this runs for every member at each arrival at an empty queue.
        level, last = self.level, self.positive_from
        now = level.refills
        self.was_light = self.was_light or last < before
        got = (last if last < now else now) - self._balance_at  # noqa: FURB136 min() is dearer
        if got > 0:
            self._balance += got * self.quantum
        self._balance_at = now
        self.positive_from = positive = now + int(-self._balance // self.quantum) + 1
        level.last_debt = max(level.last_debt, positive)
        if positive > now:
            level.owing[self] = None

    def _set(self, deficit: float) -> None:
        level = self.level
        self._balance_at = now = level.refills
        self._balance = deficit
        # §1.13 b: the refills until it is positive; zero or less if it is positive already.
        self.positive_from = positive = now + int(-deficit // self.quantum) + 1
        level.last_debt = max(level.last_debt, positive)
        if positive > now:
            level.owing[self] = None
        if self.waiting:
            level.moved[self] = None


class DeficitLevel:
    """The list l of Algorithm 1: members that have a request waiting or running, with their deficits."""

    __slots__ = (
        "_departed", "depth", "forgotten", "horizon", "last_debt", "members", "moved", "owing", "quantum", "refilled", "refills",
        "rules", "turn", "warming_up",
    )  # fmt: skip

    def __init__(
        self,
        rules: DeficitRules,
        *,
        warming_up: bool = False,
        quantum: float | None = None,
        depth: int = 0,
        parent: DeficitLevel | None = None,
    ) -> None:
        self.rules = rules
        # The policy reads and empties these three, which all levels of a tree share.
        self.moved: dict[Account, None] = {} if parent is None else parent.moved
        """Waiting members that may be eligible at another refill than before: all but those whose debt grew (`rounds`)."""
        self.refilled: dict[DeficitLevel, int] = {} if parent is None else parent.refilled
        """Level → refills that it had when the policy last read this."""
        self.forgotten: dict[str, str] = {} if parent is None else parent.forgotten
        """Client that is not remembered any more → its tenant."""
        self.owing: dict[Account, None] = {}
        """Members and idle members whose deficits the next refill raises, and perhaps others, which `raised` removes."""
        self.depth = depth
        """Index of its members in the paths of accounts."""
        self.quantum = rules.first_quantum if quantum is None else quantum
        """Weighted tokens per refill for a member of weight 1, from now on."""
        self.warming_up = warming_up
        """Whether the last `DEFERRED_REFILLS` refills are deferred: they count for the order but not in deficits yet."""
        self.members: dict[str, Account] = {}
        self.refills = 0
        """Refills so far. Every queued member got as many quanta."""
        self.horizon = 0
        """Refill horizon: `refills` and the deferred ones. A member is eligible if its `positive_from` is not beyond it."""
        self.turn = 0.0
        """What the last refill gave for weight 1, for those that join without a debt (R17); 0 before the first refill."""
        self.last_debt = 0
        """Number of the refill after which no account that ever was here is in debt by a quantum or more."""
        self._departed: dict[str, Account] = {}

    def join(
        self, name: str, *, weight: float, seed: float = 0.0, parent: Account | None = None
    ) -> Account:
        """Line 12: the account of `name`, with its old deficit or, as far as the level remembers, new with `seed`. The newest
        weight counts. Without a debt it gets its turn in the current round (R17)."""
        account = self.members.get(name)
        if account is not None:
            if account.weight != weight:
                account.weigh(weight)
            return account
        account = self._departed.pop(name, None)
        if account is None:
            account = Account(name, self, parent, weight=weight)
            account.start_from(seed)
        else:
            # Before the new weight counts: the refills that it missed gave quanta of the old one.
            account.come_back()
            account.weigh(weight)
        self.members[name] = account
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

    def charge_running(self, cost: float) -> None:
        """Each running request of each member costs so much."""
        for account in self.members.values():
            if account.running:
                account.charge(cost * account.running)

    def refill_to(self, horizon: int) -> None:
        """CheckRefill, lines 3 to 8, for when no queued member is eligible; `horizon` is their least `positive_from`.

        Line 7 repeated until a queued member is eligible: the same number of quanta for all queued members, the
        smallest that makes one of them eligible (§1.13 b).
        """
        self.horizon = max(self.horizon, horizon)
        self._refill(self.horizon - (DEFERRED_REFILLS if self.warming_up else 0))

    def change_quantum(self, quantum: float) -> None:
        """Later refills give `quantum`. Deficits do not change, so each member got the same from earlier refills."""
        if quantum == self.quantum:
            return
        self.quantum = quantum
        for account in self.members.values():
            account.weigh(account.weight)
        for account in self._departed.values():
            account.weigh_debt()

    def end_debts(self) -> None:
        """No member is queued: refill until no debt is a quantum or more (R15).

        Such debts are those of clients that used the engine while no other client waited. No bound changes: the proofs depend
        on the refills while a member is queued. A client gains nothing that a request at this moment would not give it.
        """
        if self.warming_up or self.refills >= self.last_debt:
            return
        if self.rules.rejoin is Rejoin.KEEP_DEBT:
            before = self.refills
            self.horizon = max(self.horizon, self.last_debt)
            self._refill(self.horizon)
            for member in self.members.values():
                member.renew(before)

    def begin_pass(self) -> None:
        """Start a pass. During warm-up no member stays eligible from one pass to the next: a new member may need fewer
        refills."""
        self.horizon = self.refills

    def end_warmup(self) -> None:
        """Let refills take effect at once. Deferred refills go to all members, so that no member misses any."""
        self.warming_up = False
        needed = [account.positive_from for account in self.members.values()]
        # `positive_from` of one that left is the last refill that does not make it positive.
        needed = needed or [account.positive_from + 1 for account in self._departed.values()]
        self._refill(min(needed, default=0))
        self.horizon = self.refills

    def find(self, name: str) -> Account | None:
        """A member, or an idle member that the level remembers."""
        return self.members.get(name) or self._departed.get(name)

    def known(self) -> Iterator[Account]:
        """Members, then idle members that the level remembers."""
        yield from self.members.values()
        yield from self._departed.values()

    def raised(self, since: int) -> Iterator[Account]:
        """Accounts whose deficits the refills after `since` raised. Those that later refills do not raise are left out of `owing`."""
        settled = []
        for account in self.owing:
            if account.positive_from > since:
                yield account
            if account.positive_from <= self.refills:
                settled.append(account)
        for account in settled:
            del self.owing[account]

    def _refill(self, number: int) -> None:
        """The refills up to this number."""
        if number > self.refills:
            self.refilled.setdefault(self, self.refills)
            self.refills = number
            self.turn = self.quantum if self.rules.gives_first_turn else 0.0

    def _forget(self) -> None:
        """Remove half of the idle members: the smallest debts first, among equals the longest idle."""
        # Half of them at once: one sort then serves many departures.
        by_debt = sorted(self._departed.values(), key=lambda gone: gone.deficit, reverse=True)
        for account in by_debt[: len(by_debt) // 2]:
            del self._departed[account.name]
            self.owing.pop(account, None)
            gone = (account,) if self.depth else account.children.known()
            self.forgotten |= {client.name: account.path[0].name for client in gone}


class MeasuredQuantum:
    """`clientQuantum: Auto`: the quantum is a share of a second of the replica's own service (design R2; docs/design/0005).

    A constant Q^u is seconds of service for a small replica and milliseconds for a large one, and clients wait about as long as
    the others need for their quanta. A larger quantum bought no cache hits in any workload.

    Service is measured only while requests wait. Otherwise a replica with little to do would count as a slow one.
    """

    __slots__ = ("_elapsed_s", "_last", "_service", "value")

    def __init__(self) -> None:
        self.value = FIRST_QUANTUM
        """Weighted tokens per refill for weight 1."""
        self._elapsed_s = 0.0
        self._service = 0.0
        self._last: tuple[float, float] | None = None
        """(time, total service) at the last pass; None if no request waited at some time since."""

    def queue_was_empty(self) -> None:
        """The time since the last pass does not count."""
        self._last = None

    def begin_pass(self, now_s: float, service: float) -> bool:
        """A pass of admissions over waiting requests; `service`: weighted tokens served so far. Whether `value` changed."""
        last, self._last = self._last, (now_s, service)
        if last is None:
            return False
        self._elapsed_s += now_s - last[0]
        self._service += service - last[1]
        if self._elapsed_s < PERIOD_S:
            return False
        measured = SHARE_S * self._service / self._elapsed_s
        self._elapsed_s = self._service = 0.0
        quantum = min(max(measured, SMALLEST_QUANTUM), LARGEST_QUANTUM)
        if 1 / TOLERANCE < quantum / self.value < TOLERANCE:
            return False
        self.value = quantum
        return True
