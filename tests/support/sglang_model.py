"""SGLang's scheduler as far as it moves, drops, retracts, pauses and finishes requests, with the plug-in's calls at its seams.

It has no model and no cache tree. Its functions follow `sglang/srt/managers/scheduler.py` of 0.5.23, with overlap: the result of a
batch is processed after the next one was chosen. docs/design/books has the table of these ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_plugin.request import EngineRequest, context_tokens, is_probe
from evenkeel_plugin.scheduling import Scheduling

POOL_TOKENS, SLOTS, CHUNK_TOKENS, QUEUED = 900, 8, 96, 40
QUANTUM = 150.0


@dataclass
class Sampling:
    """The parameters that estimates read."""

    max_new_tokens: int
    ignore_eos: bool = False


@dataclass(eq=False)
class Req:
    """The attributes of SGLang's `Req` that the plug-in reads, and `to_finish`, by which a running request is aborted."""

    rid: str
    routing_key: str | None
    origin_input_ids: list[int]
    sampling_params: Sampling
    output_ids: list[int] = field(default_factory=list)
    extra_key: str | None = None
    num_matched_prefix_tokens: int = 0
    prefix_len: int = 0
    to_finish: str = ""
    why: str = ""
    held_tokens: int = 0

    def finished(self) -> bool:
        return bool(self.why)

    @property
    def finished_reason(self) -> Req | None:
        return self if self.why else None

    def to_json(self) -> dict[str, str]:
        return {"type": self.why}


@dataclass
class Launched:
    """A forward pass whose result was not processed yet."""

    reqs: list[Req]
    computed: dict[EngineRequest, int]
    chunk: Req | None


