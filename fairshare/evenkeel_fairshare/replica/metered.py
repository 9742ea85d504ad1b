"""The common base of VTC and DRR: one account per client, which pays for all input, cached or not.

Charging is the largest cost of a decode step, so equal prices are charged once per client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter as Tally
from collections.abc import Collection
from typing import ClassVar, Generic, TypeVar

from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request

_Account = TypeVar("_Account")


class MeteredPolicy(ReplicaPolicy, Generic[_Account]):
    """Charges h(input, output) as tokens are produced; `_running` maps a request to the account that pays."""

    divides_time: ClassVar[bool] = True

    def __init__(self, cost: Cost | None) -> None:
        self._cost: Cost = cost or LinearCost()
        self._token_price = flat_output_price(self._cost)
        self._running: dict[Request, _Account] = {}

    def progress(self, request: Request, tokens: int) -> None:
        """VTC's line 30, and Algorithm 4, line 22."""
        after = request.output_tokens
        cost = self._cost.output_cost(request.input_tokens, after - tokens, after)
        self._charge(self._running[request], cost)

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        """Charged once per client instead of once per request."""
        if self._token_price is None:
            super().progress_all(requests, tokens)
            return
        price = self._token_price * tokens
        for account, count in Tally(map(self._running.__getitem__, requests)).items():
            self._charge(account, price * count)

    def served_elsewhere(self, client: str, tenant: str, service: float) -> None:
        account = self._account(client)
        if account is not None:
            self._charge(account, service)

    @abstractmethod
    def _account(self, client: str) -> _Account | None:
        """The account of a client with requests here."""

    @abstractmethod
    def _charge(self, account: _Account, cost: float) -> None:
        """Weighted tokens, before any division by weights."""

    def _input_cost(self, request: Request) -> float:
        """VTC's line 24. After a retraction the output so far is computed again, so it is charged as input."""
        if not request.charge_input:
            return 0.0
        return self._cost.input_cost(
            request.input_tokens + request.output_tokens + request.load_tokens
        )
