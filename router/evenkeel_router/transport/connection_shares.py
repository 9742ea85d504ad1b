"""Shares of a port: at its bound a connection of the party that holds most closes, never the newest as such.

A party is a tenant, the trusted proxies before their first request, or all connections without a valid key. Within a tenant the
client that holds most loses a connection, within the others the address. This is the push-out of the longest queue (Wei, Coyle
and Hsiao, "An optimal buffer management policy for high-performance packet switching", 1991): a party with less than an equal
share of the bound loses nothing to parties with more.

Connections without a valid key together hold a quarter of a full port at most. New connections live in that quarter until their first
head.

Nothing is counted while there is room: a request only notes its holder. A full port counts once for `_PART` of its connections.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

NO_KEY: Final = ""
"""The party of all connections without a valid key."""
NO_KEY_PART: Final = 4
"""All connections without a valid key together hold at most 1/4 of a full port."""
_PART: Final = 64
"""A full port chooses 1/64 of its connections at a time."""


class Closing(Enum):
    """Why a connection was closed that its client did not give up."""

    FULL = "full"  # too many are open, and its party has most of them
    SLOW_HEAD = "slow_head"
    NOT_READING = "not_reading"  # the client reads nothing of a whole answer


Yields: TypeAlias = tuple[bool, float]
"""Whether the connection has a request, which waits for its sender (the body arrives, the answer is not read) or for its admission, or
else is idle; and since when, seconds."""


class Connection(Protocol):
    """A connection that may be closed for others."""

    holder: str
    """`party/name`: who holds the connection."""

    @property
    def yields(self) -> Yields | None:
        """Since when it may be closed for others; None while the router works on its request."""

    def make_room(self) -> None:
        """Close at once, because the port is full."""


class ConnectionShares:
    """All open connections of a port, within a bound."""

    def __init__(
        self,
        bound: Callable[[], int],
        on_closing: Callable[[str, Closing, int], None] = lambda holder, why, count: None,
    ) -> None:
        """`bound` may change. `on_closing` takes the holder of a connection that is about to be closed, why, and how many of its party were
        closed for this reason so far."""
        self._bound = bound
        self._on_closing = on_closing
        self.open: dict[Connection, None] = {}
        """Open connections, in the order in which they were opened."""
        self.closed: Counter[tuple[str, Closing]] = Counter()
        """(party, why) → connections that were closed."""
        self._next: deque[tuple[Connection, Yields]] = deque()
        """Connections that close next, as they were when they were chosen."""

    @property
    def bound(self) -> int:
        """Connections from which on a new one closes another one."""
        return self._bound()

    def add(self, connection: Connection) -> None:
        """A connection was opened; another one closes if there are too many."""
        self.open[connection] = None
        bound = self._bound()
        while len(self.open) > bound and (closing := self._next_to_close(bound)) is not None:
            self.closing(closing, Closing.FULL)
            self.remove(closing)
            closing.make_room()

    def remove(self, connection: Connection) -> None:
        """A connection closed. May be called twice."""
        self.open.pop(connection, None)

    def closing(self, connection: Connection, why: Closing) -> None:
        """Count a connection that is about to be closed."""
        key = (party_of(connection.holder), why)
        self.closed[key] += 1
        self._on_closing(connection.holder, why, self.closed[key])

    def _next_to_close(self, bound: int) -> Connection | None:
        """The next connection that closes for others; None if the router works on the requests of all."""
        for is_new in (False, True):
            if is_new:
                self._next.extend(self._chosen(bound))
            while self._next:
                connection, was = self._next.popleft()
                if connection in self.open and connection.yields == was:
                    return connection
        return None

    def _chosen(self, bound: int) -> list[tuple[Connection, Yields]]:
        """The next connections to close."""
        held = Counter(map(attrgetter("holder"), self.open))
        may_close = Counter(one.holder for one in self.open if one.yields is not None)
        return self._oldest(losses(held, may_close, bound, 1 + bound // _PART))

    def _oldest(self, losing: Counter[str]) -> list[tuple[Connection, Yields]]:
        """The connections of each holder that close: idle ones first, and the oldest first.

        Without a key it is the other way round: an idle connection may be a new one, whose first head is on its way.
        """
        found: dict[str, list[tuple[Connection, Yields]]] = defaultdict(list)
        for connection in self.open:
            holder = connection.holder
            if holder in losing and (since := connection.yields) is not None:
                found[holder].append((connection, since))
        chosen: list[tuple[Connection, Yields]] = []
        for holder, ones in found.items():
            first = party_of(holder) == NO_KEY
            ones.sort(key=lambda one: (one[1][0] != first, one[1][1]))
            chosen += ones[: losing[holder]]
        return chosen


def party_of(holder: str) -> str:
    """The party in a holder's name."""
    return holder[: holder.rfind("/")]


def losses(held: Counter[str], may_close: Counter[str], bound: int, count: int) -> Counter[str]:
    """Holder → how many of its connections close, if up to `count` close one after another.

    `held`: holder → its connections; `may_close`: those whose request the router does not work on.
    """
    sizes: Counter[str] = Counter()
    able: Counter[str] = Counter()
    for holder, size in held.items():
        sizes[holder[: holder.rfind("/")]] += size
    for holder, size in may_close.items():
        able[holder[: holder.rfind("/")]] += size
    able_without_key = able.pop(NO_KEY, 0)
    without_key = min(count, able_without_key, max(0, sizes[NO_KEY] - bound // NO_KEY_PART))
    by_party = _levelled(sizes, able, count - without_key)
    by_party[NO_KEY] = min(able_without_key, count - by_party.total())
    holders: dict[str, Counter[str]] = {party: Counter() for party in by_party}
    for holder, size in may_close.items():
        own = holders.get(holder[: holder.rfind("/")])
        if own is not None:
            own[holder] = size
    lost: Counter[str] = Counter()
    for party, number in by_party.items():
        lost.update(_levelled(held, holders[party], number))
    return lost


def _levelled(sizes: Counter[str], able: Counter[str], count: int) -> Counter[str]:
    """What each of `able` loses, at most its number there, if the one of the largest size loses 1 and this is done `count` times.

    Of equal sizes the first one loses first.
    """
    lost: Counter[str] = Counter()
    ranking = [(-sizes[name], number, name) for number, name in enumerate(able)]
    heapify(ranking)
    for _ in range(count):
        if not ranking:
            break
        size, number, name = ranking[0]
        lost[name] += 1
        if lost[name] < able[name]:
            heapreplace(ranking, (size + 1, number, name))
        else:
            heappop(ranking)
    return lost