class Engine:
    """One scheduler. The events of a test are its methods; `step` is one turn of its loop."""

    def __init__(self, rng: Random, *, overlap: bool, policy: str = "DLPM") -> None:
        self._rng = rng
        self._overlap = overlap
        self.waiting: list[EngineRequest] = []
        self.batch: list[Req] = []
        self.last: Launched | None = None
        self.chunk: Req | None = None
        self.grammar: list[Req] = []
        self.paused = False
        self._full = False
        self._aborts_chunk: Req | None = None
        self._results: list[Launched] = []
        self.now_s = 0.0
        self.sent: list[Req] = []
        self.stalls = self.bypassed = 0
        cost = LinearCost()
        config = ReplicaPolicyConfig(cost=cost, deficits=DeficitRules(quantum=QUANTUM))
        self.scheduling = Scheduling(
            make_policy(policy, config),
            Accounts(cost),
            match=self._match,
            time=EngineTime(isolation=0.5),
            memory=MemoryShares(POOL_TOKENS),
            clock=lambda: self.now_s,
        )
        self.scheduling.in_flight = self._in_flight
        self.scheduling.stalled = self._count_stall
        self.scheduling.bypassed = self._count_bypass

    # Events

    def arrive(
        self, client: str, *, tokens: int, output_tokens: int, grammar: bool = False
    ) -> None:
        number = len(self.sent)
        shared = [hash(client) % 997 + i for i in range(min(tokens, 64))]
        ids = [*shared, *(5000 * number + 2000 + i for i in range(max(0, tokens - 64)))]
        key = f"ek1;ns/{client[0]}/{client};w=1,1"
        request = Req(f"r{number}", key, ids, Sampling(output_tokens))
        self.sent.append(request)
        if grammar:
            self.grammar.append(request)
        else:
            self._queue(request)

    def probe(self) -> None:
        """SGLang drops a health check unless it is idle."""
        if not (self.waiting or self.batch or self.chunk or self.last):
            request = Req(f"HEALTH_CHECK_{len(self.sent)}", None, [1], Sampling(1))
            self.sent.append(request)
            self._queue(request)

    def abort(self, which: Callable[[Req], bool]) -> None:
        """`abort_request`: a waiting request leaves without a reason; a running one gets its reason with its next result."""
        if self.chunk is not None and which(self.chunk):
            self._aborts_chunk = self.chunk
        self.waiting = [one for one in self.waiting if not which(_req(one))]
        for request in self.grammar:
            if which(request):
                request.to_finish = "abort"
        for request in self._in_flight():
            if not request.finished() and which(request):
                request.to_finish = "abort"

    def pause(self, *, retract: bool) -> None:
        self.paused = True
        if not retract:
            return
        while self._results:
            self._process(self._results.pop(0))
        again = [one for one in self.batch if not one.finished()]
        if self.last is not None and self.last.computed:
            again += [one for one in self.last.reqs if not one.finished() and one not in again]
        if self.chunk is not None and not self.chunk.finished() and self.chunk not in again:
            again.append(self.chunk)
        self.last, self.batch, self.chunk, self._full = None, [], None, False
        for request in again:
            self._retract(request)

    def resume(self) -> None:
        self.paused = False

    def update_weights(self) -> None:
        """As trainers do: retract all, flush the cache, go on."""
        self.pause(retract=True)
        self.flush()
        self.resume()

    def flush(self) -> None:
        if not (self.batch or self.chunk or self.last or self._results):
            for request in self.sent:
                assert request.held_tokens == 0 or request.finished() or request.to_finish

    # The loop

    def step(self) -> None:
        """One turn: with overlap the result of the batch before is processed after the next one was chosen."""
        self.now_s += 0.01
        if self.paused:
            self.scheduling.look(self.waiting, self.batch, self.chunk)
            return
        self._abort_chunk()
        self._merge()
        launched = self._prefill() or self._decode()
        if launched is not None:
            self._results.append(launched)
        keep = 1 if self._overlap and launched is not None else 0
        while len(self._results) > keep:
            self._process(self._results.pop(0))
        self.last = launched

    def settle(self) -> None:
        """What the next turn does before its pass."""
        self._abort_chunk()
        if not self.paused:
            self._merge()
        self.scheduling.begin_pass(self.waiting, self.batch, self.chunk)
        self.scheduling.end_pass()

    @property
    def held(self) -> set[EngineRequest]:
        """Requests that run, other than probes."""
        found = {*self.batch, *([self.chunk] if self.chunk else [])}
        return {one for one in found if not one.finished() and not is_probe(one)}

    def _queue(self, request: Req) -> None:
        if len(self.waiting) < QUEUED:  # else it is refused, a retracted one too
            self.waiting.append(request)

    def _retract(self, request: Req) -> None:
        request.held_tokens = 0
        self._queue(request)

    def _in_flight(self) -> set[Req]:
        return {*self.batch, *(self.last.reqs if self.last else [])}

    def _match(self, request: EngineRequest) -> int:
        """Half of the time a part of the prefix that a client's requests share is cached."""
        return self._rng.choice([0, min(48, len(request.origin_input_ids) - 1)])

    def _abort_chunk(self) -> None:
        request, self._aborts_chunk = self._aborts_chunk, None
        if request is None or request.finished():
            return
        if self.chunk is request:
            request.why, request.held_tokens, self.chunk = "abort", 0, None
        else:
            self.abort(lambda one: one is request)

    def _merge(self) -> None:
        """`get_next_batch_to_run`: the last prefill joins the batch, the prompt in chunks stays out, finished requests leave."""
        if self.last is not None and self.last.computed:
            self.batch += [
                one for one in self.last.reqs if one is not self.chunk and one not in self.batch
            ]
            self.last = Launched(self.batch, {}, None)
        before = len(self.batch)
        self.batch = [one for one in self.batch if not one.finished()]
        if len(self.batch) < before or not self.batch:
            self._full = False

    def _prefill(self) -> Launched | None:
        scheduling = self.scheduling
        scheduling.look(self.waiting, self.batch, self.chunk)
        if self._full and scheduling.wants_pass():
            self._full = False
        for request in [one for one in self.grammar if one.to_finish or self._rng.random() < 0.3]:
            self.grammar.remove(request)
            if request.to_finish:  # it runs one prefill of a single token
                request.origin_input_ids = request.origin_input_ids[:1]
            self._queue(request)
        chunk = self.chunk
        if chunk is not None and scheduling.should_wait(chunk, self.waiting, self.batch):
            scheduling.chunk_waits, self.chunk = chunk, None
            try:
                launched = self._pass()
            finally:
                scheduling.chunk_waits, self.chunk = None, chunk
            if launched is not None or (self.batch and scheduling.must_wait(chunk)):
                return launched
        return self._pass()

    def _pass(self) -> Launched | None:
        scheduling = self.scheduling
        if (self._full or not self.waiting) and self.chunk is None:
            return None
        if len(self.batch) >= SLOTS and self.chunk is None:
            self._full = True
            return None
        self.waiting = scheduling.begin_pass(self.waiting, self.batch, self.chunk)
        computed: dict[EngineRequest, int] = {}
        budget = CHUNK_TOKENS - self._continue_chunk(computed)
        for one in self.waiting:
            if budget <= 0:
                break
            request = _req(one)
            if len(self.batch) + len(computed) >= SLOTS:
                self._full = True
                break
            request.prefix_len = self._match(request)
            rest = context_tokens(request) - request.prefix_len
            fits = rest + min(20, request.sampling_params.max_new_tokens) < self._free()
            if fits and rest > budget and (self.chunk is not None or scheduling.chunk_waits):
                break  # one prompt in chunks at a time
            scheduling.tried(request, admitted=fits)
            if not fits:
                scheduling.lacks(request, max(1, rest - self._free()))
                self._full = bool(self.batch or computed)
                break
            request.held_tokens = request.prefix_len
            tokens = min(rest, budget)
            self._compute(request, tokens, computed)
            budget -= tokens
            if tokens < rest:
                self.chunk = request
        scheduling.end_pass()
        self.waiting = [one for one in self.waiting if one not in computed]
        return Launched([_req(one) for one in computed], computed, self.chunk) if computed else None

    def _continue_chunk(self, computed: dict[EngineRequest, int]) -> int:
        """The next chunk of the prompt in chunks; returns its tokens."""
        request = self.chunk
        if request is None:
            return 0
        rest = context_tokens(request) - request.held_tokens
        tokens = min(CHUNK_TOKENS, rest, max(1, self._free()))
        self._compute(request, tokens, computed)
        if tokens == rest:
            self.chunk = None
        return tokens

    def _decode(self) -> Launched | None:
        giving = self.scheduling.giving()
        short = self._free() < len(self.batch)
        if short or (len(self.batch) > 1 and any(one in giving for one in self.batch)):
            order = sorted(self.batch, key=lambda one: (one in giving, self._rng.random()))
            again = []
            while len(order) > 1 and (self._free() < len(order) or order[-1] in giving):
                again.append(order.pop())
                again[-1].held_tokens = 0
            if len(order) == 1 and self._free() < 1:  # aborted, and it never gets a finish reason
                order[0].to_finish, order[0].held_tokens = "abort", 0
                order = []
            self.batch = [one for one in self.batch if one in order]
            if giving:
                self.scheduling.gave(self.batch)
            for request in again:
                self._queue(request)
            self._full = False
        if not self.batch:
            return None
        for request in self.batch:
            request.held_tokens += 1
        return Launched(list(self.batch), {}, None)

    def _process(self, launched: Launched) -> None:
        """`process_batch_result`, around which the plug-in charges."""
        for request in launched.reqs:
            if request.finished() or request in self.waiting or request.held_tokens == 0:
                continue
            if request is not launched.chunk:
                request.output_ids.append(7)
                if len(request.output_ids) >= request.sampling_params.max_new_tokens:
                    request.why = "length"
                elif request.to_finish:
                    request.why = request.to_finish
            if request.finished():
                request.held_tokens = 0
        self.scheduling.processed(
            launched.reqs,
            is_prefill=bool(launched.computed),
            seconds=0.001 + sum(launched.computed.values()) / 10_000,
            computed=launched.computed,
        )

    def _compute(self, request: Req, tokens: int, computed: dict[EngineRequest, int]) -> None:
        request.held_tokens += tokens
        computed[request] = tokens

    def _free(self) -> int:
        running: Iterable[Req] = {
            *self.batch,
            *self._in_flight(),
            *([self.chunk] if self.chunk else []),
        }
        return POOL_TOKENS - sum(one.held_tokens for one in running)

    def _count_stall(self) -> None:
        self.stalls += 1

    def _count_bypass(self) -> None:
        self.bypassed += 1


def _req(request: EngineRequest) -> Req:
    assert isinstance(request, Req)
    return request
