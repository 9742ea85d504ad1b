"""Which connection closes when a port has more of them than its bound: one of the party that holds most, never the newest as such.

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
        """In the order in which they were opened."""
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
        """None if the router works on the requests of all connections."""
        for is_new in (False, True):
            if is_new:
                self._next.extend(self._chosen(bound))
            while self._next:
                connection, was = self._next.popleft()
                if connection in self.open and connection.yields == was:
                    return connection
        return None

    def _chosen(self, bound: int) -> list[tuple[Connection, Yields]]:
        """The next connections to close: of each holder idle ones first, and the oldest first.

        Without a key it is the other way round: an idle connection may be a new one, whose first head is on its way.
        """
        held = Counter(map(attrgetter("holder"), self.open))
        yielding: dict[str, list[tuple[Connection, Yields]]] = defaultdict(list)
        for connection in self.open:
            if (since := connection.yields) is not None:
                yielding[connection.holder].append((connection, since))
        may_lose = Counter({holder: len(ones) for holder, ones in yielding.items()})
        chosen: list[tuple[Connection, Yields]] = []
        for holder, count in losses(held, may_lose, bound, 1 + bound // _PART).items():
            first = party_of(holder) == NO_KEY
            yielding[holder].sort(key=lambda one: (one[1][0] != first, one[1][1]))
            chosen += yielding[holder][:count]
        return chosen


def party_of(holder: str) -> str:
    """The party in a holder's name."""
    return holder.rpartition("/")[0]


def losses(held: Counter[str], may_lose: Counter[str], bound: int, count: int) -> Counter[str]:
    """Holder → how many of its connections close, if up to `count` close one after another.

    `held`: holder → its connections; `may_lose`: those of them that may close. Of equal sizes the one in `held` first loses first.
    """
    sizes: Counter[str] = Counter()
    holders: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for number, (holder, size) in enumerate(held.items()):
        party = party_of(holder)
        sizes[party] += size
        if may_lose[holder]:
            holders[party].append((-size, number, holder))
    for ranking in holders.values():
        heapify(ranking)
    parties = [(-sizes[one], rank, one) for rank, one in enumerate(holders) if one != NO_KEY]
    heapify(parties)
    without_key, no_key_size = holders[NO_KEY], sizes[NO_KEY]
    lost: Counter[str] = Counter()
    for _ in range(count):
        if without_key and (not parties or no_key_size * NO_KEY_PART > bound):
            _lose(without_key, lost, may_lose)
            no_key_size -= 1
        elif parties:
            size, rank, party = parties[0]
            _lose(holders[party], lost, may_lose)
            if holders[party]:
                heapreplace(parties, (size + 1, rank, party))
            else:
                heappop(parties)
    return lost


def _lose(ranking: list[tuple[int, int, str]], lost: Counter[str], may_lose: Counter[str]) -> None:
    """The largest of the ranking loses one."""
    size, number, holder = ranking[0]
    lost[holder] += 1
    if lost[holder] < may_lose[holder]:
        heapreplace(ranking, (size + 1, number, holder))
    else:
        heappop(ranking)
