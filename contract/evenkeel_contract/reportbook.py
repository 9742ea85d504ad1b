"""A replica's side of reports: numbers every change, so that an answer holds only what is new (design R3).

The answer begins anew for a router that does not know this incarnation; otherwise it holds the clients that changed since the
sequence that the router names. A refill changes the deficits of all queued clients without serving a token, so changes are found by
comparing with the last answer.

Memory is bounded: rows of served clients are as many as the accounts keep. Of clients that only waited, the one that is unchanged for the longest time
is dropped first; no total is lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report, ReportRequest

MAX_CLIENTS: Final = 10_000
"""Clients of one answer; the asker gets the others by asking again from the answer's sequence."""
MAX_UNSERVED: Final = 65_536
"""Clients in the book that were never served."""


class Served(Protocol):
    """One client's totals, as `evenkeel_fairshare.replica.accounts.ClientTotals` has them."""

    extend_tokens: int
    cached_tokens: int
    output_tokens: int
    service: float
    normalised: float
    tenant_normalised: float
    requests: int
    running: int
    aborted: int
    aborted_tokens: int


class Held(Protocol):
    """What the policy holds against a client, as `evenkeel_fairshare.replica.contract.ClientState`."""

    @property
    def deficit(self) -> float: ...
    @property
    def tenant_deficit(self) -> float: ...
    @property
    def waiting(self) -> int: ...
    @property
    def seed(self) -> float: ...
    @property
    def tenant_seed(self) -> float: ...


class ReportBook:
    """Numbers the changes of every client's report, so that an answer may hold only what is new."""

    def __init__(
        self,
        *,
        incarnation: str,
        policy: str,
        max_clients: int = MAX_CLIENTS,
        max_unserved: int = MAX_UNSERVED,
    ) -> None:
        self.incarnation = incarnation
        self._max_unserved = max_unserved
        self._unserved: dict[str, None] = {}
        """Those that the accounts do not know, longest unchanged first."""
        self._policy = policy
        self._max_clients = max_clients
        self._sequence = 0
        self._latest: dict[str, tuple[int, ClientReport]] = {}

    def update(self, totals: Mapping[str, Served], states: Mapping[str, Held]) -> None:
        """Take over what is true now; every client whose report differs gets the next sequence number."""
        # A client that waited and left without being served is in neither map: the book remembers it.
        for client in dict.fromkeys((*totals, *states, *self._latest)):
            report = _report(client, totals.get(client), states.get(client))
            known = self._latest.get(client)
            if known is None or known[1] != report:
                self._sequence += 1
                # Re-inserting keeps the book in the order of its sequence numbers.
                self._latest.pop(client, None)
                self._latest[client] = (self._sequence, report)
                self._unserved.pop(client, None)
                if client not in totals:
                    self._unserved[client] = None
        while len(self._unserved) > self._max_unserved:
            oldest = next(iter(self._unserved))
            del self._unserved[oldest], self._latest[oldest]

    def answer(self, question: ReportRequest) -> Report:
        """What changed since the asker's sequence; from the start if it means another incarnation."""
        since = question.since if question.incarnation == self.incarnation else 0
        if not 0 <= since <= self._sequence:
            since = 0  # a number this incarnation never gave
        news = [entry for entry in self._latest.values() if entry[0] > since][: self._max_clients]
        return Report(
            version=REPORT_VERSION,
            incarnation=self.incarnation,
            sequence=news[-1][0] if news else since,
            since=since,
            policy=self._policy,
            clients=tuple(report for _, report in news),
        )


def _report(client: str, served: Served | None, held: Held | None) -> ClientReport:
    return ClientReport(
        client=client,
        extend_tokens=served.extend_tokens if served else 0,
        cached_tokens=served.cached_tokens if served else 0,
        output_tokens=served.output_tokens if served else 0,
        service=served.service if served else 0.0,
        normalised=served.normalised if served else 0.0,
        tenant_normalised=served.tenant_normalised if served else 0.0,
        requests=served.requests if served else 0,
        deficit=held.deficit if held else 0.0,
        tenant_deficit=held.tenant_deficit if held else 0.0,
        waiting=held.waiting if held else 0,
        running=served.running if served else 0,
        seed=held.seed if held else 0.0,
        tenant_seed=held.tenant_seed if held else 0.0,
        aborted=served.aborted if served else 0,
        aborted_tokens=served.aborted_tokens if served else 0,
    )
