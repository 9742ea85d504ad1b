"""The engine: continuous batching, chunked prefill and decode over a KV pool, as SGLang's scheduler loop.

    submit ─▶ policy's queue ─▶ start: pass of admissions ─▶ prefill | decode steps ─▶ finish ─▶ tokens, ends

The engine owns batch, cache and memory; the policy owns the queue and the order (`replica.contract`). A driver owns the time: it
calls `start`, waits or jumps to the time it returns, and calls `finish`; `submit` and `abort` may come in between, in the order of
their times. `start` plans as many decode steps as can pass before anything happens by itself. `submit` and `abort` apply the steps
that are over and cut the plan where needed, so a driver that jumps sees the same as one that goes step by step (`until_s=now_s`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import inf
from sys import maxsize

from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, ReplicaPolicy, Request
from evenkeel_fairshare.replica.memory_shares import LOOK_S

from evenkeel_simulator.engine.admission import SGLangAdmission
from evenkeel_simulator.engine.batch import Batch, ChargesByPass
from evenkeel_simulator.engine.cache import CacheObserver
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.engine_shares import EngineShares
from evenkeel_simulator.engine.iteration import MS, Chunks, Iteration, Speed, chunks_of
from evenkeel_simulator.engine.memory import Memory
from evenkeel_simulator.engine.prefills import Prefills
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.engine.request import EngineRequest, RequestError, State
from evenkeel_simulator.engine.room import Room
from evenkeel_simulator.engine.step import Loads, Step, loads_of
from evenkeel_simulator.engine.token_times import TokenTimes


class Engine:
    """One replica. Deterministic: the same calls give the same steps."""

    def __init__(
        self,
        config: EngineConfig,
        policy: ReplicaPolicy,
        profile: CostProfile,
        *,
        cost: Cost | None = None,
        observer: CacheObserver | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.kv_tokens = config.kv_tokens or profile.kv_tokens
        self._accounts = Accounts(cost or LinearCost())
        self.memory = Memory(self.kv_tokens, prefix_cache=config.prefix_cache, observer=observer)
        self._speed = Speed(profile)
        self._load_ms = profile.first_prefill_ms  # and of adapters admitted since the last prefill
        self._follows = policy.matches_prefix and config.prefix_cache
        self._may_preempt = type(policy).preempt is not ReplicaPolicy.preempt
        self._by_pass = policy if isinstance(policy, ChargesByPass) else None
        self._requests: dict[str, EngineRequest] = {}
        divides = policy.divides_time
        self._shares = EngineShares(
            isolation=config.isolation if divides else None,
            pool_tokens=self.kv_tokens if divides and config.shares_memory else None,
        )
        self.token_times = TokenTimes() if config.token_times else None
        self._batch = Batch(self.token_times)
        self._prefills = Prefills(self.memory, shared=config.share_in_batch and self._follows)
        self._room = Room(
            config,
            self.memory,
            prefills=self._prefills,
            batch=self._batch,
            follows=self._follows,
        )
        self.adapters = self._room.adapters
        self._steps_since_prefill = 0
        self._iteration: Iteration | None = None

    # What a driver sees

    @property
    def busy_until_s(self) -> float | None:
        """End of the current iteration; None between iterations. `submit` and `abort` may lower it."""
        return None if self._iteration is None else self._iteration.end_s

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    @property
    def accounts(self) -> Accounts:
        """Service of every client, up to the last applied step."""
        for request in self._batch:
            self._batch.set_token_time(request)
            self._accounts.settle(request)
        return self._accounts

    def accounts_at(self, now_s: float) -> Accounts:
        """Service of every client until now, for a driver that jumps."""
        self._catch_up(now_s)
        return self.accounts

    def running(self) -> Iterable[EngineRequest]:
        """Every request in the batch, including those in prefill."""
        yield from self._prefills.requests
        yield from self._batch

    def waiting(self) -> Iterable[EngineRequest]:
        """Every request that waits for its first admission, oldest first."""
        for request in self._requests.values():
            if request.state is State.WAITING and request.admitted_s is None:
                yield request

    def loads(self) -> Loads:
        return loads_of(self.memory, running=self._room.running, waiting=len(self.policy))

    # What a driver does

    def submit(self, request: EngineRequest, now_s: float) -> Arrival:
        """Queue a request; raises `RequestError` if it could never be served or its id is taken."""
        self._room.check(request)
        if request.id in self._requests:
            raise RequestError(f"id {request.id!r} is taken by a request that has not ended")
        self._catch_up(now_s)
        if self._follows:
            self.memory.cache.follow(request)
        if self.policy.arrive(request, now_s) is Arrival.REJECTED:
            self.memory.cache.unfollow(request)
            request.state, request.finished_s = State.REJECTED, now_s
            return Arrival.REJECTED
        request.state = State.WAITING
        self._requests[request.id] = request
        self._shares.opened(request)
        # A run of decode steps ends early, so that the next pass sees the request.
        is_seen = not self._room.is_closed or self._shares.memory is not None
        if self._iteration is not None and (self._speed.waiting_s or is_seen):
            self._iteration.truncate()
        return Arrival.QUEUED

    def abort(self, request_id: str, now_s: float) -> EngineRequest | None:
        """End a request in any state; None if there is none with this id."""
        request = self._requests.get(request_id)
        if request is not None:
            self._catch_up(now_s)
            self._end(request, now_s, State.ABORTED)
            if self._iteration is not None:
                self._iteration.truncate()
        return request

    def step(self, now_s: float, until_s: float | None = None) -> Step | None:
        """`start` and `finish` in one; a single decode step unless `until_s` lies ahead. None: no work."""
        if self.start(now_s, now_s if until_s is None else until_s) is None:
            return None
        return self.finish()

    def start(
        self, now_s: float, until_s: float = inf, *, most_steps: int = maxsize
    ) -> float | None:
        """Begin an iteration. Returns its end; None if there is nothing to do.

        No decode step after the first starts at or after `until_s`, and there are at most `most_steps` (at least 1).
        """
        assert self._iteration is None, "an iteration is under way"
        # Preempt, admit; then prefill what was admitted, or make room and decode.
        retracted = self._preempt(now_s) if self._may_preempt else []
        if self._room.is_full and len(self.policy) and self._shares.wants_pass(now_s):
            self._room.reopen()
        chunks, admitted = self._plan_prefill(now_s)
        if chunks:
            iteration = self._start_prefill(now_s, chunks, retracted)
        elif self._batch:
            retracted += self._give_back(now_s)
            retracted += self._make_room(now_s)
            iteration = self._speed.run(
                now_s,
                batch=len(self._batch.requests),
                kv_tokens=self._batch.kv_tokens,
                steps=min(self._free_steps(), most_steps),
                until_s=min(until_s, self._next_look_s(now_s)),
                waiting=len(self.policy),
            )
            if self._by_pass is not None:
                self._by_pass.decoding(list(self._batch))
        else:
            return None
        iteration.admitted, iteration.retracted = admitted, retracted
        self._iteration = iteration
        return iteration.end_s

    def finish(self) -> Step:
        """Apply the current iteration at its end."""
        iteration = self._iteration
        assert iteration is not None, "no iteration is under way"
        self._iteration = None
        end_s = iteration.end_s
        produced = list(self._batch.requests) if iteration.steps else []
        self._apply(iteration, iteration.steps - iteration.done, first=iteration.done, end_s=end_s)
        prefilled = self._prefill(iteration.chunks, end_s)
        finished = self._batch.pop_ended() if produced else []
        if self._by_pass is not None and produced:
            self._by_pass.forwarded(produced, finished=bool(finished))
        for request in finished:
            self._end(request, end_s, State.FINISHED)
        finished += [request for request in prefilled if request.state is State.FINISHED]
        produced += prefilled
        return Step(
            start_s=iteration.start_s,
            end_s=end_s,
            prefill_tokens=sum([tokens for _, tokens in iteration.chunks]),
            produced=produced,
            tokens_each=iteration.steps or 1,
            finished=finished,
            admitted=iteration.admitted,
            retracted=iteration.retracted,
        )

    # Admission

    def _pass_is_due(self) -> bool:
        waited = self._steps_since_prefill >= self.config.decode_steps_between_passes
        return len(self.policy) > 0 and (waited or not self._batch) and not self._room.is_closed

    def _plan_prefill(self, now_s: float) -> tuple[Chunks, list[EngineRequest]]:
        """(tokens to compute by request, requests admitted)."""
        budget = self.config.prefill_tokens or self.kv_tokens
        chunk = self._prefills.chunk
        if chunk is None:
            admitted = self._admit_fairly(now_s, budget) if self._pass_is_due() else []
            return chunks_of(admitted, budget), admitted
        if self._shares.should_wait(chunk):
            others_decode = len(self._batch) > 0 and self._shares.must_wait(chunk)
            admitted = self._admit_beside(chunk, now_s, budget) if self._pass_is_due() else []
            if admitted or others_decode:
                return chunks_of(admitted, budget), admitted
        left = budget - chunk.pending_tokens
        admitted = self._admit_fairly(now_s, left) if left > 0 and self._pass_is_due() else []
        return chunks_of([chunk, *admitted], budget), admitted

    def _admit_beside(self, chunk: EngineRequest, now_s: float, budget: int) -> list[EngineRequest]:
        """A pass while `chunk` waits. No request that enters may be cut: it would be a second prompt in chunks."""
        self._shares.turns.begin(chunk=chunk)
        admitted = self._admit(now_s, budget, beside=chunk)
        self._shares.end_pass()
        return admitted

    def _admit_fairly(self, now_s: float, budget: int) -> list[EngineRequest]:
        """One pass; where clients with a lag wait, one for them and, if it admits none of them, another for all."""
        self._shares.turns.begin()
        admitted = self._admit(now_s, budget)
        if not self._room.ran_out and self._shares.turns.must_repeat(admitted):
            budget -= sum([request.pending_tokens for request in admitted])
            if budget > 0 and self._pass_is_due():
                admitted += self._admit(now_s, budget)
        self._shares.end_pass()
        return admitted

    def _admit(
        self, now_s: float, budget: int, *, beside: EngineRequest | None = None
    ) -> list[EngineRequest]:
        """One pass of the policy, for at most `budget` tokens; the last one may be cut into chunks, unless `beside` one that waits."""
        admitted: list[EngineRequest] = []
        self._room.begin_pass()
        for seeker in self.memory.cache.take_rematched():
            assert isinstance(seeker, EngineRequest)
            self.policy.rematched(seeker)
        admissions = self.policy.admissions(now_s)
        with suppress(StopIteration):
            request = next(admissions)
            while True:
                assert isinstance(request, EngineRequest)
                outcome = self._try(request, now_s, budget, beside=beside)
                if outcome is AdmissionResult.ADMITTED:
                    admitted.append(request)
                    budget -= request.pending_tokens
                    if budget <= 0 or self._room.is_closed:
                        # The policy charges what it proposed before the pass is closed.
                        admissions.send(outcome)
                        break
                request = admissions.send(outcome)
        admissions.close()
        return admitted

    def _try(
        self, request: EngineRequest, now_s: float, budget: int, *, beside: EngineRequest | None
    ) -> AdmissionResult:
        refusal = self._shares.turn_of_others(request, beside)
        if refusal is not None:
            return refusal
        outcome = self._room.enter(request, now_s, None if beside is None else budget)
        if outcome is AdmissionResult.NO_ROOM:
            self._shares.lacks(request, self._room.missing_tokens)
        if outcome is not AdmissionResult.ADMITTED:
            return outcome
        request.load_tokens = 0
        if self.adapters.enter(request.adapter):
            self._load_ms += self.config.adapter_load_ms
            request.load_tokens = self._speed.load_tokens(self.config.adapter_load_ms)
        self._prefills.add(request)
        self._shares.started(request)
        self._accounts.admitted(request, charged=request.charge_input)
        return outcome

    # Prefill

    def _start_prefill(
        self, now_s: float, chunks: Chunks, retracted: list[EngineRequest]
    ) -> Iteration:
        batch = 0
        if self.config.mixed and self._batch:
            retracted += self._make_room(now_s)
            batch = len(self._batch.requests)
        # This iteration needs memory for its own tokens only; later chunks need theirs later.
        later = self._prefills.pending_tokens - sum([tokens for _, tokens in chunks])
        self.memory.make_free(-later)
        held = self._batch.kv_tokens if batch else 0
        duration_s = self._speed.prefill(chunks, batch=batch, kv_tokens=held) + self._load_ms * MS
        duration_s += self._speed.waiting_s * len(self.policy)
        self._load_ms = 0.0
        return Iteration(now_s, now_s + duration_s, chunks=chunks, steps=1 if batch else 0)

    def _prefill(self, chunks: Chunks, end_s: float) -> list[EngineRequest]:
        """Apply a prefill; the requests that produced their first token since admission."""
        if not chunks:
            return []
        self._steps_since_prefill = 0
        produced = self._prefills.computed(chunks)
        for request in produced:
            self._begin_output(request, end_s)
        finished = [request for request in produced if not request.remaining_tokens]
        if self._by_pass is not None and produced:
            self._by_pass.forwarded(produced, finished=bool(finished))
        for request in finished:
            self._end(request, end_s, State.FINISHED)
        return produced

    def _begin_output(self, request: EngineRequest, end_s: float) -> None:
        request.begin_output(end_s)
        self.memory.settle(request, request.held_tokens)
        self._batch.add(request, end_s)
        self._shares.decoding(request)
        if request.due_tokens(1) > 0:
            self.policy.progress(request, 1)

    # Decode

    def _free_steps(self) -> int:
        """Decode steps that can pass before an end, a lack of memory or a pass of admissions."""
        steps = min(self._batch.steps_to_end(), self.memory.available // len(self._batch.requests))
        if self._may_preempt or self._by_pass is not None or self._prefills.requests:
            return 1  # prefill that has to wait is looked at again after every step
        if len(self.policy) and not self._room.is_closed:
            until_pass = self.config.decode_steps_between_passes - self._steps_since_prefill
            steps = min(steps, max(1, until_pass))
        return max(1, steps)

    def _next_look_s(self, now_s: float) -> float:
        """When the queue is looked at again while the pool is full."""
        is_due = self._shares.memory is not None and len(self.policy) > 0 and self._room.is_full
        return now_s + LOOK_S if is_due else inf

    def _catch_up(self, now_s: float) -> None:
        """Apply the decode steps that have ended, so that the caller sees the current state."""
        iteration = self._iteration
        if iteration is not None and (steps := iteration.advance(now_s)):
            self._apply(iteration, steps, first=iteration.done - steps, end_s=iteration.clock_s)

    def _apply(self, iteration: Iteration, steps: int, *, first: int, end_s: float) -> None:
        """Account the iteration's time, and apply `steps` of its decode steps from the number `first` on."""
        if self.token_times is not None:
            self.token_times.decoded(iteration.times(first, steps), end_s)
        decoded = len(self._batch.requests) > 0
        self._shares.account(iteration, first=first, steps=steps, decoded=decoded)
        if not (steps and decoded):
            return
        self.memory.grow(steps * len(self._batch.requests))
        self._batch.decode(steps, end_s)
        self._batch.charge(self.policy, steps)
        self._steps_since_prefill += steps
        self._room.rule.decoded(steps)

    # Leaving the batch

    def _make_room(self, now_s: float) -> list[EngineRequest]:
        """Retract until every running request can produce a token (SGLang's `retract_decode`)."""
        running = self._batch.requests
        if self.memory.available >= len(running):
            return []
        # One alone always has room; see `EngineRequest.check`.
        least = 0 if self._prefills.requests else 1
        retracted: list[EngineRequest] = []
        for request in self._batch.by_cost_of_retraction(self._shares.is_above_share):
            if len(running) <= least or self.memory.available >= len(running):
                break
            self._retract(request, now_s)
            retracted.append(request)
            # Free the memory of the next step at once if evicting from the cache suffices.
            room = SGLangAdmission.RETRACT_STEPS * len(running)
            self.memory.make_free(min(room, self.memory.available))
        self._room.rule.retracted(running)
        return retracted

    def _preempt(self, now_s: float) -> list[EngineRequest]:
        """Retract the requests that the policy preempts, in its order. The last one goes to the front of the queue."""
        running: dict[Request, EngineRequest] = {request: request for request in self._batch}
        preempted = [running[request] for request in self.policy.preempt(list(running), now_s)]
        for request in preempted:
            self._retract(request, now_s)
        return preempted

    def _give_back(self, now_s: float) -> list[EngineRequest]:
        """Retract requests of clients above their shares of the pool for others below theirs that find no room (R16)."""
        given = [one for one in self._shares.given_back() if one in self._batch.requests]
        retracted: list[EngineRequest] = []
        for request in given[: len(self._batch) - 1]:  # SGLang retracts all but one
            assert isinstance(request, EngineRequest)
            self._retract(request, now_s)
            request.charge_input = False  # what is computed again is paid once
            retracted.append(request)
        return retracted

    def _retract(self, request: EngineRequest, now_s: float) -> None:
        """Return a request to the queue. Its output stays, its KV is dropped and computed again (R11)."""
        self._leave_batch(request, keep=False)
        request.state = State.WAITING
        request.retractions += 1
        request.charge_input = True  # it is computed again here (R11)
        if self._follows:
            self.memory.cache.follow(request)
        self.policy.requeue(request, now_s)

    def _end(self, request: EngineRequest, now_s: float, state: State) -> None:
        if request.state is State.WAITING:
            self.memory.cache.unfollow(request)
        else:
            # After an abort the work stays in the cache, as after an end, if the prompt is complete.
            self._leave_batch(request, keep=request.state is State.RUNNING)
        if state is State.FINISHED:
            self._room.rule.finished(request)
        if state is State.ABORTED and request.admitted_s is not None:
            self._accounts.aborted(request)
        request.state, request.finished_s = state, now_s
        del self._requests[request.id]
        self._shares.closed(request)
        self.policy.leave(request, now_s)

    def _leave_batch(self, request: EngineRequest, *, keep: bool) -> None:
        self._shares.stopped(request)
        self._room.leave(request, keep=keep)
        self._accounts.left(request)
