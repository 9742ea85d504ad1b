"""A replica policy in charge of SGLang's waiting queue: one per scheduler process.

It keeps the policy's view of waiting and running requests equal to the engine's (`books`), lets the policy's pass decide which
request the engine tries next, and reports the result of each try to the policy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Final

from evenkeel_fairshare.replica.contract import AdmissionResult, Request

from evenkeel_plugin.books import Books
from evenkeel_plugin.queue_walk import WaitingQueue
from evenkeel_plugin.request import EngineRequest, Scheduled

logger = logging.getLogger(__name__)


NOTHING: Final[Mapping[EngineRequest, int]] = MappingProxyType({})

Pass = Generator[Request, AdmissionResult, None]
"""A pass of the policy."""


class Scheduling(Books):
    """The policy's side of one scheduler. Called by one thread; `snapshot` by any."""

    _stalled_s: float | None = None
    """How long no pass proposed a request, if that was too long: the next pass rebuilds the books."""
    _decoded = 0
    """Requests with new output since the last pass, those of each step counted."""
    _answer: AdmissionResult | None = None
    _proposed: EngineRequest | None = None
    _pass: Generator[EngineRequest, None, None] | None = None
    _queue: WaitingQueue | None = None

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
                self._stalled_s = None
            if self._matching is not None:
                matches, self._decoded = self._matching.refresh(decoded=self._decoded), 0
                for request, matched_tokens in matches.items():
                    scheduled = self._waiting[request]
                    scheduled.matched_tokens = matched_tokens
                    self.policy.rematched(scheduled)
        # Requests that the policy does not know by now are probes.
        is_known = len(queue) == len(self._waiting)
        probes = [] if is_known else [request for request in queue if request not in self._waiting]
        self._pass = self._proposals(probes, batch, chunk)
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
        held = len(batch) + (chunk is not None)
        if held < len(self._running) or len(queue) < len(self._waiting):
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
            for scheduled in [one for one in running if one.engine.finished()]:
                self._leave(scheduled)
            if is_prefill and self._matching is not None:
                for scheduled in running:
                    # Only the last chunk of an input makes a token.
                    self._matching.computed(scheduled.engine, prefilled=scheduled in grown)

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

    def _proposals(
        self,
        probes: Sequence[EngineRequest],
        batch: Collection[EngineRequest],
        continued: EngineRequest | None,
    ) -> Generator[EngineRequest, None, None]:
        """The requests that the engine tries, in order. `continued`: a prompt in chunks that goes on in this pass."""
        yield from probes
        admitted: list[Request] = []
        chunk = self.chunk_waits
        self._shares.turns.begin(chunk=None if chunk is None else self._running.get(chunk))
        proposed = yield from self._one_pass(admitted)
        if self._shares.turns.must_repeat(admitted):
            proposed |= yield from self._one_pass(admitted)
        if not (proposed or continued or chunk) and self._waiting:
            self._stalled_s = self._stalls.passed(self._clock(), idle=not batch)

    def _one_pass(self, admitted: list[Request]) -> Generator[EngineRequest, None, bool]:
        """One pass of the policy; adds requests that the engine took to `admitted`. Returns whether it proposed one."""
        with self._lock:
            admissions = self.policy.admissions(self._clock())
            wanted = self._next_try(admissions, next(admissions, None))
        if wanted is None:
            return False
        if self._stalls.began_s is not None:
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
