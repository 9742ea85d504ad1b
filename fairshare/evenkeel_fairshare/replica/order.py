"""The order among the requests that DLPM may admit: the orders, the queue of a client, and the merge of the clients.

No bound depends on it (docs/design/0007). The key of a request is a whole number: the lowest goes first, and among equals the request
that arrived first. While a request waits, its key changes with its match only. So the requests of a client are kept sorted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Final

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel

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
    """If more than `max_overtaken` others wait when it becomes the oldest, as many may overtake it."""


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
"""By their names in the API. The enum `RequestOrder` of the contract offers them to a FairInferenceService."""

Entry = tuple[float, int, Request]
"""(sort key, serial, request): the lowest goes first. Serials are in order of arrival, and unique."""

Line = Callable[[Account], Iterator[Entry]]
"""All entries of a member in this pass, the best first."""
FirstEntry = Callable[[Account], Entry | None]
"""The first entry of a member of which the pass has refused none. None: it takes a line to find it."""


class ClientQueue(OrderedDict[Request, Entry]):
    """The waiting requests of one client in order of arrival; `line` has them in order of proposal."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order
        self.line: list[Entry] = []
        self.overtaken = 0
        """Number of other requests of the client admitted since the oldest one became the oldest."""
        self.max_overtaken = order.max_overtaken
        """Of the present oldest one."""
        self.without_slot: Request | None = None
        """The last one in this pass whose adapter has no slot."""

    def put(self, key: float, serial: int, request: Request) -> None:
        """`request` waits, or has another key."""
        if request in self:
            self._cut(request)
        self[request] = entry = (key, serial, request)
        insort(self.line, entry)

    def take_out(self, request: Request, *, admitted: bool) -> None:
        """`request` goes to the batch, or was aborted."""
        if request is next(iter(self)):
            self.overtaken = 0
            if self.order.grows_with_queue:
                self.max_overtaken = max(self.order.max_overtaken, len(self) - 2)
        elif admitted:
            self.overtaken += 1
        self._cut(request)
        del self[request]

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

    def _cut(self, request: Request) -> None:
        del self.line[bisect_left(self.line, self[request])]


def eligible_entries(
    level: DeficitLevel,
    members: Collection[Account],
    first_of: FirstEntry,
    line_of: Line,
) -> Iterator[Entry]:
    """The entries of the eligible members of one level; see `_merge`."""
    if len(members) == 1:
        (member,) = members
        return _merge_one(level, member, line_of(member))
    return _merge(level, members, first_of, line_of)


def _merge(
    level: DeficitLevel, members: Collection[Account], first_of: FirstEntry, line_of: Line
) -> Iterator[Entry]:
    """The entries of the eligible members of one level, those of light ones first, the best first, each once.

    `members`: the queued ones. The next entry of a member is taken after the previous answer, while the member is eligible.

    Light members go first. Otherwise they would wait until heavy members with longer matches have used up their refill,
    and the next one too. While a light member's request is answered `LATER`, heavy members
    yield: the merge ends, and the next pass finds room for that request. It also ends when no entry is left, or when
    all eligible ones were refused.

    In a pass only an admission changes an account, and a refill goes to the least `positive_from` of all. So a member that
    needs a refill is considered when that refill comes, and not before.
    """
    due, by_refill = _by_refill(members, level.horizon)
    entries = _Entries(first_of, line_of)
    heavy_yield = False
    while due or by_refill:
        if not due:
            # While an eligible member is refused, the others get no refill. Held requests do not count.
            waiting_for = [one.positive_from for one in members if one.refused > one.held]
            level.refill_to(min([*by_refill, *waiting_for]))
            if level.horizon not in by_refill:
                return
            due = by_refill.pop(level.horizon)
        ready, due = entries.heap(due), []
        while ready:
            is_heavy, entry, account = ready[0]
            if is_heavy and heavy_yield:
                return
            waiting, held = account.waiting, account.held
            yield entry
            was_refused = account.waiting == waiting
            heavy_yield |= was_refused and account.held == held and not is_heavy
            if account.waiting <= account.refused:  # it has no other requests
                heappop(ready)
            elif account.positive_from > level.horizon:
                heappop(ready)
                by_refill[account.positive_from].append(account)
            elif following := entries.following(account, was_refused=was_refused):
                heapreplace(ready, (not account.is_light, following, account))
            else:
                heappop(ready)


class _Entries:
    """The entries of the members of a merge. Most members have one in a pass: a line begins once an entry was refused."""

    __slots__ = ("_first_of", "_line_of", "_lines")

    def __init__(self, first_of: FirstEntry, line_of: Line) -> None:
        self._first_of = first_of
        self._line_of = line_of
        self._lines: dict[Account, Iterator[Entry]] = {}

    def heap(self, members: Iterable[Account]) -> list[tuple[bool, Entry, Account]]:
        """(whether it is heavy, its next entry, member), as a heap: entries are unique, so members are never compared."""
        first_of, lines = self._first_of, self._lines
        found = []
        for one in members:
            entry = (first_of(one) if one not in lines else None) or self.following(one)
            if entry is not None:
                found.append((not one.is_light, entry, one))
        heapify(found)
        return found

    def following(self, account: Account, *, was_refused: bool = False) -> Entry | None:
        """The next entry of a member; `was_refused`: the last one."""
        line = self._lines.get(account)
        if line is None:
            if not was_refused and (entry := self._first_of(account)):
                return entry
            line = self._lines[account] = self._line_of(account)
            if was_refused:
                next(line, None)  # the same one
        return next(line, None)


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
    members: Collection[Account], horizon: int
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
