"""SGLang's scheduler around the plug-in's real hooks, without an engine: its loop, and how it cuts prompts into chunks and counts memory.

It does what `Scheduler._get_new_batch_prefill_raw` and `PrefillAdder` of 0.5.23 do for pages of one token, outputs of a known
length, no adapters, and prompts that share no prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

from evenkeel_plugin.scheduling import Scheduling
from evenkeel_sglang import hooks

PAGE_TOKENS = 1

AddReqResult = Enum("AddReqResult", ["CONTINUE", "NO_TOKEN", "OTHER"])


@dataclass
class Sampling:
    max_new_tokens: int
    ignore_eos: bool = True


@dataclass(eq=False)
class Req:
    """SGLang's `Req`."""

    rid: str
    routing_key: str
    origin_input_ids: Sequence[int]
    sampling_params: Sampling
    output_ids: list[int] = field(default_factory=list)
    extra_key: str | None = None
    num_matched_prefix_tokens: int = 0
    prefix_len: int = 0
    """Of a prompt in chunks: what is computed."""
    extend_len: int = 0
    """What the next forward pass computes."""

    def finished(self) -> bool:
        return len(self.output_ids) >= self.sampling_params.max_new_tokens

    @property
    def finished_reason(self) -> Req | None:
        return self if self.finished() else None

    def to_json(self) -> dict[str, str]:
        return {"type": "length"}

    @property
    def rest_tokens(self) -> int:
        """Input that is not computed."""
        return len(self.origin_input_ids) + len(self.output_ids) - self.prefix_len

    @property
    def possible_tokens(self) -> int:
        """Output yet to come."""
        return self.sampling_params.max_new_tokens - len(self.output_ids)


@dataclass
class Batch:
    """The running batch."""

    reqs: list[Req] = field(default_factory=list)
    batch_is_full: bool = False

    def is_empty(self) -> bool:
        return not self.reqs


@dataclass(frozen=True)
class Plan:
    batch_to_run: list[Req] | None


class Adder:
    """`PrefillAdder`: the budgets of one pass."""

    def __init__(self, running: Batch, *, free_tokens: int, chunk_tokens: int) -> None:
        self.page_size = PAGE_TOKENS
        self.rem_total_tokens = free_tokens - sum(one.possible_tokens for one in running.reqs)
        self.rem_chunk_tokens = chunk_tokens
        self.can_run_list: list[Req] = []
        self.new_chunked_req: Req | None = None

    def budget_state(self) -> AddReqResult:
        if self.rem_total_tokens <= 0:
            return AddReqResult.NO_TOKEN
        return AddReqResult.OTHER if self.rem_chunk_tokens <= 0 else AddReqResult.CONTINUE

    def add_chunked_req(self, req: Req) -> Req | None:
        """The next chunk; None: it was the last one."""
        is_cut = self._add(req)
        return req if is_cut else None

    def add_one_req(self, req: Req) -> AddReqResult:
        if req.rest_tokens + req.possible_tokens + PAGE_TOKENS >= self.rem_total_tokens:
            return AddReqResult.NO_TOKEN
        if self._add(req):
            self.new_chunked_req = req
        return self.budget_state()

    def _add(self, req: Req) -> bool:
        """Whether only a part of it fits."""
        req.extend_len = min(req.rest_tokens, self.rem_chunk_tokens)
        is_cut = req.extend_len < req.rest_tokens
        self.can_run_list.append(req)
        self.rem_chunk_tokens -= req.extend_len
        self.rem_total_tokens -= req.extend_len + PAGE_TOKENS
        # Within the pass even what a retracted request has produced counts again.
        self.rem_total_tokens -= 0 if is_cut else req.sampling_params.max_new_tokens
        return is_cut


def enough(batch: Batch, selected: Sequence[int] | None) -> bool:
    """There is always memory for the next tokens: all outputs are reserved."""
    return True


