"""A DLPM pass that proposes the longest match among those who are positive, every time anew.

Place in the flow: `dlpm` with `longest_first` → **here**, instead of the walks that Algorithm 1 prints. There a refill in the
middle of a walk lets it go on where it is: with requests that match less than those of the same client that it passed over
while the client was in debt. So a client that is refilled again and again computes cold prefixes while its warm ones wait,
and lose their place in the cache.

Who takes every round stands back for those that do not (`Account.sparing`): a client that asks for less than its share
would else wait for what is left of the others' round, and for their next one too, wherever their matches are longer.

Nobody is overtaken by requests of the same client for ever (`MOST_OVERTAKEN`).

The surprising thing: no bound changes. The proofs ask who is positive, and never in which order those are taken.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel

MOST_OVERTAKEN: Final = 32
"""So many of its own client's requests may go before a client's oldest one, which then is next: one that is colder than all
that keep coming would wait for ever. Such a turn may cost a prefix that nobody else wants: with 32, at most every 33rd does."""


class Line(OrderedDict[Request, None]):
    """The waiting requests of one client in order of arrival."""

    overtaken = 0
    """How many others of the client were admitted since the oldest one is the oldest."""

    @property
    def oldest(self) -> Request | None:
        """Who came first; None where nobody waits."""
        return next(iter(self), None)

    def take_out(self, request: Request, *, admitted: bool) -> None:
        """`request` goes to the batch, or was aborted."""
        if request is next(iter(self)):
            self.overtaken = 0
        elif admitted:
            self.overtaken += 1
        del self[request]


@dataclass(slots=True, eq=False)
class Lane:
    """The requests of one account that are still to be proposed."""

    account: Account
    left: int
    """How many there are."""
    places: Iterator[int]
    """Where they stand, the best first. Each is asked for when the one before was answered and the account is positive."""


def merged(level: DeficitLevel, lanes: Iterable[Lane]) -> Iterator[int]:
    """The places of the positive accounts of one level, those of sparing ones first, the best first: a merge of lanes that
    come and go. Ends when nobody is left, or all that are positive were refused; or when the others' turn comes while one of a
    sparing account was refused: that one waits for a prefix, until the next pass, and would then find its place taken.

    While a pass lasts nobody's rank changes but that of who is admitted, and a refill goes to the lowest rank of all:
    so whoever needs a round is looked at when it has come, and not before.
    """
    # (takes every round, place, lane); no two places are equal: lanes are not compared.
    ready: list[tuple[bool, int, Lane]] = []
    needing: defaultdict[float, list[Lane]] = defaultdict(list)
    stand_back = refused = False
    for lane in lanes:
        needing[max(lane.account.rank, level.reach)].append(lane)
    while ready or needing:
        if not ready:
            if refused:
                level.refill()  # lines 3 to 8; nothing happens if one that was refused is positive
            else:
                level.advance(int(min(needing)))  # the same, cheaper: all that wait are here
            due = needing.pop(level.reach, None)
            if due is None:
                return
            ready = [
                (not lane.account.sparing, place, lane)
                for lane in due
                if (place := next(lane.places, None)) is not None
            ]
            heapify(ready)
            continue
        takes_all, place, lane = ready[0]
        if takes_all and stand_back:
            return
        waiting = lane.account.waiting
        yield place
        stays = lane.account.waiting == waiting
        refused |= stays
        stand_back |= stays and not takes_all
        lane.left -= 1
        if lane.account.rank > level.reach:
            heappop(ready)
            if lane.left:  # nobody is refilled for the sake of a lane without requests
                needing[lane.account.rank].append(lane)
        elif (following := next(lane.places, None)) is not None:
            heapreplace(ready, (not lane.account.sparing, following, lane))
        else:
            heappop(ready)


def longest_first(
    level: DeficitLevel, queue: Mapping[Request, Account], lines: Mapping[Account, Line]
) -> Iterator[Request]:
    """Those to be proposed, each once. Before the next one is asked for, the last must have been charged if it was
    admitted. `level`: of the tenants; `queue`: in order of arrival. O(n log n), and O(log(clients)) per proposal."""
    requests = list(queue)
    count = len(requests)
    # A place is one number, unique in the queue: the longest match is lowest, among equals who came first.
    clients: defaultdict[Account, list[int]] = defaultdict(list)
    for number, (request, client) in enumerate(queue.items()):
        clients[client].append(number - request.matched_tokens * count)
    tenants: defaultdict[Account, list[Lane]] = defaultdict(list)
    for client, places in clients.items():
        places.sort()
        line = lines[client]
        # Mostly nobody can be overtaken too often in this pass.
        reaches = line.overtaken + len(places) > MOST_OVERTAKEN
        order = oldest_in_time(line, places, requests) if reaches else iter(places)
        tenants[client.path[0]].append(Lane(client, len(places), order))
    lanes = [
        Lane(tenant, sum(lane.left for lane in own), merged(tenant.children, own))
        for tenant, own in tenants.items()
    ]
    for place in merged(level, lanes):
        yield requests[place % count]


def oldest_in_time(line: Line, places: Sequence[int], requests: Sequence[Request]) -> Iterator[int]:
    """`places`, the best first, but that of the oldest one as soon as it was overtaken too often."""
    left = {requests[place % len(requests)]: place for place in places}
    for request, place in [*left.items()]:
        while line.overtaken >= MOST_OVERTAKEN and line.oldest in left:
            yield left.pop(line.oldest)
        if left.pop(request, None) is not None:
            yield place
