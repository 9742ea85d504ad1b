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

from evenkeel_router.ledger.limit_part import TINY, LimitPart

NEVER: Final[Epoch] = (0, "")
HEARD_S: Final = 5.0
"""How long the demand that another router states counts."""


@dataclass(frozen=True, slots=True)
class _Unused:
    """A part of a limit that this router has not used yet."""

    part: float
    since_s: float
    """Its bucket is empty then and fills since."""

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
        """Answer another router; what is given is gone from here."""
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

    def receive(self, answer: LimitsAnswer, now_s: float) -> bool:
        """Take the gifts of an answer; False if it comes from another epoch and its gifts are lost."""
        self._see(answer.epoch)
        if answer.epoch != self.epoch:
            return False
        for gift in answer.gifts:
            if gift.limit in self._limits:
                self._limits[gift.limit].receive(gift, now_s)
        return True

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
        """A router without any part may enter a newer epoch at once: it has nothing to be counted."""
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