class Scheduler:
    """One engine: `step` is one turn of its loop. The hooks act on `hooks._scheduling`, which must be `scheduling`."""

    enable_lora = is_hybrid_swa = False
    page_size = PAGE_TOKENS

    def __init__(
        self,
        scheduling: Scheduling,
        *,
        pool_tokens: int,
        chunk_tokens: int,
        most_running: int,
        no_room: Callable[[str], None],
    ) -> None:
        """`no_room` is called with each request that finds no memory: SGLang ends the pass then, and the policy is not told."""
        self._scheduling = scheduling
        self._pool_tokens, self._chunk_tokens = pool_tokens, chunk_tokens
        self.chunked_prefill_size = chunk_tokens
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=self._free_tokens)
        self.tree_cache = SimpleNamespace(supports_mamba=lambda: False, evictable_size=lambda: 0)
        self._most_running = most_running
        self._no_room = no_room
        self.truncation_align_size: int | None = None
        self.waiting_queue: list[Req] = []
        self.chunked_req: Req | None = None
        self.evenkeel_scheduler = self  # of `SchedulePolicy`, which is a part of it here
        self._running = Batch()

    def step(self, *, prefill_s: Callable[[int], float], decode_s: Callable[[int], float]) -> float:
        """A prefill, or a decode step. Its seconds, by tokens and by requests; 0: there is nothing to do."""
        plan = hooks.new_prefill(Scheduler.get_new_batch_prefill, self, self._running)
        batch = plan.batch_to_run
        if batch is not None:
            return self._prefill(batch, prefill_s(sum(one.extend_len for one in batch)))
        if self._running.is_empty():
            return 0.0
        self._retract()
        if self._running.is_empty():
            return 0.0
        seconds = decode_s(len(self._running.reqs))
        self._produce(self._running.reqs, is_prefill=False, seconds=seconds)
        left = [one for one in self._running.reqs if not one.finished()]
        if len(left) < len(self._running.reqs):
            self._running = Batch(left)
        return seconds

    def _retract(self) -> None:
        """`ScheduleBatch.retract_decode`: the last of the order first, until memory suffices."""
        if hooks.decode_memory(enough, self._running):
            return
        reqs = self._running.reqs
        order = hooks.retraction_order(lambda reqs: list(range(len(reqs))), reqs)
        while not hooks.decode_memory(enough, self._running, order):
            req = reqs[order.pop()]
            req.prefix_len = 0
            self.waiting_queue.append(req)
        self._running = Batch([reqs[index] for index in sorted(order)])
        hooks.reserve_all(lambda reqs: 1.0, self._running.reqs)

    def _prefill(self, batch: list[Req], seconds: float) -> float:
        for one in batch:
            one.prefix_len += one.extend_len
        self._produce(batch, is_prefill=True, seconds=seconds)
        left = [one for one in batch if one is not self.chunked_req and not one.finished()]
        if self._running.is_empty() or len(left) < len(batch):
            self._running.batch_is_full = False
        self._running.reqs += left
        return seconds

    def _produce(self, batch: list[Req], *, is_prefill: bool, seconds: float) -> None:
        """The forward pass over `batch` ended: a token each, but for a prompt of which chunks are left."""
        for one in batch:
            if one is not self.chunked_req:
                one.output_ids.append(7)
        computed = {one: one.extend_len for one in batch} if is_prefill else {}
        self._scheduling.processed(batch, is_prefill=is_prefill, seconds=seconds, computed=computed)

    def get_new_batch_prefill(self, running: Batch) -> Plan:
        if running.is_empty():
            running.batch_is_full = False
        is_shut = running.batch_is_full or not self.waiting_queue
        if is_shut and self.chunked_req is None:
            return Plan(None)
        if self._free_places() <= 0 and self.chunked_req is None:
            running.batch_is_full = True
            return Plan(None)
        hooks.calc_priority(lambda *_: None, self, self.waiting_queue, running)
        adder = Adder(running, free_tokens=self._free_tokens(), chunk_tokens=self._chunk_tokens)
        if self.chunked_req is not None:
            self.chunked_req = hooks.reserve_one(Adder.add_chunked_req, adder, self.chunked_req)
        self._walk(adder, running)
        if not adder.can_run_list:
            return Plan(None)
        self.waiting_queue = [one for one in self.waiting_queue if one not in adder.can_run_list]
        if adder.new_chunked_req is not None:
            assert self.chunked_req is None
            self.chunked_req = adder.new_chunked_req
        return Plan(adder.can_run_list)

    def _walk(self, adder: Adder, running: Batch) -> None:
        for req in self.waiting_queue:
            if adder.budget_state() is AddReqResult.OTHER:
                break
            begun = sum(one.prefix_len > 0 for one in adder.can_run_list)
            if len(adder.can_run_list) - begun >= self._free_places():
                running.batch_is_full = True
            if running.batch_is_full:
                break
            found = hooks.add_request(Adder.add_one_req, adder, req)
            if found is not AddReqResult.CONTINUE:
                if found is AddReqResult.NO_TOKEN:
                    running.batch_is_full = bool(adder.can_run_list) or not running.is_empty()
                    if req not in adder.can_run_list:
                        self._no_room(req.rid)
                break

    def _free_places(self) -> int:
        return self._most_running - len(self._running.reqs) - len(self._begun())

    def _free_tokens(self) -> int:
        used_tokens = sum(one.prefix_len for one in self._begun())
        for one in self._running.reqs:  # the last token of each is yet to be fed back
            used_tokens += len(one.origin_input_ids) + len(one.output_ids) - 1
        return self._pool_tokens - used_tokens

    def _begun(self) -> list[Req]:
        """The prompt in chunks, also while it waits."""
        chunk = self.chunked_req or self._scheduling.chunk_waits
        return [chunk] if isinstance(chunk, Req) else []
