"""vLLM's waiting queue in the policy's order: one walk of the scheduler over it is one pass of the policy.

In each step the scheduler asks for the next request (`peek_request`), tries it, and takes it out if it fits (`pop_request`). It
also takes out requests that it cannot start in this step for another reason, such as an adapter without a slot, and puts them
back at the end of the step (`prepend_requests`). Whether a request that was taken out is in the batch shows at the next question.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from evenkeel_plugin.scheduling import Scheduling
from vllm.v1.core.sched.request_queue import RequestQueue

from evenkeel_vllm.engine_request import VllmRequest


class FairQueue(RequestQueue):
    """vLLM's waiting queue in the policy's order. The scheduler's thread calls it."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._waiting: dict[Any, VllmRequest] = {}
        """Waiting requests in order of arrival."""
        self._running: dict[str, VllmRequest] = {}
        """Requests in the batch, by id."""
        self._proposals: Iterator[Any] | None = None
        self._in_step = False
        self._proposed: VllmRequest | None = None
        self._taken: VllmRequest | None = None
        """The request that was taken out last; the policy does not know why yet."""
        self._unproposed: AbstractSet[str] = frozenset()
        """Ids in the last batch that the policy does not know."""

    # A step

    def begin(self) -> None:
        """The scheduler chooses the next batch. The pass begins when it asks for a request."""
        self._in_step = True

    def end(self, scheduled_tokens: Mapping[str, int]) -> None:
        """The scheduler has chosen. `scheduled_tokens` has those of each request, by id; empty after a failure."""
        if self._taken is not None:
            # The scheduler has counted the tokens of this step as computed.
            self._answer(scheduled_tokens.get(self._taken.rid, 0))
        self._scheduling.end_pass()
        unproposed = scheduled_tokens.keys() - self._running.keys()
        for _ in unproposed - self._unproposed:
            self._scheduling.bypassed()
        self._unproposed = unproposed
        self._proposals = self._proposed = None
        self._in_step = False

    def processed(self, ids: Iterable[str]) -> None:
        """A forward pass over the requests with these ids ended."""
        batch: list[Any] = [
            one for request_id in ids if (one := self._running.get(request_id)) is not None
        ]
        # A step may hold both prefill and decode.
        self._scheduling.processed(batch, is_prefill=True)
        for one in batch:
            if one.finished():
                del self._running[one.rid]
        # Requests that waited may have ended too, and those that were preempted since the last pass.
        self._scheduling.look(self._queue(), self._batch())

    # What the scheduler asks

    def __bool__(self) -> bool:
        """Whether a request waits; in a step: whether one may enter the batch."""
        return bool(self._waiting) and (not self._in_step or self._next() is not None)

    def peek_request(self) -> Any:
        proposed = self._next()
        if proposed is None:
            raise IndexError("no request may enter now")
        return proposed.request

    def pop_request(self) -> Any:
        proposed = self._next()
        if proposed is None:
            raise IndexError("no request may enter now")
        self._taken, self._proposed = proposed, None
        return proposed.request

    def add_request(self, request: Any) -> None:
        self._waiting[request] = VllmRequest(request)

    def prepend_request(self, request: Any) -> None:
        """A request of the batch was preempted, or one that was passed over comes back."""
        if request not in self._waiting:
            running = self._running.pop(request.request_id, None)
            # The same object: by it the policy sees a retraction.
            self._waiting[request] = running or VllmRequest(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Any) -> None:
        del self._waiting[request]

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self._waiting.pop(request, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._waiting))

    def _next(self) -> VllmRequest | None:
        if self._taken is not None:
            self._answer(0)  # within the step its tokens do not count as computed yet
        if self._proposals is None:
            self._proposals = iter(self._scheduling.begin_pass(self._queue(), self._batch()))
        if self._proposed is None:
            self._proposed = next(self._proposals, None)
        return self._proposed

    def _queue(self) -> list[Any]:
        return list(self._waiting.values())

    def _batch(self) -> Collection[Any]:
        return self._running.values()

    def _answer(self, scheduled_tokens: int) -> None:
        """Report what became of the request that was taken out. Without an answer it has no slot, and waits."""
        taken, self._taken = self._taken, None
        if taken is None or not taken.is_running:
            return
        del self._waiting[taken.request]
        self._running[taken.rid] = taken
        taken.prefix_len = taken.request.num_computed_tokens - scheduled_tokens
        admitted: Any = taken
        self._scheduling.tried(admitted, admitted=True)
