"""The waiting members of one level of DLPM by the refill that makes each eligible: its round.

A member's round and its first entry change when something happens to it, and not when a pass begins. So both are kept from pass to pass:
one heap of rounds, and in each round a heap of the entries of light members and one of heavy ones. A refill makes a whole round ready. So
a pass costs O(admitted · log members), and an arrival O(log members).

The debt of a waiting member may grow with each token of its running requests. So its round is a lower bound, and is corrected once
its turn comes. Each other change comes to `changed`. Items that do not count any more stay in the heaps until they are first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple, Protocol

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel

HELD_REFILLS: Final = 32
"""The most refills at once while requests of eligible members are held: four seconds of service with the measured quantum. It pays what
a light client owes for a request. Of long prompts, whose owners may all be held in turn, it would pay all debts: docs/design/0006."""
MOST_STALE: Final = 64
"""Items that do not count any more and may stay, beside as many as count."""

Entry = tuple[float, int, Request, Account]
"""(sort key, serial, request, its client): the lowest goes first. Serials are in order of arrival, and unique."""


class Queue(Protocol):
    """The waiting requests of a member of a level."""

    def begin(self) -> None:
        """A pass begins. Called if the last one refused a request of it."""

    def known(self) -> Entry | None:
        """The member's next entry in this pass, if that needs no refill of another level and moves no iterator."""

    def offer(self, number: int) -> Entry | None:
        """The member's next entry in pass `number`, if the engine answered the one before; None: it has no more."""

    def propose(self, number: int) -> None:
        """The entry that it offered, perhaps in an earlier pass, is proposed in pass `number`."""

    def after(self, number: int, answer: Answer) -> Entry | None:
        """The member's next entry in pass `number` after the answer to the proposed one."""

    def told(self, number: int, answer: Answer) -> None:
        """The answer for a member that may not go on now."""


class Answer(NamedTuple):
    """The engine's answer to an entry."""

    refused: bool
    held: bool
    """Whether it was refused with `HELD` or `CLIENT_HELD`."""


Unasked = tuple[Account]


class Round:
    """The members that one refill makes eligible."""

    __slots__ = ("heavy", "light", "unasked")

    def __init__(self) -> None:
        self.light: list[Entry] = []
        """The next entries of members that take less than their share, as a heap."""
        self.heavy: list[Entry] = []
        """The next entries of the other members, as a heap."""
        self.unasked: list[Unasked] = []
        """Members that are asked for an entry once they are eligible."""


