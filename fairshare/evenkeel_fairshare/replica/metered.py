"""The common base of VTC and DRR: one account per client, with its queue, which pays for all input, cached or not.

Charging is the largest cost of a decode step, so equal prices are charged once per client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.lowest import Lowest, Ranked


@dataclass(slots=True, eq=False)
class ClientAccount(Ranked):
    """The account of one client, and its requests."""

    running: int = 0
    """Requests in the batch."""
    queue: OrderedDict[Request, None] = field(default_factory=OrderedDict)

    @property
    def is_idle(self) -> bool:
        """Whether it has no waiting and no running request."""
        return not (self.waiting or self.running)


_Account = TypeVar("_Account", bound=ClientAccount)


class MeteredPolicy(ReplicaPolicy, Generic[_Account]):
    """Charges h(input, output) as tokens are produced; `_running` maps a request to the account that pays."""

    divides_time: ClassVar[bool] = True

    def __init__(self, cost: Cost | None) -> None:
        self._cost: Cost = cost or LinearCost()
        self._token_price = flat_output_price(self._cost)
        self._accounts: dict[str, _Account] = {}
        self._running: dict[Request, _Account] = {}
        self._queued: Lowest[_Account] = Lowest()
        self._waiting = 0

    def requeue(self, request: Request, now_s: float) -> None:
        account = self._running.pop(request)
        account.running -= 1
        self._enqueue(request, account)
        account.queue.move_to_end(request, last=False)  # it arrived before all that wait
        request.charge_input = True  # it is computed again here (R11)

    def leave(self, request: Request, now_s: float) -> None:
        account = self._running.pop(request, None)
        if account is not None:
            account.running -= 1
        else:
            self._dequeue(request, self._accounts[request.client])

    def waiting(self) -> Iterator[Request]:
        for account in self._accounts.values():
            yield from account.queue

    def __len__(self) -> int:
        return self._waiting

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
        account = self._accounts.get(client)
        if account is not None and not account.is_idle:
            self._charge(account, service)

    @abstractmethod
    def _enqueue(self, request: Request, account: _Account) -> None:
        """The request waits, the last of its client."""

    @abstractmethod
    def _dequeue(self, request: Request, account: _Account) -> None:
        """Remove the request from the queue: it waits no longer."""

    @abstractmethod
    def _charge(self, account: _Account, cost: float) -> None:
        """Weighted tokens, before any division by weights."""

    def _admit(self, request: Request, account: _Account) -> None:
        """VTC's lines 24 and 25."""
        self._charge(account, self._input_cost(request))
        self._running[request] = account
        account.running += 1
        self._dequeue(request, account)

    def _input_cost(self, request: Request) -> float:
        """VTC's line 24. After a retraction the output so far is computed again, so it is charged as input."""
        if not request.charge_input:
            return 0.0
        return self._cost.input_cost(
            request.input_tokens + request.output_tokens + request.load_tokens
        )
