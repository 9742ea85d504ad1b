"""The waiting members of one level of DLPM by the refill that makes each eligible: its round.

A member's round and its next entry change when something happens to it, and not when a pass begins. So both are kept from pass to pass:
a heap of rounds, and in each round a heap of the entries of light members and one of heavy ones. A refill makes a whole round ready. So
a pass costs O(admitted · log members), and an arrival O(log members).

A heap is corrected where it begins. An answered entry stays until then, and its place is taken by the next one of the member, which is
never better. Likewise for a member whose debt has grown. What may be better comes to `changed`.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Any, Final, Protocol, TypeVar

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel

HELD_REFILLS: Final = 32
"""The most refills at once while requests of eligible members are held: four seconds of service with the measured quantum. It pays what
a light client owes for a request. Of long prompts, whose owners may all be held in turn, it would pay all debts: docs/design/0006."""
MOST_STALE: Final = 64
"""Items that do not count any more and may stay, beside as many as count."""

Entry = tuple[float, int, Request, "Owner"]
"""(sort key, serial, request, its owner): the lowest goes first. Serials are in order of arrival, and unique."""


class Owner(Protocol):
    """The queue of a client."""

    @property
    def tenant(self) -> Any:
        """The queue of the client's tenant."""


class Queue(Protocol):
    """The waiting requests of a member of a level."""

    account: Account
    item: Entry | None
    """What stands for the member in its round: its next entry, or `UNASKED`. None if that was answered; then its place is not taken yet,
    or there is no other entry in this pass."""

    def following(self) -> Entry | None:
        """The member's next entry in this pass, if it is eligible and the engine answered the one before."""


UNASKED: Final[Any] = object()
"""The item of a tenant that is asked for its next entry once it is eligible: that may need a refill of its clients."""

Heaps = tuple[list[Entry], list[Entry], list[Any]]
"""Heaps of the next entries of light members, which take less than their share, and of heavy ones; and the queues of unasked members."""
Q = TypeVar("Q", bound=Queue)


