"""What each client was served, cumulative since the engine started: the source of the ledger (design R3)."""

from __future__ import annotations

from dataclasses import dataclass

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
    changed: int = 0
    """`Accounts.sequence` at the last change."""


class Accounts:
    """Books every client's service as the engine renders it, at the weights of the moment."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self.clients: dict[str, ClientTotals] = {}
        self.sequence = 0
        """Grows with every change, so that a report may hold only what changed since another."""

    def admitted(self, request: Request, *, charged: bool) -> None:
        """A request entered the batch; `charged` is whether its input costs its client anything (R11)."""
        totals = self._touch(request.client)
        totals.requests += 1
        totals.running += 1
        totals.cached_tokens += request.matched_tokens
        totals.extend_tokens += request.extend_tokens
        if charged:
            _serve(totals, request, self._cost.input_cost(request.extend_tokens))

    def produced(self, request: Request, tokens: int) -> None:
        """`tokens` further output tokens; `request.output_tokens` counts them already."""
        totals = self._touch(request.client)
        totals.output_tokens += tokens
        after = request.output_tokens
        service = self._cost.output_cost(request.extend_tokens, after - tokens, after)
        _serve(totals, request, service)

    def left(self, request: Request) -> None:
        """A request left the batch."""
        self._touch(request.client).running -= 1

    def _touch(self, client: str) -> ClientTotals:
        totals = self.clients.get(client)
        if totals is None:
            totals = self.clients[client] = ClientTotals()
        self.sequence += 1
        totals.changed = self.sequence
        return totals


def _serve(totals: ClientTotals, request: Request, service: float) -> None:
    totals.service += service
    totals.normalised += service / request.client_weight
    totals.tenant_normalised += service / request.tenant_weight
