"""The requests that wait and run, as the policy and the shares of one engine know them (docs/design/books).

There are no hooks for arrivals, aborts and retractions. SGLang has a dozen places that touch its queue and its batch, different
ones in every version. So before every pass both are compared with these books, which costs less than sorting the queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from time import monotonic
from weakref import WeakSet

from evenkeel_contract.reportbook import Accounts, News
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.replica.contract import ClientDeficits, ReplicaPolicy, Request
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.shares import Shares

from evenkeel_plugin.matching import AdapterLoads, Matching
from evenkeel_plugin.request import (
    EngineRequest,
    Reservations,
    Scheduled,
    context_tokens,
    is_probe,
    prefix_tokens,
    scheduled_of,
    was_aborted,
)
from evenkeel_plugin.stalls import Stalls

logger = logging.getLogger(__name__)


class Books:
    """The books of one scheduler. `snapshot` takes the lock; callers of the other functions hold it."""

    def __init__(
        self,
        policy: ReplicaPolicy,
        accounts: Accounts,
        *,
        match: Callable[[EngineRequest], int],
        time: EngineTime | None = None,
        memory: MemoryShares | None = None,
        adapters: AdapterLoads | None = None,
        refused: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`match` asks the cache for a waiting request's cached tokens; `time` divides the engine's time (R13), `memory` its KV pool (R16); `refused` is called for each client key that
        could not be read. With several ranks `clock` must give them all the same time, or their orders would differ."""
        self.policy = policy
        self._accounts = accounts
        self._match = match
        self._matching = Matching(match) if policy.matches_prefix else None
        self._shares = Shares(time=time, memory=memory)
        self._giving: dict[EngineRequest, None] = {}
        """Running requests that the engine has to retract: their client holds more than its share, and another one has a claim."""
        self._given: dict[EngineRequest, None] = {}
        """Requests that gave memory back and are not in the queue yet."""
        self.reservations = Reservations(self._client_of)
        self._adapters = adapters or AdapterLoads()
        self.refused = refused
        self.bypassed: Callable[[], None] = lambda: None
        """Callback for each request that entered the batch unproposed."""
        self.received: Callable[[], None] = lambda: None
        """Callback for each new request."""
        self.stalled: Callable[[], None] = lambda: None
        """Callback for each time that the books were rebuilt, since no pass proposed a request for long."""
        self._stalls = Stalls()
        self._unknown: WeakSet[EngineRequest] = WeakSet()
        """Requests that were computed although the policy does not know them."""
        self.reserved_ratio: Callable[[], float] = lambda: 1.0
        """The part of the possible output that the engine reserves for running requests."""
        self.reserved_tokens: Callable[[], int] = lambda: 0
        """Tokens of the memory that decode steps must leave: those of the rest of a prompt in chunks."""
        self.chunk_waits: EngineRequest | None = None
        """The prompt in chunks that waits in this pass."""
        self.in_flight: Callable[[], Container[EngineRequest]] = tuple
        """The requests of all batches of the engine. Asked only for a running request that its batch lacks."""
        self._clock = clock
        self._waiting: dict[EngineRequest, Scheduled] = {}
        self._waiting_tokens = 0
        """Context tokens of the waiting requests."""
        self._running: dict[EngineRequest, Scheduled] = {}
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._running)

    def giving(self) -> Collection[EngineRequest]:
        """Running requests that the engine has to retract now (R16)."""
        for one in self._shares.given_back():
            assert isinstance(one, Scheduled)
            self._giving[one.engine] = None
        return self._giving

    def gave(self, remaining: Collection[EngineRequest]) -> None:
        """The engine retracted those of `giving` that are not among the `remaining` requests. A prompt in chunks is in no batch that
        decodes, so it stays."""
        gone = (one for one in self._giving if one not in remaining)
        self._given |= {one: None for one in gone if self._running[one].decodes}
        self._giving.clear()

    def is_above_share(self, request: EngineRequest) -> bool:
        """Whether the client of a running request holds more than its share of the memory."""
        scheduled = self._running.get(request)
        return scheduled is not None and self._shares.is_above_share(scheduled)

    def snapshot(self) -> tuple[Mapping[str, ClientReport], Mapping[str, ClientDeficits], float]:
        """What every client was served, its deficits, and Q^u in force. For reports; any thread."""
        with self._lock:
            for scheduled in self._running.values():
                self._accounts.settle(scheduled)
            return self._accounts.copy(), self.policy.clients(), self.policy.quantum

    def news(self, idle: Collection[str] = ()) -> News:
        """What changed of `snapshot` since the last call, all of it at first; any thread. Only changed rows are copied while the
        scheduler waits. `idle`: clients whose rows are given back."""
        with self._lock:
            for scheduled in self._running.values():
                self._accounts.settle(scheduled)
            return News.of(self._accounts, self.policy, idle)

    def _reconcile(
        self,
        queue: Sequence[EngineRequest],
        batch: Collection[EngineRequest],
        chunk: EngineRequest | None,
    ) -> None:
        now_s = self._clock()
        known = list(self._waiting)
        # The engine adds requests at the end. Comparing lists costs a fraction of comparing sets.
        is_longer = queue[: len(known)] == known
        if not is_longer:
            present = set(queue)
            for request in known:
                if request not in present:
                    self._leave(self._waiting[request])  # aborted while it waited
        for request in queue[len(known) :] if is_longer else queue:
            if request not in self._waiting and not is_probe(request):
                self._arrive(request, now_s)
        if not is_longer:  # in the engine's order again
            self._waiting = {one: self._waiting[one] for one in queue if one in self._waiting}
        # After the arrivals: retracted requests wait again.
        if gone := self._running.keys() - batch:
            self._drop(gone, chunk)

    def _drop(self, gone: set[EngineRequest], chunk: EngineRequest | None) -> None:
        """Requests of `gone` leave, unless they are in another batch. SGLang finishes few of those that it aborts."""
        gone -= {chunk, self.chunk_waits}
        if not gone:
            return
        in_flight = self.in_flight()
        for scheduled in [one for request, one in self._running.items() if request in gone]:
            if scheduled.engine.finished() or scheduled.engine not in in_flight:
                self._charge([scheduled])
                self._leave(scheduled)

    def _rebuild(self, seconds: float) -> None:
        """Make the books anew from what the engine holds, which `_reconcile` has just compared. Deficits and totals stay."""
        logger.error(
            "evenkeel: %d requests wait, and none was proposed for %.0f s: the books are rebuilt (%d run)",
            len(self._waiting),
            seconds,
            len(self._running),
        )
        self.stalled()
        self._giving.clear()
        self._given.clear()
        self._shares = self._shares.restarted()
        if self._matching is not None:
            self._matching = Matching(self._match)
        for request, scheduled in self._waiting.items():
            self._shares.opened(scheduled)
            if self._matching is not None:
                self._matching.add(request)
        for request, scheduled in self._running.items():
            self._shares.opened(scheduled)
            self._shares.started(scheduled)
            if scheduled.decodes:
                held_tokens = context_tokens(request) - scheduled.matched_tokens
                self._shares.decoding(scheduled, tokens=held_tokens - scheduled.extend_tokens)
            elif self._matching is not None:
                self._matching.begin(request, scheduled.extend_tokens)
        known = set(self.policy.waiting())
        waiting: set[Request] = set(self._waiting.values())
        for one in known - waiting:
            self.policy.leave(one, self._clock())
        for one in self._waiting.values():
            if one not in known:
                self.policy.arrive(one, self._clock())

    def _arrive(self, request: EngineRequest, now_s: float) -> None:
        scheduled = self._running.pop(request, None)
        if scheduled is not None:  # retracted: what it computes again is charged again (R11)
            self._accounts.left(scheduled)
            self._shares.stopped(scheduled)
            self._giving.pop(request, None)  # by a pause
            if scheduled.bypassed:
                scheduled.bypassed = False
                self.policy.arrive(scheduled, now_s)
            else:
                self.policy.requeue(scheduled, now_s)
            if request in self._given:  # what it computes again was paid (R16)
                del self._given[request]
                scheduled.charge_input = False
            if self._matching is not None:
                self._matching.end(request)
        else:
            self.received()
            scheduled = scheduled_of(request, now_s, refused=self.refused)
            self._shares.opened(scheduled)
            self.policy.arrive(scheduled, now_s)
        self._waiting[request] = scheduled
        scheduled.context_tokens = context_tokens(request)
        self._waiting_tokens += scheduled.context_tokens
        if self._matching is not None:
            self._matching.add(request)

    def _enter(self, scheduled: Scheduled) -> None:
        request = scheduled.engine
        del self._waiting[request]
        self._waiting_tokens -= scheduled.context_tokens
        self._running[request] = scheduled
        scheduled.decodes = False
        self._shares.started(scheduled)
        self._accounts.admitted(scheduled, charged=scheduled.charge_input)
        if self._matching is not None:
            self._matching.begin(request, scheduled.extend_tokens)

    def _leave(self, scheduled: Scheduled) -> None:
        request = scheduled.engine
        if self._running.pop(request, None) is not None:
            self._accounts.left(scheduled)
            self.reservations.ended(scheduled.client, scheduled.output_tokens)
            self._shares.stopped(scheduled)
            self._giving.pop(request, None)
            self._given.pop(request, None)
            if self._matching is not None:
                self._matching.cached(request)
        else:
            del self._waiting[request]
            self._waiting_tokens -= scheduled.context_tokens
            if self._matching is not None:
                self._matching.discard(request)
        if scheduled.extend_tokens and was_aborted(request):  # it was admitted once
            self._accounts.aborted(scheduled)
        self._shares.closed(scheduled)
        if not scheduled.bypassed:
            self.policy.leave(scheduled, self._clock())

    def _measure(self, scheduled: Scheduled) -> None:
        """What an admitted request has to compute."""
        request = scheduled.engine
        scheduled.matched_tokens = prefix_tokens(request)
        # The engine always computes the last token, for its output.
        scheduled.extend_tokens = max(1, context_tokens(request) - scheduled.matched_tokens)
        scheduled.load_tokens = self._adapters.tokens(request)

    def _charge(self, running: Iterable[Scheduled]) -> set[Scheduled]:
        """Charge new output, once per token; returns the requests that have some."""
        grown: dict[int, list[Scheduled]] = {}  # by tokens due: one, but for speculative decoding
        now_s = self._clock()
        for scheduled in running:
            new_tokens = len(scheduled.engine.output_ids) - scheduled.output_tokens
            if new_tokens > 0:
                if scheduled.output_tokens:
                    scheduled.token_s = now_s
                else:
                    scheduled.first_token(now_s)
                scheduled.output_tokens += new_tokens
                due_tokens = 0 if scheduled.bypassed else scheduled.due_tokens(new_tokens)
                grown.setdefault(due_tokens, []).append(scheduled)
        for due_tokens, group in grown.items():
            if due_tokens > 0:  # else it was paid elsewhere (R11)
                self.policy.progress_all(group, due_tokens)
        return {scheduled for group in grown.values() for scheduled in group}

    def _begin_decoding(self, grown: Iterable[Scheduled]) -> None:
        for scheduled in grown:
            if not scheduled.decodes:
                scheduled.decodes = True
                self._shares.decoding(scheduled)

    def _count_unknown(self, batch: Iterable[EngineRequest]) -> None:
        """Count those of a batch that never came through the queue. With overlap some have left since the batch began."""
        for request in batch:
            is_known = request in self._running or request in self._waiting
            if not (is_known or request in self._unknown or is_probe(request)):
                self._unknown.add(request)
                if not request.finished():
                    logger.error(
                        "evenkeel: request %s was computed although the policy does not know it",
                        request.rid,
                    )
                    self.bypassed()

    def _client_of(self, request: EngineRequest) -> str | None:
        scheduled = self._running.get(request) or self._waiting.get(request)
        return None if scheduled is None else scheduled.client
