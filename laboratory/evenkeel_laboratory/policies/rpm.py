"""Requests per minute: the rate limit of public APIs in front of FCFS, a baseline of the VTC paper (§5.1).

The paper has two descriptions. `Rpm` rejects, as its artifact and its results do: a client has at most `limit` accepted requests in
any 60 s. `DeferredRpm` blocks excess requests until the next minute begins, as its text says. Neither conserves work: a replica may
be idle while requests are refused or deferred. A service limits clients in its router instead (`limits` of an InferenceTenant).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Generator
from math import floor, inf
from typing import ClassVar, Final

from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, Request
from evenkeel_fairshare.replica.fcfs import Fcfs

MINUTE_S: Final = 60.0
REQUESTS_PER_MINUTE: Final = 20
"""The default limit: the one of 5, 20 and 30 in the paper's Table 2 with the most service at a small difference."""


class Rpm(Fcfs):
    """Rejects an arrival if the client had `limit` or more accepted arrivals in the last 60 s, both ends included.

    O(1) per arrival; memory for the accepted arrivals of one minute.
    """

    name: ClassVar[str] = "RPM"

    def __init__(self, *, limit: int) -> None:
        """Raises `ValueError` if `limit` is below 1."""
        super().__init__()
        self._limit = checked(limit)
        self._accepted: deque[tuple[float, str]] = deque()
        """(time, client) of the last minute, in order of time."""
        self._counts: Counter[str] = Counter()

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._expire(now_s)
        if self._counts[request.client] >= self._limit:
            return Arrival.REJECTED
        self._counts[request.client] += 1
        self._accepted.append((now_s, request.client))
        return super().arrive(request, now_s)

    def _expire(self, now_s: float) -> None:
        while self._accepted and now_s - self._accepted[0][0] > MINUTE_S:
            _, client = self._accepted.popleft()
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


class DeferredRpm(Fcfs):
    """Passes on at most `limit` requests of a client in each minute, counted from time 0; further ones wait for the next minute.

    The count is of requests passed on to the queue, so a full batch uses up no part of a later limit. At the start of a minute
    requests go in order of arrival, over all clients.
    """

    name: ClassVar[str] = "RPMDefer"

    def __init__(self, *, limit: int) -> None:
        """Raises `ValueError` if `limit` is below 1."""
        super().__init__()
        self._limit = checked(limit)
        self._minute = 0
        self._counts: Counter[str] = Counter()
        """Requests of each client in this minute."""
        self._deferred: OrderedDict[Request, None] = OrderedDict()

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._advance(now_s)
        self._deferred[request] = None
        if self._counts[request.client] < self._limit:
            self._pass_on(request, now_s)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        self._advance(now_s)
        yield from super().admissions(now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if request in self._deferred:
            del self._deferred[request]
        else:
            super().leave(request, now_s)

    def waiting(self) -> Collection[Request]:
        return [*super().waiting(), *self._deferred]

    def __len__(self) -> int:
        return super().__len__() + len(self._deferred)

    def opens_s(self) -> float:
        """The next time at which a pass may admit more than it did; infinite if time alone changes nothing."""
        return (self._minute + 1) * MINUTE_S if self._deferred else inf

    def _advance(self, now_s: float) -> None:
        minute = floor(now_s / MINUTE_S)
        if minute <= self._minute:
            return
        self._minute = minute
        self._counts.clear()
        for request in list(self._deferred):
            if self._counts[request.client] < self._limit:
                self._pass_on(request, now_s)

    def _pass_on(self, request: Request, now_s: float) -> None:
        del self._deferred[request]
        self._counts[request.client] += 1
        super().arrive(request, now_s)


def checked(limit: int) -> int:
    """`limit`, if it is at least 1."""
    if limit < 1:
        raise ValueError(f"requests_per_minute is {limit}, must be at least 1")
    return limit
