"""The order among the requests that DLPM may admit: the orders, and the queues of clients and tenants (`rounds` merges them).

No bound depends on it (docs/design/0007). The key of a request is a whole number: the lowest goes first, and among equals the request
that arrived first. While a request waits, its key changes with its match only. So the requests of a client are kept sorted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account
from evenkeel_fairshare.replica.rounds import Entry, Rounds

OCTAVE_TOKENS: Final = 1024
"""Length of the first octave; each next one is twice as long."""
MATCH_BITS: Final = 40
"""More than the number of cached tokens has."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which request of a client goes first: the one with the lowest key, until too many have overtaken the oldest one.

    Without a limit, a cold request could wait forever behind warmer ones.
    """

    key: Callable[[Request], int]
    max_overtaken: int = 32
    """Number of requests that may overtake the oldest one, which then goes next. This may evict a useful prefix, with 32 at most
    at every 33rd request."""
    grows_with_queue: bool = False
    """Whether a longer queue raises the limit: all that wait when a request becomes the oldest may overtake it."""


def longest_match(request: Request) -> int:
    """The order of LPM."""
    return -request.matched_tokens


def match_octaves(request: Request) -> int:
    """The most cached for its uncached input, both counted in octaves; among equals the longest match.

    Two octaves make a class. Long prompts with little in the cache go after short ones and warm ones, where LPM has nearly the
    order of arrival. Prompts below `OCTAVE_TOKENS` go in the order of LPM.
    """
    matched = request.matched_tokens
    octaves = (request.input_tokens - matched + OCTAVE_TOKENS).bit_length()
    octaves -= (matched + OCTAVE_TOKENS).bit_length()
    return (octaves >> 1 << MATCH_BITS) - matched


LONGEST_MATCH: Final = Order(longest_match)
MATCH_OCTAVES: Final = Order(match_octaves, max_overtaken=16, grows_with_queue=True)
ORDERS: Final[Mapping[str, Order]] = MappingProxyType(
    {"LongestMatch": LONGEST_MATCH, "MatchOctaves": MATCH_OCTAVES}
)
"""Name in the API → order. The enum `RequestOrder` of the contract offers the names to a FairInferenceService."""


class ClientQueue(OrderedDict[Request, Entry]):
    """The waiting requests of one client in order of arrival; `line` has them in order of proposal."""

    __slots__ = (
        "_rest",
        "account",
        "item",
        "line",
        "max_overtaken",
        "order",
        "overtaken",
        "tenant",
        "without_slot",
    )

    def __init__(self, client: Account, tenant: TenantQueue, order: Order) -> None:
        super().__init__()
        self.account = client
        self.tenant = tenant
        self.order = order
        self.line: list[Entry] = []
        self.item: Entry | None = None
        """The entry that stands for the client in its round (`rounds.Queue`)."""
        self.overtaken = 0
        """Number of other requests of the client admitted since the oldest one became the oldest."""
        self.max_overtaken = order.max_overtaken
        """Number of requests that may overtake the present oldest one."""
        self.without_slot: Request | None = None
        """The last one in this pass whose adapter has no slot."""
        self._rest: Iterator[Entry] | None = None
        """The proposals that follow a refused one, in this pass."""

    def put(self, key: float, serial: int, request: Request) -> bool:
        """`request` waits, or has another key. Returns whether the next entry of the client may be another one now."""
        line, before = self.line, self.get(request)
        if before is not None:
            del line[bisect_left(line, before)]
        self[request] = entry = (key, serial, request, self)
        insort(line, entry)
        return line[0] is entry or (before is not None and before is self.item)

    def take_out(self, request: Request, *, admitted: bool) -> None:
        """`request` goes to the batch, or was aborted."""
        if request is next(iter(self)):
            self.overtaken = 0
            if self.order.grows_with_queue:
                # - 2: without the request that leaves, and without the one that is the oldest now.
                self.max_overtaken = max(self.order.max_overtaken, len(self) - 2)
        elif admitted:
            self.overtaken += 1
        line, entry = self.line, self.pop(request)
        self.item = self.tenant.item = None
        if line[0] is entry:  # as mostly
            del line[0]
        else:
            del line[bisect_left(line, entry)]
            self.tenant.ask(self)

    def refuse(self, *, others: bool) -> None:
        """The entry that it offered was refused in this pass; `others`: and with it all the others."""
        if others:
            self._rest = iter(())
        elif self._rest is None:
            self._rest = self.proposals()
            next(self._rest, None)  # the refused one
        self.item = self.tenant.item = None

    def begin(self) -> None:
        """Forget what the last pass refused."""
        self._rest = self.without_slot = None

    def following(self) -> Entry | None:
        """The client's next entry in this pass."""
        if self._rest is not None:
            return next(self._rest, None)
        if self.overtaken < self.max_overtaken:
            return self.line[0]
        return max(self.line[0], next(iter(self.values())))

    def proposals(self) -> Iterator[Entry]:
        """Each once, the best first; the oldest one comes next once it was overtaken too often.

        If there is no slot for its adapter then, the others wait too: their adapters would occupy the slots without limit.
        Meanwhile nothing changes the queue, except that each proposal may be taken out before the next one.
        """
        line, index, too_old = self.line, 0, None
        while index < len(line):
            entry = line[index]
            if entry is too_old:  # refused before
                index += 1
                continue
            if self.overtaken >= self.max_overtaken:
                oldest = next(iter(self.values()))
                if oldest[2] is self.without_slot:
                    return
                if oldest > entry and oldest is not too_old:
                    entry = too_old = oldest
            yield entry
            if index < len(line) and line[index] is entry:  # refused
                index += 1


class TenantQueue(Rounds[ClientQueue]):
    """The queues of the clients of one tenant."""

    __slots__ = ("_order", "account", "item")

    def __init__(self, tenant: Account, order: Order) -> None:
        super().__init__(tenant.children)
        self.account = tenant
        self.item: Entry | None = None
        self._order = order

    def of(self, client: Account) -> ClientQueue:
        """The queue of a client; a new one if it had no request waiting."""
        queue = self.get(client)
        if queue is None:
            queue = self[client] = ClientQueue(client, self, self._order)
        return queue
