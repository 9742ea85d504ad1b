"""Totals of each client since the engine started: the source of the ledger (design R3).

They are separate from the policy, because a policy without counters (FCFS) serves clients too.

No client is ever removed: one that returned would begin at 0, and the largest total that a router received would hide its
later service (R3). Memory is bounded by `max_clients`: beyond it, new clients of a tenant share one row. The sums over clients
and per tenant stay right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import Request

MAX_CLIENTS: Final = 65_536
"""Clients with their own totals, about 50 MB with their reports; as many as a level of deficits remembers."""
OTHERS: Final = "*"
"""The last part of the identity that the other clients of a tenant share. Names in identities are percent-escaped, and
`*` is not: a client named `*` has the identity `namespace/tenant/%2A`."""


@dataclass(slots=True)
class ClientTotals:
    """One client's totals, which never fall. See `evenkeel_contract.reports.ClientReport`."""

    extend_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    normalised: float = 0.0
    tenant_normalised: float = 0.0
    requests: int = 0
    running: int = 0
    """State, not a total: requests in the batch."""
    aborted: int = 0
    """Requests that were aborted after their admission."""
    aborted_tokens: int = 0
    """Output tokens charged for those."""


class Accounts:
    """Adds up every client's service as the engine produces it, at the current weights.

    Output is added when a request leaves the batch or a report is made, not at every token: costs
    telescope, so the sums are the same.
    """

    def __init__(self, cost: Cost, *, max_clients: int = MAX_CLIENTS) -> None:
        self._cost = cost
        self._max_clients = max_clients
        self.clients: dict[str, ClientTotals] = {}
        """By identity; at most `max_clients`, and one shared row per tenant."""

    def admitted(self, request: Request, *, charged: bool) -> None:
        """A request entered the batch; `charged`: whether its client pays for its input (R11)."""
        totals = self._of(request)
        totals.requests += 1
        totals.running += 1
        totals.cached_tokens += request.matched_tokens
        totals.extend_tokens += request.extend_tokens
        if charged:
            _serve(totals, request, self._cost.input_cost(request.extend_tokens))

    def settle(self, request: Request) -> None:
        """Add the output tokens that the totals do not include yet."""
        before, after = request.booked_tokens, request.output_tokens
        if after > before:
            totals = self._of(request)
            totals.output_tokens += after - before
            request.booked_tokens = after
            before = max(before, request.paid_output_tokens)
            if after > before:
                cost = self._cost.output_cost(request.extend_tokens, before, after)
                _serve(totals, request, cost)

    def copy(self) -> dict[str, ClientTotals]:
        """A copy of the totals for a reader while the engine runs."""
        return {client: replace(totals) for client, totals in self.clients.items()}

    def left(self, request: Request) -> None:
        """A request left the batch."""
        self.settle(request)
        self._of(request).running -= 1

    def aborted(self, request: Request) -> None:
        """A request has ended unfinished after it was admitted and had left the batch."""
        totals = self._of(request)
        totals.aborted += 1
        totals.aborted_tokens += max(0, request.output_tokens - request.paid_output_tokens)

    def _of(self, request: Request) -> ClientTotals:
        """The row of a client, the same as long as the process lives."""
        totals = self.clients.get(request.client)
        if totals is not None:
            return totals
        full = len(self.clients) >= self._max_clients
        name = f"{request.tenant}/{OTHERS}" if full else request.client
        return self.clients.setdefault(name, ClientTotals())


def _serve(totals: ClientTotals, request: Request, service: float) -> None:
    totals.service += service
    totals.normalised += service / request.client_weight
    totals.tenant_normalised += service / request.tenant_weight
