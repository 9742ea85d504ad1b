"""The order among the requests that DLPM may admit: the orders, the queue of a client, and the merge of the clients.

No bound depends on it (docs/design/0007). The key of a request is a whole number: the lowest goes first, and among equals the request
that arrived first. While a request waits, its key changes with its match only. So the requests of a client are kept sorted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import Final, Protocol

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel

OCTAVE_TOKENS: Final = 1024
"""Length of the first octave; each next one is twice as long."""
HELD_REFILLS: Final = 32
"""The most refills at once while requests of eligible members are held: four seconds of service with the measured quantum. It pays what
a light client owes for a request. Of long prompts, whose owners may all be held in turn, it would pay all debts: docs/design/0006."""
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

Entry = tuple[float, int, Request, Account]
"""(sort key, serial, request, its client): the lowest goes first. Serials are in order of arrival, and unique."""

Next = Callable[[], Entry | None]
"""The next entry of a member in a pass, after the answer to the one before; None: it has no more."""


class Queue(Protocol):
    """The waiting requests of a member of a level."""

    def first(self) -> Entry | None:
        """Best entry of the member, while the pass has refused none of its requests."""

    def proposals(self) -> Iterator[Entry]:
        """All its entries in this pass, each once, the best first."""

    def begin(self) -> Next:
        """The function that gives its entries of a pass one by one; called at the start of the pass."""


class ClientQueue(OrderedDict[Request, Entry]):
    """The waiting requests of one client in order of arrival; `line` has them in order of proposal."""

    def __init__(self, client: Account, order: Order) -> None:
        super().__init__()
        self.client = client
        self.order = order
        self.line: list[Entry] = []
        self.overtaken = 0
        """Number of other requests of the client admitted since the oldest one became the oldest."""
        self.max_overtaken = order.max_overtaken
        """Number of requests that may overtake the present oldest one."""
        self.without_slot: Request | None = None
        """The last one in this pass whose adapter has no slot."""

    def put(self, key: float, serial: int, request: Request) -> None:
        """`request` waits, or has another key."""
        if request in self:
            del self.line[bisect_left(self.line, self[request])]
        self[request] = entry = (key, serial, request, self.client)
        insort(self.line, entry)

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
        # An admitted request is mostly the first: no search.
        del line[0 if line[0] is entry else bisect_left(line, entry)]

    def first(self) -> Entry:
        """The first of its proposals, in a pass that has refused none of its requests."""
        best = self.line[0]
        if self.overtaken < self.max_overtaken:
            return best
        return max(best, next(iter(self.values())))

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

    def begin(self) -> Next:
        return self.first


class TenantQueue(dict[Account, ClientQueue]):
    """The queues of the clients of one tenant."""

    def __init__(self, tenant: Account, order: Order) -> None:
        super().__init__()
        self._clients = tenant.children
        self._order = order

    def of(self, client: Account) -> ClientQueue:
        """The queue of a client; a new one if it had no request waiting."""
        queue = self.get(client)
        if queue is None:
            queue = self[client] = ClientQueue(client, self._order)
        return queue

    def first(self) -> Entry | None:
        """Best entry of a tenant with one client, without a merge: many tenants have one."""
        for client, queue in self.items():
            if client.positive_from > self._clients.horizon:
                self._clients.refill_to(client.positive_from)
            return queue.first()
        return None

    def proposals(self) -> Iterator[Entry]:
        return eligible_entries(self._clients, self)

    def begin(self) -> Next:
        return self.first if len(self) == 1 else partial(next, self.proposals(), None)


def eligible_entries(level: DeficitLevel, queues: Mapping[Account, Queue]) -> Iterator[Entry]:
    """The entries of the eligible members of one level; `queues`: of those that have requests waiting. See `_merge`."""
    if len(queues) == 1:
        ((member, queue),) = queues.items()
        return _merge_one(level, member, queue.proposals())
    return _merge(level, queues)


def _merge(level: DeficitLevel, queues: Mapping[Account, Queue]) -> Iterator[Entry]:
    """The entries of the eligible members of one level, those of light ones first, the best first, each once.

    The next entry of a member is taken after the previous answer, while the member is eligible.

    Light members go first. Otherwise they would wait until heavy members with longer matches have used up their refill,
    and the next one too. While a light member's request is answered `LATER`, heavy members
    yield: the merge ends, and the next pass finds room for that request. It also ends when no entry is left, or when
    all eligible ones were refused.

    In a pass only an admission changes an account, and a refill goes to the least `positive_from` of all. So a member that
    needs a refill is considered when that refill comes, and not before.
    """
    depth = level.depth
    due, by_refill = _by_refill(queues, level.horizon)
    following = {member: queue.begin() for member, queue in queues.items()}
    heavy_yield = False
    while due or by_refill:
        due = due or _refill(level, queues, by_refill)
        if not due:
            return
        horizon = level.horizon
        (light, heavy), due = _heaps(due, following), []
        while ready := light or heavy:
            if heavy_yield and not light:
                return
            entry = ready[0]
            member = entry[3].path[depth]
            waiting, held = member.waiting, member.held
            yield entry
            if member.waiting == waiting:  # refused
                heavy_yield |= member.held == held and ready is light
                following[member] = _after_refusal(queues[member], following[member])
            if member.waiting <= member.refused:  # it has no other requests
                heappop(ready)
            elif member.positive_from > horizon:
                heappop(ready)
                by_refill[member.positive_from].append(member)
            elif (best := following[member]()) and member.is_light == (ready is light):
                heapreplace(ready, best)
            else:
                heappop(ready)
                if best:
                    heappush(light if member.is_light else heavy, best)


def _refill(
    level: DeficitLevel, members: Iterable[Account], by_refill: dict[int, list[Account]]
) -> list[Account]:
    """The members that it makes eligible. While an eligible one is refused, the others get none; held requests do not count, unless
    the others need more than `HELD_REFILLS`."""
    waiting_for = [one.positive_from for one in members if one.refused > one.held]
    needed = min([*by_refill, *waiting_for])
    horizon = level.horizon
    if needed > horizon + HELD_REFILLS and any(
        one.held and one.positive_from <= horizon for one in members
    ):
        return []
    level.refill_to(needed)
    return by_refill.pop(level.horizon, [])


def _heaps(
    members: Iterable[Account], following: Mapping[Account, Next]
) -> tuple[list[Entry], list[Entry]]:
    """The next entries of the light ones and of the heavy ones, each as a heap."""
    light: list[Entry] = []
    heavy: list[Entry] = []
    for member in members:
        if entry := following[member]():
            (light if member.is_light else heavy).append(entry)
    heapify(light)
    heapify(heavy)
    return light, heavy


def _after_refusal(queue: Queue, following: Next) -> Next:
    """The function for the entries after a refused one: `first` would give that one again. Most members have none refused."""
    if following != queue.first:
        return following
    line = queue.proposals()
    next(line, None)  # the refused one
    return partial(next, line, None)


def _merge_one(level: DeficitLevel, member: Account, line: Iterator[Entry]) -> Iterator[Entry]:
    """`_merge` of a single member, without the lists: many tenants have one client."""
    heavy_yields = False
    while member.waiting > member.refused:
        if member.positive_from > level.horizon:
            level.refill_to(member.positive_from)
        entry = next(line, None)
        is_heavy = not member.is_light
        if entry is None or (is_heavy and heavy_yields):
            return
        waiting = member.waiting
        yield entry
        was_refused = member.waiting == waiting and member.refused > member.held
        heavy_yields |= was_refused and not is_heavy


def _by_refill(
    members: Iterable[Account], horizon: int
) -> tuple[list[Account], defaultdict[int, list[Account]]]:
    """The eligible members, and the others by the refill horizon that makes them eligible."""
    others: defaultdict[int, list[Account]] = defaultdict(list)
    eligible = []
    for member in members:
        if member.positive_from <= horizon:
            eligible.append(member)
        else:
            others[member.positive_from].append(member)
    return eligible, others
