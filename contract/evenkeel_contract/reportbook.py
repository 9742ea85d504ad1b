"""A replica's side of reports: adds up what each client was served, and numbers every change (design R3).

`Accounts` is separate from the policy, because a policy without counters (FCFS) serves clients too. No client is ever removed
from it: one that returned would begin at 0, and the largest total that a router received would hide its later service.

`ReportBook` makes the answers. A router that does not know this incarnation gets all clients. Other routers get the clients that
changed after the sequence number in their request. A refill changes the deficits of all queued clients without any service, so
the book finds changes by comparison with the last report.

Memory is bounded. Beyond `MAX_CLIENTS`, new clients of a tenant share one row; the sums over clients and per tenant stay right.
Of clients that only waited, the one without a change for the longest time is removed first; no total is lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import ClientDeficits, Request

from evenkeel_contract.key import UNKNOWN
from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report, ReportRequest, unserved

MAX_CLIENTS: Final = 65_536
"""Clients with their own totals, about 50 MB with their reports; as many as a level of deficits remembers."""
MAX_UNSERVED: Final = 65_536
"""Clients in reports that were never served."""
MAX_CLIENTS_PER_REPORT: Final = 10_000
"""The asker gets the others with its next request."""
OTHERS: Final = "*"
"""The last part of the identity that the other clients of a tenant share. Names in identities are percent-escaped, and
`*` is not: a client named `*` has the identity `namespace/tenant/%2A`."""


class Accounts:
    """Adds up every client's service as the engine produces it, at the current weights.

    Output is added when a request leaves the batch or a report is made, not at every token: costs
    telescope, so the sums are the same.
    """

    def __init__(self, cost: Cost, *, max_clients: int = MAX_CLIENTS) -> None:
        self._cost = cost
        self._max_clients = max_clients
        self.clients: dict[str, ClientReport] = {}
        """Identity → report of the client; at most `max_clients`, and one shared row per tenant."""

    def admitted(self, request: Request, *, charged: bool) -> None:
        """A request entered the batch; `charged`: whether its client pays for its input (R11)."""
        totals = self._of(request)
        totals.requests += 1
        totals.running += 1
        totals.cached_tokens += request.matched_tokens
        totals.extend_tokens += request.extend_tokens
        if charged:
            _serve(totals, request, self._cost.input_cost(request.input_work))

    def settle(self, request: Request) -> ClientReport:
        """Add the output tokens that the totals do not include yet; returns the client's row."""
        totals = self._of(request)
        before, after = request.booked_tokens, request.output_tokens
        if after > before:
            totals.output_tokens += after - before
            # No gap comes before the first token.
            totals.itl_tokens += after - max(before, 1)
            totals.itl_s += request.token_s - request.booked_s
            request.booked_tokens, request.booked_s = after, request.token_s
            # Another replica charged the paid tokens (R11): they were produced here, but cost nothing.
            before = max(before, request.paid_output_tokens)
            if after > before:
                cost = self._cost.output_cost(request.extend_tokens, before, after)
                _serve(totals, request, cost)
        return totals

    def copy(self) -> dict[str, ClientReport]:
        """A copy of the totals for a reader while the engine runs."""
        return {client: copy(totals) for client, totals in self.clients.items()}

    def left(self, request: Request) -> None:
        """A request left the batch."""
        self.settle(request).running -= 1

    def aborted(self, request: Request) -> None:
        """A request has ended unfinished after it was admitted and had left the batch."""
        totals = self._of(request)
        totals.aborted += 1
        totals.aborted_tokens += max(0, request.output_tokens - request.paid_output_tokens)

    def _of(self, request: Request) -> ClientReport:
        """The row of a client, the same as long as the process lives."""
        totals = self.clients.get(request.client)
        if totals is not None:
            return totals
        full = len(self.clients) >= self._max_clients
        name = f"{request.tenant}/{OTHERS}" if full else request.client
        return self.clients.setdefault(name, unserved(name))


def _serve(totals: ClientReport, request: Request, service: float) -> None:
    totals.service += service
    totals.normalised += service / request.client_weight
    totals.tenant_normalised += service / request.tenant_weight


class ReportBook:
    """Numbers the changes of every client, so that an answer has only new rows."""

    def __init__(
        self,
        *,
        incarnation: str,
        policy: str,
        inactive: str = "",
        max_clients: int = MAX_CLIENTS_PER_REPORT,
        max_unserved: int = MAX_UNSERVED,
    ) -> None:
        self.incarnation = incarnation
        self._max_unserved = max_unserved
        self._unserved: dict[str, None] = {}
        """Clients without an account, longest unchanged first."""
        self._policy = policy
        self._inactive = inactive
        self._max_clients = max_clients
        self._sequence = 0
        self._quantum = 0.0
        self._requests = self._unnamed = 0
        self._latest: dict[str, tuple[int, ClientReport]] = {}

    def update(
        self,
        totals: Mapping[str, ClientReport],
        states: Mapping[str, ClientDeficits],
        quantum: float = 0.0,
    ) -> None:
        """Take the current totals, states and Q^u; every client with a change gets the next sequence number."""
        self._quantum = quantum
        self._requests = sum(one.requests for one in totals.values())
        unknown = totals.get(UNKNOWN.identity)
        self._unnamed = 0 if unknown is None else unknown.requests
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
            # The number of the last row in this answer: the next question asks for the rows that did not fit.
            sequence=news[-1][0] if news else since,
            since=since,
            policy=self._policy,
            clients=tuple(report for _, report in news),
            quantum=self._quantum,
            inactive=self._inactive,
            requests=self._requests,
            unnamed=self._unnamed,
        )


def _report(client: str, totals: ClientReport | None, state: ClientDeficits | None) -> ClientReport:
    report = unserved(client) if totals is None else copy(totals)
    if state is not None:
        report.deficit, report.tenant_deficit = state.deficit, state.tenant_deficit
        report.seed, report.tenant_seed = state.seed, state.tenant_seed
        report.waiting = state.waiting
    return report
