"""A replica's side of reports: numbers every change, so that an answer has only new rows (design R3).

A router that does not know this incarnation gets all clients. Other routers get the clients that changed after the sequence
number in their request. A refill changes the deficits of all queued clients without any service, so the replica finds changes by
comparison with the last report.

Memory is bounded: there are as many served clients as accounts. Of clients that only waited, the one without a change for the
longest time is removed first; no total is lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report, ReportRequest

MAX_CLIENTS: Final = 10_000
"""Clients per answer; the asker gets the others with its next request."""
MAX_UNSERVED: Final = 65_536
"""Clients that were never served."""


class Served(Protocol):
    """One client's totals, as in `evenkeel_fairshare.replica.accounts.ClientTotals`."""

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
    """The policy's state of a client, as in `evenkeel_fairshare.replica.contract.ClientState`."""

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
    """Numbers the changes of every client, so that an answer has only new rows."""

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
        """Clients without an account, longest unchanged first."""
        self._policy = policy
        self._max_clients = max_clients
        self._sequence = 0
        self._latest: dict[str, tuple[int, ClientReport]] = {}

    def update(self, totals: Mapping[str, Served], states: Mapping[str, Held]) -> None:
        """Take the current state; every client with a change gets the next sequence number."""
        # A client that waited and left unserved is in neither map, so `_latest` is needed too.
        for client in dict.fromkeys((*totals, *states, *self._latest)):
            report = _report(client, totals.get(client), states.get(client))
            known = self._latest.get(client)
            if known is None or known[1] != report:
                self._sequence += 1
                # Inserted again, so that the order stays that of the sequence numbers.
                self._latest.pop(client, None)
                self._latest[client] = (self._sequence, report)
                self._unserved.pop(client, None)
                if client not in totals:
                    self._unserved[client] = None
        while len(self._unserved) > self._max_unserved:
            oldest = next(iter(self._unserved))
            del self._unserved[oldest], self._latest[oldest]

    def answer(self, question: ReportRequest) -> Report:
        """All changes after the asker's sequence number; all clients if it names another incarnation."""
        since = question.since if question.incarnation == self.incarnation else 0
        if not 0 <= since <= self._sequence:
            since = 0  # not a number of this incarnation
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
