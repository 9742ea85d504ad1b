"""The running batch: requests that decode together, and when the next of them ends.

All of them produce one token per step. So each one's end is a count of steps that is known when it begins to run, and
a step costs nothing per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol, runtime_checkable

from evenkeel_fairshare.replica.contract import ReplicaPolicy

from evenkeel_simulator.engine.request import EngineRequest, State
from evenkeel_simulator.engine.token_times import TokenTimes


@runtime_checkable
class ChargesByPass(Protocol):
    """A policy that charges by forward passes instead of tokens (`evenkeel_laboratory.policies.vtc_artifact`)."""

    def decoding(self, batch: Sequence[EngineRequest]) -> None:
        """A decode pass over `batch` begins."""

    def forwarded(self, batch: Sequence[EngineRequest], *, finished: bool) -> None:
        """A prefill pass or a decode pass over `batch` ended; `finished`: whether it was the last one for some of
        `batch`. Called after `progress` and before `leave`, with those that finished still in `batch`."""


class Batch:
    """Requests in state RUNNING, in the order in which they began to run."""

    def __init__(self, token_times: TokenTimes | None = None) -> None:
        self.requests: dict[EngineRequest, None] = {}
        self._token_times = token_times
        self._decoded_s = 0.0
        """End of the last decode step."""
        self.kv_tokens = 0
        """Context tokens of all requests, which a decode step reads."""
        self.possible_tokens = 0
        """The most output tokens that all requests may produce yet."""
        self._steps = 0
        """Decode steps so far."""
        self._ends: list[tuple[int, int, EngineRequest]] = []
        """(count of steps at which it ends, serial, request) as a heap; some of them have left."""
        self._serial = 0
        self._paid: dict[EngineRequest, None] = {}
        """Requests of the batch whose next token may have been charged elsewhere (R11)."""

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[EngineRequest]:
        return iter(self.requests)

    def add(self, request: EngineRequest, now_s: float) -> None:
        """A request has produced the first token since its admission."""
        if self._token_times is not None:
            self._token_times.begins(request, now_s)
        self.requests[request] = None
        if request.paid_output_tokens:
            self._paid[request] = None
        self.kv_tokens += request.context_tokens
        self.possible_tokens += request.reserved_tokens
        # A retracted request returns with another serial, so its old entry is stale.
        self._serial += 1
        request.entry = self._serial
        heappush(self._ends, (self._steps + request.remaining_tokens, self._serial, request))

    def remove(self, request: EngineRequest) -> None:
        """A request leaves, for good or not."""
        self.set_token_time(request)
        if self._token_times is not None:
            self._token_times.pauses(request)
        del self.requests[request]
        self._paid.pop(request, None)
        self.kv_tokens -= request.context_tokens
        self.possible_tokens -= request.reserved_tokens

    def set_token_time(self, request: EngineRequest) -> None:
        """Decode steps cost nothing per request, so the time of the newest token is set when it is needed."""
        request.token_s = max(request.token_s, self._decoded_s)

    def decode(self, steps: int, end_s: float) -> None:
        """All requests produce `steps` tokens, the last ones at `end_s`."""
        self._decoded_s = end_s
        for request in self.requests:
            request.output_tokens += steps
        self.kv_tokens += steps * len(self.requests)
        self.possible_tokens -= steps * len(self.requests)
        self._steps += steps

    def charge(self, policy: ReplicaPolicy, steps: int) -> None:
        """Charge all requests for the last `steps` tokens, but not for tokens paid elsewhere (R11)."""
        paid = list(self._paid)
        if not paid:
            policy.progress_all(self.requests.keys(), steps)
            return
        policy.progress_all([one for one in self.requests if one not in self._paid], steps)
        for request in paid:
            due_tokens = request.due_tokens(steps)
            if due_tokens > 0:
                policy.progress(request, due_tokens)
            if due_tokens == steps:
                del self._paid[request]

    def steps_to_end(self) -> int:
        """Decode steps until a request ends; the batch is not empty."""
        while not _is_live(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] - self._steps

    def pop_ended(self) -> list[EngineRequest]:
        """Requests that have produced their last token. They are still in the batch, but returned only once."""
        ended = []
        while self._ends and self._ends[0][0] <= self._steps:
            entry = heappop(self._ends)
            if _is_live(entry):
                ended.append(entry[2])
        return ended

    def by_cost_of_retraction(
        self, is_above_share: Callable[[EngineRequest], bool]
    ) -> list[EngineRequest]:
        """Requests of clients above their shares of the memory first (R16), and as in SGLang's `retract_decode` the least output first, of
        these the longest input, of equal ones the last to begin."""
        return sorted(
            self.requests,
            key=lambda r: (not is_above_share(r), r.output_tokens, -r.input_tokens, -r.entry),
        )


def _is_live(entry: tuple[int, int, EngineRequest]) -> bool:
    _, serial, request = entry
    return request.state is State.RUNNING and request.entry == serial
