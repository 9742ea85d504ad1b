"""All parts of tenants' limits that one router has, and the messages in which parts move (design/limits.md). Pure.

A router that gives a part lowers its own first. A part whose message is lost is in no router until a census finds it:
one router asks all others what they have and takes what is missing. A census begins a new epoch, and parts move only
between routers of one epoch, so a part on its way is either counted at its giver or accepted by its taker, not both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.limitswire import (
    Epoch,
    HeldParts,
    LimitGift,
    LimitsAnswer,
    LimitsAsk,
    LimitWant,
)

TINY: Final = 1e-9
"""Largest difference that counts as a rounding error."""
DEMAND_S: Final = 5.0
"""Demand decays by e in this time, so parts follow clients within seconds."""
NO_DEMAND: Final = 0.02
"""A single request counts as demand for about 20 s."""


class LimitPart:
    """One limit at this router. With `fill_s` 0 it does not refill: what was taken is given back."""

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
        """Change the limit; the amount in use stays."""
        # A number of requests or tokens: it stays, while a fraction of the limit would not.
        used = (self.part - self.level(now_s)) * self.size
        self.size, self.fill_s = size, fill_s
        self._level = self.part - used / size

    def free(self, now_s: float) -> float:
        """Requests or tokens that may be used here at `now_s`; negative: a debt."""
        return self.level(now_s) * self.size

    def level(self, now_s: float) -> float:
        """The free amount, as a fraction of the whole burst."""
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

    def wait_s(self, now_s: float, amount: float = 1.0) -> float:
        """Seconds until the whole limit has `amount` free, if other routers have nothing free now."""
        missing = amount / self.size - self.level(now_s)
        return max(0.0, missing * self.fill_s)

    def asked(self, amount: float, now_s: float) -> None:
        """A request of this size came, admitted or not."""
        self._demand = self.demand(now_s) + amount / self.size
        self._demand_s = now_s

    def demand(self, now_s: float) -> float:
        """The recent demand, as a fraction of the whole limit; 0 if the last demand is long ago."""
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
        """Give the asker what it lacks, and its share of the demand. The amount leaves this router at once."""
        level = self.level(now_s)
        need = min(want.need, max(0.0, level))
        fair = self._fair(want, demand_of_others, now_s)
        # `-want.part`: a census may leave a router with a negative part, which is filled up first.
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
        """Take another router's gift."""
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


NEVER: Final[Epoch] = (0, "")
HEARD_S: Final = 5.0
"""How long the demand that another router states counts."""


@dataclass(frozen=True, slots=True)
class _Unused:
    """A part of a limit that this router has not used yet."""

    part: float
    since_s: float
    """Time at which the part's bucket was empty; it fills since."""

    def found(self, missing: float, since_s: float) -> _Unused:
        return _Unused(self.part + missing, max(self.since_s, since_s))


