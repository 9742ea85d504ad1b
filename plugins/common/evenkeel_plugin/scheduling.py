"""A replica policy in charge of SGLang's waiting queue: one per scheduler process.

It keeps the policy's view of waiting and running requests equal to the engine's, lets the policy's pass decide which request
the engine tries next, and reports the result of each try to the policy.

There are no hooks for arrivals, aborts and retractions. SGLang has a dozen places that touch its queue and its batch, different
ones in every version (docs/design/0011). So before every pass both are compared with the policy's view, which costs less than
sorting the queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Generator, Iterable, Mapping, Sequence
from time import monotonic
from types import CodeType, MappingProxyType
from typing import Final
from weakref import WeakSet

from evenkeel_contract.reportbook import Accounts
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    ClientDeficits,
    ReplicaPolicy,
    Request,
)
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.shares import Shares

from evenkeel_plugin.matching import AdapterLoads, Matching
from evenkeel_plugin.queue_walk import WaitingQueue
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


NOTHING: Final[Mapping[EngineRequest, int]] = MappingProxyType({})

Pass = Generator[Request, AdmissionResult, None]
"""A pass of the policy."""


class Scheduling:
    """The policy's side of one scheduler. Called by one thread; `snapshot` by any."""

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
        self.stalled: Callable[[], None] = lambda: None
        """Callback for each time that the books were rebuilt, since no pass proposed a request for long."""
        self._stalls = Stalls()
        self._stalled_s: float | None = None
        """How long no pass proposed a request, if that was too long: the next pass rebuilds the books."""
        self._unknown: WeakSet[EngineRequest] = WeakSet()
        """Requests that were computed although the policy does not know them."""
        self.reserved_ratio: Callable[[], float] = lambda: 1.0
        """The part of the possible output that the engine reserves for running requests."""
        self.chunk_waits: EngineRequest | None = None
        """The prompt in chunks that waits in this pass."""
        self.in_flight: Callable[[], Container[EngineRequest]] = tuple
        """The requests of all batches of the engine. Asked only for a running request that its batch lacks."""
        self._clock = clock
        self._waiting: dict[EngineRequest, Scheduled] = {}
        self._waiting_tokens = 0
        """Context tokens of the waiting requests."""
        self._running: dict[EngineRequest, Scheduled] = {}
        self._decoded = 0
        """Requests with new output since the last pass, those of each step counted."""
        self._answer: AdmissionResult | None = None
        self._proposed: EngineRequest | None = None
        self._pass: Generator[EngineRequest, None, None] | None = None
        self._queue: WaitingQueue | None = None
        self._lock = threading.Lock()

    def begin_pass(
        self,
        queue: Sequence[EngineRequest],
        batch: Collection[EngineRequest],
        chunk: EngineRequest | None = None,
        *,
        walker: CodeType | None = None,
    ) -> WaitingQueue:
        """Compare what the engine holds with the policy's view, and open a pass over its queue, for the loop of `walker`.

        `batch`: the requests that run; `chunk`: the prompt in chunks that SGLang continues.
        """
        self.end_pass()
        self._adapters.begin_pass()
        with self._lock:
            self._reconcile(queue, batch, chunk)
            if self._stalled_s is not None:
                self._rebuild(self._stalled_s)
            if self._matching is not None:
                matches, self._decoded = self._matching.refresh(decoded=self._decoded), 0
                for request, matched_tokens in matches.items():
                    scheduled = self._waiting[request]
                    scheduled.matched_tokens = matched_tokens
                    self.policy.rematched(scheduled)
        # Requests that the policy does not know by now are probes.
        is_known = len(queue) == len(self._waiting)
        probes = [] if is_known else [request for request in queue if request not in self._waiting]
        idle = not batch and chunk is None
        self._pass = self._proposals(probes, idle=idle)
        self._queue = WaitingQueue(queue, self._pass, walker)
        return self._queue

    def end_pass(self) -> None:
        """The engine tries no more requests; the result of its last try still counts."""
        if self._pass is not None and self._queue is not None:
            self._pass.close()
            self._shares.end_pass()
            self._queue.disarm()
            self._pass = self._queue = self._proposed = None

    def waiting_tokens(self, queue: Sequence[EngineRequest]) -> int | None:
        """Input and output tokens so far of all requests in the engine's queue; None: not known. Call it after the
        walk of a pass, which it ends."""
        if self._pass is None:
            return None
        self.end_pass()
        return self._waiting_tokens if len(queue) == len(self._waiting) else None

    def look(
        self,
        queue: Sequence[EngineRequest],
        batch: Collection[EngineRequest],
        chunk: EngineRequest | None = None,
    ) -> None:
        """Compare what the engine holds between passes. No pass follows where all waiting requests are aborted or the engine is
        paused, and reports would still show them."""
        held = len(batch) if chunk is None else len(batch) + 1
        if len(queue) < len(self._waiting) or held < len(self._running):
            with self._lock:
                self._reconcile(queue, batch, chunk)

    def tried(self, request: EngineRequest, *, admitted: bool) -> None:
        """Note the result of the last proposal."""
        scheduled = self._waiting.get(request)
        if scheduled is None:
            return  # a probe
        if request is not self._proposed:
            if admitted:
                self._bypass(scheduled)
            return
        self._answer = AdmissionResult.ADMITTED if admitted else AdmissionResult.NO_ROOM
        if admitted:
            self._measure(scheduled)

    def postponed(self, request: EngineRequest, reason: AdmissionResult) -> None:
        """The last proposal cannot enter beside the prompt in chunks that waits."""
        if request is self._proposed:
            self._answer = reason

    def lacks(self, request: EngineRequest, missing_tokens: int) -> None:
        """The last proposal found no room: the free memory is too small by `missing_tokens`."""
        scheduled = self._waiting.get(request)
        if scheduled is not None:
            self._shares.lacks(scheduled, missing_tokens)

    def wants_pass(self) -> bool:
        """Asked while memory is full: whether a pass has to follow for clients below their shares of it (R16)."""
        return bool(self._waiting) and self._shares.wants_pass(self._clock())

    def giving(self) -> Collection[EngineRequest]:
        """Running requests that the engine has to retract now (R16)."""
        for one in self._shares.given_back():
            assert isinstance(one, Scheduled)
            self._giving[one.engine] = None
        return self._giving

    def gave(self, remaining: Collection[EngineRequest]) -> None:
        """The engine retracted those of `giving` that are not among the `remaining` requests."""
        self._given |= {one: None for one in self._giving if one not in remaining}
        self._giving.clear()

    def is_above_share(self, request: EngineRequest) -> bool:
        """Whether the client of a running request holds more than its share of the memory."""
        scheduled = self._running.get(request)
        return scheduled is not None and self._shares.is_above_share(scheduled)

    def must_wait(self, request: EngineRequest) -> bool:
        """Whether the next chunk of a prompt has to wait for decode steps (R13)."""
        scheduled = self._running.get(request)
        return scheduled is not None and self._shares.must_wait(scheduled)

    def should_wait(
        self,
        request: EngineRequest,
        queue: Sequence[EngineRequest],
        batch: Collection[EngineRequest],
    ) -> bool:
        """Whether the next chunk of a prompt has to wait, or requests that wait in the queue go before it."""
        with self._lock:
            self._reconcile(queue, batch, request)
        scheduled = self._running.get(request)
        return scheduled is not None and self._shares.should_wait(scheduled)

    def processed(
        self,
        batch: Collection[EngineRequest],
        *,
        is_prefill: bool,
        seconds: float = 0.0,
        computed: Mapping[EngineRequest, int] = NOTHING,
    ) -> None:
        """A forward pass over `batch` ended after `seconds`: charge time and new output, remove finished requests.

        `computed`: input tokens that it computed of each request. Without them a prompt counts with all its tokens.
        """
        with self._lock:
            running = [scheduled for request in batch if (scheduled := self._running.get(request))]
            if len(running) < len(batch):
                self._count_unknown(batch)
            self._account_time(running, seconds, computed)
            grown = self._charge(running)
            has_decoded = not is_prefill or 0 < len(computed) < len(running)
            if self._shares.memory is not None and has_decoded:
                self._shares.memory.stepped(1)
            self._begin_decoding(grown)
            self._decoded += len(grown)
            for scheduled in running:
                request = scheduled.engine
                if request.finished():
                    self._leave(scheduled)
                elif is_prefill and self._matching is not None:
                    # Only the last chunk of an input makes a token.
                    self._matching.computed(request, prefilled=scheduled in grown)

    def snapshot(self) -> tuple[Mapping[str, ClientReport], Mapping[str, ClientDeficits], float]:
        """What every client was served, its deficits, and Q^u in force. For reports; any thread."""
        with self._lock:
            for scheduled in self._running.values():
                self._accounts.settle(scheduled)
            return self._accounts.copy(), self.policy.clients(), self.policy.quantum

    def _measure(self, scheduled: Scheduled) -> None:
        """What an admitted request has to compute."""
        request = scheduled.engine
        scheduled.matched_tokens = prefix_tokens(request)
        # The engine always computes the last token, for its output.
        scheduled.extend_tokens = max(1, context_tokens(request) - scheduled.matched_tokens)
        scheduled.load_tokens = self._adapters.tokens(request)

    def _bypass(self, scheduled: Scheduled) -> None:
        """The engine admitted a request that the policy did not propose: it is counted, and the pass ends."""
        self.end_pass()  # outside the lock, which the end of the pass takes
        logger.error(
            "evenkeel: request %s entered the batch unproposed, so it is not charged", scheduled.id
        )
        self.bypassed()
        with self._lock:
            self._measure(scheduled)
            scheduled.bypassed = True
            self.policy.leave(scheduled, self._clock())
            self._enter(scheduled)

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

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._running)

    def _account_time(
        self, running: Sequence[Scheduled], seconds: float, computed: Mapping[EngineRequest, int]
    ) -> None:
        if self._shares.time is None or not running:
            return
        prefilled: dict[Request, int] = {
            one: computed.get(one.engine, one.extend_tokens) for one in running if not one.decodes
        }
        self._shares.time.elapsed(
            seconds, prefilled=prefilled, decoded=len(prefilled) < len(running)
        )

    def _begin_decoding(self, grown: Iterable[Scheduled]) -> None:
        for scheduled in grown:
            if not scheduled.decodes:
                scheduled.decodes = True
                self._shares.decoding(scheduled)

    def _proposals(
        self, probes: Sequence[EngineRequest], *, idle: bool
    ) -> Generator[EngineRequest, None, None]:
        """The requests that the engine tries, in order. `idle`: nothing runs."""
        yield from probes
        admitted: list[Request] = []
        chunk = self.chunk_waits
        self._shares.turns.begin(chunk=None if chunk is None else self._running.get(chunk))
        proposed = yield from self._one_pass(admitted)
        if self._shares.turns.must_repeat(admitted):
            proposed |= yield from self._one_pass(admitted)
        if not proposed and chunk is None and self._waiting:
            self._stalled_s = self._stalls.passed(self._clock(), idle=idle)

    def _one_pass(self, admitted: list[Request]) -> Generator[EngineRequest, None, bool]:
        """One pass of the policy; adds requests that the engine took to `admitted`. Returns whether it proposed one."""
        with self._lock:
            admissions = self.policy.admissions(self._clock())
            wanted = self._next_try(admissions, next(admissions, None))
        if wanted is None:
            return False
        self._stalls.over()
        try:
            while wanted is not None:
                self._answer, self._proposed = None, wanted.engine
                yield wanted.engine
                if self._answer is AdmissionResult.ADMITTED:
                    admitted.append(wanted)
                with self._lock:
                    wanted = self._next_try(admissions, self._settle(admissions, wanted))
        finally:
            # The engine ended the pass; if the last request went in, charge its input.
            if wanted is not None and self._answer is AdmissionResult.ADMITTED:
                with self._lock:
                    self._settle(admissions, wanted)
            admissions.close()
        return True

    def _settle(self, admissions: Pass, tried: Scheduled) -> Request | None:
        """Report the result of a try to the policy; returns its next proposal."""
        # No answer: the engine skipped it for a reason of its own (no slot for its adapter).
        outcome = self._answer or AdmissionResult.NO_SLOT
        self._answer = self._proposed = None
        if outcome is AdmissionResult.ADMITTED:
            self._enter(tried)
        try:
            return admissions.send(outcome)
        except StopIteration:
            return None

    def _next_try(self, admissions: Pass, proposed: Request | None) -> Scheduled | None:
        """The first request, from `proposed` on, that waits neither for a turn of its client nor for another request."""
        shares, matching = self._shares, self._matching
        chunk = None if self.chunk_waits is None else self._running.get(self.chunk_waits)
        try:
            while proposed is not None:
                refusal = shares.turn_of_others(proposed, chunk)
                if refusal is not None:
                    proposed = admissions.send(refusal)
                    continue
                assert isinstance(proposed, Scheduled)
                if matching is not None and matching.is_being_computed(
                    proposed.engine, proposed.matched_tokens
                ):
                    proposed = admissions.send(AdmissionResult.LATER)
                else:
                    return proposed
        except StopIteration:
            pass
        return None

    def _client_of(self, request: EngineRequest) -> str | None:
        scheduled = self._running.get(request) or self._waiting.get(request)
        return None if scheduled is None else scheduled.client

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
        """Requests of `gone` that the engine does not hold any more leave. SGLang finishes few of those that it aborts."""
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
        self._stalled_s = None
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
            scheduled = scheduled_of(request, now_s, refused=self.refused)
            self._shares.opened(scheduled)
            self.policy.arrive(scheduled, now_s)
        self._waiting[request] = scheduled
        scheduled.context_tokens = context_tokens(request)
        self._waiting_tokens += scheduled.context_tokens
        if self._matching is not None:
            self._matching.add(request)

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