class Rounds(dict[Account, Q]):
    """The queues of the members of one level that have requests waiting, and their order."""

    __slots__ = ("_depth", "_heavy", "_heavy_yield", "_items", "_later", "_level", "_light", "_numbers", "_refused", "_unasked")  # fmt: skip

    def __init__(self, level: DeficitLevel) -> None:
        super().__init__()
        self._level = level
        self._depth = level.depth
        self._light: list[Entry] = []
        self._heavy: list[Entry] = []
        self._unasked: list[Q] = []
        """The third of the `Heaps` of the eligible members, with `_light` and `_heavy`."""
        self._later: dict[int, Heaps] = {}
        """Round → its members, which need a refill."""
        self._numbers: list[int] = []
        """The keys of `_later`, as a heap."""
        self._items = 0
        """Number of items in all rounds, those that do not count any more included."""
        self._refused: dict[Account, None] = {}
        """Members of which the current pass refused a request."""
        self._heavy_yield = False
        """Whether the current pass answered `LATER` to a light member."""

    def changed(self, queue: Q) -> None:
        """The next entry of a member may be better, or its round earlier."""
        queue.item = None
        self._items += 1
        if self._items > 2 * len(self) + MOST_STALE:
            self.sort()
        else:
            self._place(queue)

    def sort(self) -> None:
        """Place all members anew."""
        self.clear()
        self._numbers.clear()
        self._items = len(self)
        for queue in self.values():
            if not self._depth:
                queue.item = None  # refills of its clients may be due
            self._place(queue)

    def ask(self, queue: Q) -> None:
        """The next entry of an eligible member may be better than the one that was answered."""
        queue.item = UNASKED
        self._unasked.append(queue)
        self._items += 1

    def clear(self) -> None:
        """No member is left. The heaps need not live as long as the entries in them, which refer to this object."""
        self._light, self._heavy, self._unasked, self._later = [], [], [], {}

    def begin(self) -> None:
        """A pass begins: nothing is refused. What the last one refused comes to `changed` too."""
        self._refused.clear()
        self._heavy_yield = False

    def refuse(self, account: Account, *, held: bool) -> None:
        """The current pass refused a request of a member."""
        self._refused[account] = None
        self._heavy_yield |= account.is_light and not held

    def following(self) -> Entry | None:  # noqa: C901, PLR0912 a call for each part would cost more than the part
        """The next entry of the level in this pass: of light members first, the best first. If no member is eligible there is a refill.

        Otherwise light members would wait until heavy ones with longer matches have used up their refill, and the next one
        too. While a light member's request is answered `LATER`, heavy members yield: the pass ends, and the next one finds room for that
        request.
        """
        if self._unasked:
            self._ask()
        level, depth = self._level, self._depth
        while True:
            refills = level.refills
            while line := self._light or self._heavy:
                entry = line[0]
                queue: Any = entry[3] if depth else entry[3].tenant
                item = queue.item
                if item is None:
                    # A charge that ends a credit needs more refills than there were. Without one a member is as light as before.
                    if queue and queue.account.positive_from <= refills:
                        entry = queue.item = queue.following()
                        if entry is not None:
                            heapreplace(line, entry)
                            if line[0] is not entry:
                                continue
                            return entry if not self._heavy_yield or line is self._light else None
                    heappop(line)
                    if queue:
                        self._place(queue)
                        if self._unasked:
                            self._ask()
                    else:
                        self._items -= 1
                elif item is not entry:
                    heappop(line)
                    self._items -= 1
                else:
                    account = queue.account
                    number = account.positive_from
                    if number <= level.horizon and (
                        account.was_light or line is not self._light or number < refills
                    ):
                        return entry if not self._heavy_yield or line is self._light else None
                    heappop(line)
                    self._place(queue)
            if not (self._unasked or self._refill()):
                return None
            if self._unasked:
                self._ask()

    def _place(self, queue: Q) -> None:
        """Put the item of a member into its round."""
        level, account, item = self._level, queue.account, queue.item
        number = account.positive_from
        if number > level.horizon:
            heaps = self._later.get(number)
            if heaps is None:
                heaps = self._later[number] = [], [], []
                heappush(self._numbers, number)
        else:
            heaps = self._light, self._heavy, self._unasked
        if item is None and self._depth and queue:
            item = queue.item = queue.following()
        if item is not None and item is not UNASKED:
            heappush(heaps[0 if account.was_light or number < level.refills else 1], item)
        elif account.waiting > account.refused and (number > level.horizon or not self._depth):
            queue.item = UNASKED
            heaps[2].append(queue)
        else:
            self._items -= 1

    def _ask(self) -> None:
        """Ask the eligible members that are not asked yet."""
        unasked, self._unasked = self._unasked, []
        horizon, refills = self._level.horizon, self._level.refills
        for queue in unasked:
            account = queue.account
            if queue.item is not UNASKED or not queue:
                self._items -= 1
            elif account.positive_from > horizon:  # its debt has grown
                self._place(queue)
            else:
                queue.item = best = queue.following()
                if best is None:
                    self._items -= 1
                else:
                    is_light = account.was_light or account.positive_from < refills
                    heappush(self._light if is_light else self._heavy, best)

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
        if refused := self._refused:
            needed = min(
                [nearest, *(one.positive_from for one in refused if one.refused > one.held)]
            )
            horizon = level.horizon
            if needed > horizon + HELD_REFILLS and any(
                one.held and one.positive_from <= horizon for one in refused
            ):
                return False
        level.refill_to(needed)
        if needed != nearest:
            return False
        heappop(self._numbers)
        self._light, self._heavy, self._unasked = self._later.pop(nearest)
        return True

    def _nearest(self) -> int | None:
        """The refill that makes the next member eligible; None if no other member waits."""
        numbers = self._numbers
        while numbers:
            number = numbers[0]
            if number not in self._later:
                heappop(numbers)
                continue
            light, heavy, unasked = self._later[number]
            if (
                (light and self._is_due(light, number))
                or (heavy and self._is_due(heavy, number))
                or (unasked and self._is_unasked_due(unasked, number))
            ):
                return number
            if not (light or heavy or unasked):  # otherwise one was placed here meanwhile
                del self._later[number]
                if numbers[0] == number:
                    heappop(numbers)
        return None

    def _is_due(self, line: list[Entry], number: int) -> bool:
        """Whether a heap begins with the item of a member that `number` refills make eligible, once all else before it is removed."""
        depth = self._depth
        while line:
            entry = line[0]
            queue: Any = entry[3] if depth else entry[3].tenant
            item = queue.item
            if item is entry and queue.account.positive_from <= number:
                return True
            heappop(line)
            if item is None or item is entry:
                self._place(queue)
            else:
                self._items -= 1
        return False

    def _is_unasked_due(self, unasked: list[Q], number: int) -> bool:
        """`_is_due` for members that are not asked yet; the last one is looked at first."""
        while unasked:
            queue = unasked[-1]
            counts = queue.item is UNASKED
            if counts and queue.account.positive_from <= number:
                return True
            unasked.pop()
            if counts:
                self._place(queue)
            else:
                self._items -= 1
        return False