class Rounds:
    """One level. `offer` and `after` are the conversation of a pass; `changed`, `ask_again` and `left` are for in between."""

    __slots__ = (
        "_answer", "_depth", "_heavy_yield", "_is_lowest", "_items", "_later", "_level", "_numbers", "_offers", "_pass", "_pauses",
        "_proposals", "_queues", "_ready", "_refills", "_refused", "_warming_up",
    )  # fmt: skip

    def __init__(self, level: DeficitLevel, queues: Mapping[Account, Queue]) -> None:
        """`queues`: of the members that have requests waiting."""
        self._level = level
        self._depth = level.depth
        self._is_lowest = level.depth > 0
        self._queues = queues
        self._pass = 0
        self._proposals: Iterator[Entry | None] = iter(())
        """The entries of this pass."""
        self._answer = Answer(refused=False, held=False)
        """The answer to the last one."""
        self._pauses = False
        """Whether `_proposals` yields None next: it takes the answer only."""
        self._refused: dict[Account, None] = {}
        """Members of which the current pass refused a request."""
        self._heavy_yield = False
        """Whether the current pass answered `LATER` to a light member."""
        self._warming_up = level.warming_up
        """Whether refills were deferred in the last pass."""
        self._refills = level.refills
        self._offers: dict[Account, Entry | Unasked] = {}
        """Member → its item. Others of it do not count any more."""
        self._clear()

    def _clear(self) -> None:
        self._offers.clear()
        self._ready = Round()
        """The eligible members."""
        self._later: dict[int, Round] = {}
        self._numbers: list[int] = []
        """The keys of `_later`, as a heap."""
        self._items = 0
        """Items of all rounds."""

    def left(self, member: Account) -> None:
        """A member has no request waiting any more."""
        self._offers.pop(member, None)

    def changed(self, member: Account) -> None:
        """The queue of a member or its round may be another one."""
        queue = self._queues.get(member)
        if queue is None:
            return
        if self._items > 2 * len(self._offers) + MOST_STALE:
            self._compact()
        self._place(member, queue.known())

    def ask_again(self, member: Account) -> None:
        """The next entry of a member may be another one; its round is the same."""
        item = self._offers.get(member)
        if item is None or len(item) > 1:
            self.changed(member)

    def offer(self, number: int) -> Entry | None:
        """The next entry in pass `number`, of an eligible member."""
        if number != self._pass:
            self._begin(number)
        return next(self._proposals, None)

    def after(self, number: int, answer: Answer) -> Entry | None:
        """The next entry in pass `number` after the answer to the one before. Accounts and queues are up to date with the answer."""
        self._answer = answer
        return next(self._proposals, None)

    def propose(self, number: int) -> None:
        """The last entry is proposed now, which may be known from an earlier pass."""
        if number != self._pass:
            self.offer(number)

    def told(self, number: int, answer: Answer) -> None:
        """`after`, without the next entry: that could need a refill."""
        self._pauses = True
        self.after(number, answer)

    def _begin(self, number: int) -> None:
        """Begin a pass: what the last one refused is offered again."""
        level = self._level
        self._pass = number
        self._proposals = self._propose()
        self._heavy_yield = False
        for member in self._refused:
            if (queue := self._queues.get(member)) is not None:
                queue.begin()
        if level.warming_up or self._warming_up:
            # Members may have ceased to be eligible although no charge ended a credit.
            self._clear()
            for member, queue in self._queues.items():
                self._place(member, queue.known())
        else:
            for member in self._refused:
                self.changed(member)
            if level.refills != self._refills:
                self._catch_up()
        self._refused.clear()
        self._warming_up, self._refills = level.warming_up, level.refills

    def _propose(self) -> Iterator[Entry | None]:
        """The entries of a pass."""
        while (line := self._line()) is not None:
            entry = line[0]
            member = entry[3].path[self._depth]
            if not self._is_lowest:
                self._queues[member].propose(self._pass)
            yield entry
            if self._offers.get(member) is entry:  # otherwise that was its last request
                self._take(member, line, is_light=line is self._ready.light)
            if self._pauses:
                self._pauses = False
                yield None

    def _line(self) -> list[Entry] | None:
        """The heap with the next entry: of light members first, the best first.

        Otherwise light members would wait until heavy ones with longer matches have used up their refill, and the next one
        too. While a light member's request is answered `LATER`, heavy members yield: the pass ends, and the next one finds room for that
        request. If no member is eligible there is a refill.
        """
        while True:
            ready, horizon = self._ready, self._level.horizon
            if ready.unasked:
                self._ask(ready)
            if ready.light and self._is_due(ready.light, horizon):
                return ready.light
            if ready.heavy and self._is_due(ready.heavy, horizon):
                return None if self._heavy_yield else ready.heavy
            if not self._refill():
                return None

    def _take(self, member: Account, line: list[Entry], *, is_light: bool) -> None:
        """The answer to the first entry of a heap: the member's next entry, in the round that it is in now."""
        level, answer, best = self._level, self._answer, None
        if answer.refused:
            self._heavy_yield |= is_light and not answer.held
            self._refused[member] = None
        goes_on = member.waiting > member.refused
        is_eligible = member.positive_from <= level.horizon
        if goes_on and (is_eligible or self._is_lowest):
            best = self._queues[member].after(self._pass, answer)
        elif not self._is_lowest:
            self._queues[member].told(self._pass, answer)
        if best is None and (is_eligible or not goes_on):
            del self._offers[member]
        elif (
            best is not None
            and is_eligible
            and is_light == (member.was_light or member.positive_from < level.refills)
        ):
            self._offers[member] = best = (best[0], best[1], best[2], best[3])
            heapreplace(line, best)
        else:
            self._place(member, best)

    def _place(self, member: Account, entry: Entry | None) -> None:
        level = self._level
        number = member.positive_from
        if number <= level.horizon:
            at = self._ready
        elif (later := self._later.get(number)) is not None:
            at = later
        else:
            at = self._later[number] = Round()
            heappush(self._numbers, number)
        self._items += 1
        if entry is None:
            self._offers[member] = unasked = (member,)
            at.unasked.append(unasked)
        else:
            # A new object: an older item with the same entry does not count.
            self._offers[member] = entry = (entry[0], entry[1], entry[2], entry[3])
            heappush(at.light if member.is_light else at.heavy, entry)

    def _ask(self, ready: Round) -> None:
        """Ask the eligible members that have no entry yet for one."""
        unasked, ready.unasked = ready.unasked, []
        self._items -= len(unasked)
        for item in unasked:
            member = item[0]
            if self._offers.get(member) is not item:
                continue
            if member.positive_from > self._level.horizon:  # its debt has grown
                self._place(member, None)
            elif (entry := self._queues[member].offer(self._pass)) is not None:
                self._items += 1
                self._offers[member] = entry = (entry[0], entry[1], entry[2], entry[3])
                heappush(ready.light if member.is_light else ready.heavy, entry)
            else:
                del self._offers[member]

    def _refill(self) -> bool:
        """No member is eligible: a refill up to the next round, which is ready then. Returns whether there was one.

        While an eligible member is refused, the others get none; held requests do not count, unless the others need more than
        `HELD_REFILLS`.
        """
        level = self._level
        nearest = self._nearest()
        if nearest is None:
            return False
        needed = nearest
        if self._refused:
            refused = [member for member in self._refused if member in self._queues]
            needed = min(
                [nearest, *(one.positive_from for one in refused if one.refused > one.held)]
            )
            horizon = level.horizon
            if needed > horizon + HELD_REFILLS and any(
                one.held and one.positive_from <= horizon for one in refused
            ):
                return False
        level.refill_to(needed)
        self._refills = level.refills
        if needed != nearest:
            return False
        heappop(self._numbers)
        self._ready = self._later.pop(nearest)
        return True

    def _nearest(self) -> int | None:
        """The refill that makes the next member eligible; None if no other member waits."""
        while self._numbers:
            number = self._numbers[0]
            later = self._later[number]
            if (
                (later.light and self._is_due(later.light, number))
                or (later.heavy and self._is_due(later.heavy, number))
                or self._is_unasked_due(later.unasked, number)
            ):
                return number
            heappop(self._numbers)
            del self._later[number]
        return None

    def _is_due(self, line: list[Entry], number: int) -> bool:
        """Whether a heap begins with a member of a round up to `number`, once all else before it is removed. Members whose debt has
        grown go to their present round."""
        while line:
            entry = line[0]
            member = entry[3].path[self._depth]
            counts = self._offers.get(member) is entry
            if counts and member.positive_from <= number:
                return True
            heappop(line)
            self._items -= 1
            if counts:
                self._place(member, entry)
        return False

    def _is_unasked_due(self, unasked: list[Unasked], number: int) -> bool:
        """`_is_due` for members that are not asked yet; the last one is looked at first."""
        while unasked:
            item = unasked[-1]
            counts = self._offers.get(item[0]) is item
            if counts and item[0].positive_from <= number:
                return True
            unasked.pop()
            self._items -= 1
            if counts:
                self._place(item[0], None)
        return False

    def _catch_up(self) -> None:
        """There were refills outside of a pass, for a single member or none: eligible members may be light now, others eligible."""
        again, unasked = self._ready.heavy, list[Unasked]()
        self._ready.heavy = []
        while self._numbers and self._numbers[0] <= self._level.horizon:
            later = self._later.pop(heappop(self._numbers))
            again += later.light + later.heavy
            unasked += later.unasked
        self._items -= len(again) + len(unasked)
        for entry in again:
            member = entry[3].path[self._depth]
            if self._offers.get(member) is entry:
                self._place(member, entry)
        for item in unasked:
            if self._offers.get(item[0]) is item:
                self._place(item[0], None)

    def _compact(self) -> None:
        offers = dict(self._offers)
        self._clear()
        for member, item in offers.items():
            self._place(member, item if len(item) > 1 else None)