class LimitParts:
    """The parts of one router."""

    def __init__(self, router: str) -> None:
        """`router`: its incarnation. It has no part until a census, its own or another router's."""
        self.router = router
        self.epoch: Epoch = NEVER
        self._highest = 0
        self._default = _Unused(0.0, -math.inf)
        self._unused: dict[str, _Unused] = {}
        self._limits: dict[str, LimitPart] = {}
        self._heard: dict[str, dict[str, tuple[float, float]]] = {}  # limit, router: demand, when
        self._asked_s: dict[str, float] = {}
        self._before: HeldParts | None = None

    @property
    def has_entered(self) -> bool:
        """Whether this router was in any epoch: before, it cannot have a part."""
        return self.epoch != NEVER

    def limit(self, name: str, *, size: float, fill_s: float, now_s: float) -> LimitPart:
        """This router's part of one limit."""
        limit = self._limits.get(name)
        if limit is None:
            unused = self._unused.pop(name, self._default)
            passed_s = now_s - unused.since_s
            filled = min(1.0, passed_s / fill_s) if fill_s else 1.0
            limit = self._limits[name] = LimitPart(
                name,
                size=size,
                fill_s=fill_s,
                part=unused.part,
                level=unused.part * filled,
                now_s=now_s,
            )
        elif (limit.size, limit.fill_s) != (size, fill_s):
            limit.resize(size, fill_s, now_s)
        return limit

    def parts(self) -> Iterator[tuple[str, float]]:
        """The part of each limit that this router has used, by the limit's name."""
        return ((name, limit.part) for name, limit in self._limits.items())

    # Asking for parts and giving them.

    def ask(self, now_s: float, needs: Mapping[str, float] | None = None) -> LimitsAsk:
        """A question to another router, with every limit that has demand here.

        `needs`: by limit, the level that waiting requests need; then only these limits are in it.
        """
        if needs is None:
            wants = [limit.want(0.0, now_s) for limit in self._limits.values()]
            wants = [want for want in wants if want.demand or want.part < -TINY]
        else:
            limits = [(self._limits[name], need) for name, need in needs.items()]
            wants = [limit.want(need - limit.level(now_s), now_s) for limit, need in limits]
        return LimitsAsk(router=self.router, epoch=self.epoch, census=False, wants=tuple(wants))

    def answer(self, ask: LimitsAsk, now_s: float) -> LimitsAnswer:
        """Answer another router. The amount given leaves this router."""
        held, gifts = None, list[LimitGift]()
        self._asked_s[ask.router] = now_s
        if ask.census and ask.epoch > self.epoch:
            held = self._held()
            self._enter(ask.epoch)
        elif not ask.census:
            self._see(ask.epoch)
            for want in ask.wants:
                others = self._demand_of_others(ask.router, want, now_s)
                gift = self._give(want, others, now_s) if ask.epoch == self.epoch else None
                if gift is not None:
                    gifts.append(gift)
        return LimitsAnswer(router=self.router, epoch=self.epoch, held=held, gifts=tuple(gifts))

    def receive(self, answer: LimitsAnswer, now_s: float) -> None:
        """Take the gifts of an answer; those of another epoch are lost."""
        self._see(answer.epoch)
        if answer.epoch == self.epoch:
            for gift in answer.gifts:
                if gift.limit in self._limits:
                    self._limits[gift.limit].receive(gift, now_s)

    def _give(self, want: LimitWant, demand_of_others: float, now_s: float) -> LimitGift | None:
        known = want.limit in self._limits or want.limit in self._unused
        if not known and self._default.part <= TINY:
            return None
        limit = self._limits.get(want.limit) or self.limit(
            want.limit, size=want.size, fill_s=want.fill_s, now_s=now_s
        )
        return limit.give(want, demand_of_others, now_s)

    def _demand_of_others(self, asker: str, want: LimitWant, now_s: float) -> float:
        heard = self._heard.setdefault(want.limit, {})
        heard[asker] = (want.demand, now_s)
        for router in [router for router, (_, at_s) in heard.items() if now_s - at_s > HEARD_S]:
            del heard[router]
        return sum(demand for router, (demand, _) in heard.items() if router != asker)

    # Epochs and the census.

    def _see(self, epoch: Epoch) -> None:
        """A router without any part may enter a newer epoch at once: the census has nothing to count there."""
        self._highest = max(self._highest, epoch[0])
        if epoch > self.epoch and not self._has_parts():
            self._enter(epoch)

    def _enter(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self._highest = max(self._highest, epoch[0])

    def _has_parts(self) -> bool:
        parts = (self._default.part, *(unused.part for unused in self._unused.values()))
        return any(abs(part) > TINY for part in parts) or any(
            abs(limit.part) > TINY for limit in self._limits.values()
        )

    def _held(self) -> HeldParts:
        limits = {name: unused.part for name, unused in self._unused.items()}
        limits |= self.parts()
        return HeldParts(fresh=not self.has_entered, default=self._default.part, limits=limits)

    def heard(self, now_s: float) -> frozenset[str]:
        """The routers that asked lately: they run, whether they are listed here or not."""
        for router in [router for router, at_s in self._asked_s.items() if now_s - at_s > HEARD_S]:
            del self._asked_s[router]
        return frozenset(self._asked_s) - {self.router}

    def begin_census(self) -> LimitsAsk:
        """Enter a new epoch and ask all other routers to."""
        self._before = self._held()
        # The name decides between two censuses that begin at once.
        self._enter((self._highest + 1, self.router))
        return LimitsAsk(router=self.router, epoch=self.epoch, census=True, wants=())

    def end_census(self, ask: LimitsAsk, answers: Sequence[LimitsAnswer], now_s: float) -> bool:
        """Take what is missing, given the answers of all other routers; False if one did not enter the epoch."""
        for answer in answers:
            self._highest = max(self._highest, answer.epoch[0])
        before, self._before = self._before, None
        held = [answer.held for answer in answers if answer.held and answer.epoch == ask.epoch]
        if self.epoch != ask.epoch or before is None or len(held) < len(answers):
            return False
        held.append(before)
        full = all(each.fresh for each in held)  # no router can have used anything
        # A part that was lost may be used up: it starts empty.
        since_s = -math.inf if full else now_s
        names = self._limits.keys() | self._unused.keys()
        for name in names.union(*(each.limits for each in held)):
            missing = 1.0 - sum(each.limits.get(name, each.default) for each in held)
            if abs(missing) <= TINY:
                missing = 0.0
            if name in self._limits:
                self._limits[name].count(missing, now_s, full=full)
            else:
                unused = self._unused.get(name, self._default)
                self._unused[name] = unused.found(missing, since_s if missing else -math.inf)
        missing = 1.0 - sum(each.default for each in held)
        if abs(missing) > TINY:
            self._default = self._default.found(missing, since_s)
        return True


def unshared_parts(router: str, now_s: float) -> LimitParts:
    """Parts that no other router has a share in: each is the whole limit."""
    parts = LimitParts(router)
    parts.end_census(parts.begin_census(), (), now_s)
    return parts
