"""What each client was served, cumulative since the engine started: the source of the ledger (design R3).

Place in the flow: engine → **accounts** → reports. Kept beside the policy, not by it: FCFS keeps no counters, and
its clients were served all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import Request


@dataclass(slots=True)
class ClientTotals:
    """One client's totals; none ever falls. See `evenkeel_contract.reports.ClientReport`."""

    extend_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    normalised: float = 0.0
    tenant_normalised: float = 0.0
    requests: int = 0
    running: int = 0
    """State, not a total: requests in the batch."""


class Accounts:
    """Books every client's service as the engine renders it, at the weights of the moment.

    Output is booked when a request leaves the batch or somebody wants to know, not at every token: costs
    telescope, so the sums are the same.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self.clients: dict[str, ClientTotals] = {}

    def admitted(self, request: Request, *, charged: bool) -> None:
        """A request entered the batch; `charged` is whether its input costs its client anything (R11)."""
        totals = self.clients.get(request.client)
        if totals is None:
            totals = self.clients[request.client] = ClientTotals()
        totals.requests += 1
        totals.running += 1
        totals.cached_tokens += request.matched_tokens
        totals.extend_tokens += request.extend_tokens
        if charged:
            _serve(totals, request, self._cost.input_cost(request.extend_tokens))

    def settle(self, request: Request) -> None:
        """Book the output tokens that are not booked yet."""
        before, after = request.booked_tokens, request.output_tokens
        if after > before:
            totals = self.clients[request.client]
            totals.output_tokens += after - before
            _serve(totals, request, self._cost.output_cost(request.extend_tokens, before, after))
            request.booked_tokens = after

    def copy(self) -> dict[str, ClientTotals]:
        """The totals as they are now, to be read while the engine goes on."""
        return {client: replace(totals) for client, totals in self.clients.items()}

    def left(self, request: Request) -> None:
        """A request left the batch."""
        self.settle(request)
        self.clients[request.client].running -= 1


def _serve(totals: ClientTotals, request: Request, service: float) -> None:
    totals.service += service
    totals.normalised += service / request.client_weight
    totals.tenant_normalised += service / request.tenant_weight
