"""What SGLang calls at each seam. Nothing is decided here: every hook calls `scheduling`.

One scheduler runs in a process, so the hooks share one `Scheduling`. It is None in processes without one (tokenizer,
detokenizer) and under another schedule policy.
"""

from __future__ import annotations

import logging
import os
import sys
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from types import CodeType, FrameType
from typing import Any, TypeVar

from evenkeel_contract.enginesettings import EngineSettings, schedule_policy_flag
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.names import ADAPTER_HEADER, CACHE_SALT_HEADER, CLIENT_KEY_HEADER
from evenkeel_contract.reportbook import ReportBook
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.registry import POLICIES
from evenkeel_plugin.matching import AdapterLoads
from evenkeel_plugin.policy import policy_of
from evenkeel_plugin.reports import ReportServer
from evenkeel_plugin.request import (
    CLIENT_PARAMETER,
    EngineRequest,
    context_tokens,
    prefix_tokens,
    restore,
)
from evenkeel_plugin.scheduling import Scheduling

from evenkeel_sglang import modes, seams
from evenkeel_sglang.chunks import (
    free_tokens,
    missing_tokens,
    refusal_beside,
    reserved_tokens,
    waits,
)
from evenkeel_sglang.engine import Collector, RankClock, StepClock
from evenkeel_sglang.prompts import prompt_facts

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

FLAGS = {schedule_policy_flag(name): name for name in POLICIES}
"""`--schedule-policy` → replica policy."""

pages = HeldPages()
"""The blocks in the cache, by the published KV events."""

_scheduling: Scheduling | None = None
_step_clock = StepClock()
_collector = Collector()
_rank_clock: RankClock | None = None
"""Clock of an engine with several ranks; None with a single rank, which has a clock of its own."""


def add_flags(result: None, parser: ArgumentParser) -> None:
    """After `ServerArgs.add_cli_args`: let `--schedule-policy` take Evenkeel's names."""
    for action in parser._actions:
        if action.dest == "schedule_policy":
            action.choices = [*(action.choices or ()), *FLAGS]
            return
    raise seams.SeamError("there is no flag --schedule-policy")


def read_flags(result: Any, *_: Any) -> None:
    """After `ServerArgs.from_cli_args`, in the parent process: refuse what the policy cannot work with."""
    if result.schedule_policy in FLAGS:
        modes.check(result)


def batch_item(item: Any, batch: Any, i: int) -> None:
    """After `GenerateReqInput.__getitem__`: each prompt of a call of many belongs to the call's client.

    SGLang copies almost every field but the routing key.
    """
    item.routing_key = batch.routing_key


def generate_request(manager: Any, obj: Any, request: Any = None) -> None:
    """Before `TokenizerManager.generate_request`: the client key, the adapter and the salt of the HTTP request.

    SGLang takes the key from the header for completions, chats and transcriptions only, not for responses, scores and rankings. Of
    responses it ignores the adapter too, and of messages the salt of the cache. An input for a pooled answer (embeddings,
    rankings, classes) loses the key when it is tokenized, so the key travels in its parameters too.
    """
    if request is None:
        return
    if obj.routing_key is None:
        obj.routing_key = request.headers.get(CLIENT_KEY_HEADER)
    adapter = request.headers.get(ADAPTER_HEADER)
    if adapter is not None:
        obj.lora_path = adapter
    cache_salt = request.headers.get(CACHE_SALT_HEADER)
    if cache_salt is not None:
        obj.cache_salt = cache_salt
    if hasattr(obj, "is_cross_encoder_request"):  # an `EmbeddingReqInput`
        custom = {"custom_params": {CLIENT_PARAMETER: obj.routing_key}}
        given = obj.sampling_params
        obj.sampling_params = (
            [one | custom for one in given] if isinstance(given, list) else (given or {}) | custom
        )


def init_policy(original: Callable[[Any], None], scheduler: Any) -> None:
    """Around `Scheduler.init_schedule_policy`: put Evenkeel's policy in charge if the flag names one."""
    global _scheduling
    name = FLAGS.get(scheduler.schedule_policy)
    if name is None:
        original(scheduler)
        return
    flag, scheduler.schedule_policy = scheduler.schedule_policy, "fcfs"  # SGLang knows no other
    try:
        original(scheduler)
    finally:
        scheduler.schedule_policy = flag
    settings = EngineSettings.from_environment(os.environ)
    _scheduling = make_scheduling(name, settings, scheduler)
    scheduler.policy.evenkeel_scheduler = scheduler
    modes.check(scheduler.server_args)  # again: not all engines start from a command line
    # Every tensor-parallel rank decides alike; one of them reports.
    if _is_first_rank():
        _announce(name, settings, server_args=scheduler.server_args, scheduling=_scheduling)


def calc_priority(
    original: Callable[..., None],
    policy: Any,
    waiting_queue: list[EngineRequest],
    running_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Around `SchedulePolicy.calc_priority`: open a pass instead of sorting."""
    scheduler = getattr(policy, "evenkeel_scheduler", None)
    if _scheduling is None or scheduler is None:
        original(policy, waiting_queue, running_batch, *args, **kwargs)
    else:
        scheduler.waiting_queue = _scheduling.begin_pass(
            waiting_queue, running_batch.reqs, scheduler.chunked_req, walker=_calling_function()
        )


def _calling_function() -> CodeType | None:
    """The function of SGLang's scheduler that led to this hook; functions that call hooks are in between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_globals["__name__"].startswith(seams.SCHEDULER_MODULE):
        frame = frame.f_back
    return None if frame is None else frame.f_code


def add_request(
    original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around `PrefillAdder.add_one_req`: note whether the request went in."""
    if _scheduling is not None and (chunk := _scheduling.chunk_waits) is not None:
        refusal = _with_expected_output([req, chunk], refusal_beside, adder, req, chunk)
        if refusal is not None:
            _scheduling.postponed(req, refusal)
            return adder.budget_state()
    result = _with_expected_output([req], original, adder, req, *args, **kwargs)
    if _scheduling is not None:
        admitted = bool(adder.can_run_list) and adder.can_run_list[-1] is req
        _scheduling.tried(req, admitted=admitted)
        if not admitted and result.name == "NO_TOKEN":
            _scheduling.lacks(req, _with_expected_output([req], missing_tokens, adder, req))
    return result


def reserve_one(original: Callable[..., Any], adder: Any, req: Any) -> Any:
    """Around `PrefillAdder.add_chunked_req` (R14)."""
    return _with_expected_output([req], original, adder, req)


def reserve_running(  # noqa: PLR0917 - the order is that of SGLang's `PrefillAdder`
    original: Callable[..., None],
    adder: Any,
    page_size: int,
    tree_cache: Any,
    token_to_kv_pool_allocator: Any,
    running_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Around `PrefillAdder.__init__`, which estimates what the running requests need (R14)."""
    running = [] if running_batch is None else running_batch.reqs
    known = (page_size, tree_cache, token_to_kv_pool_allocator, running_batch)
    _with_expected_output(running, original, adder, *known, *args, **kwargs)


def reserve_all(original: Callable[..., float], reqs: Sequence[Any]) -> float:
    """Around the estimate after a retraction. It is a share of the reservations, so it must mean the same ones (R14).

    Memory that was given back (R16) says nothing about the reservations, so the estimate stays.
    """
    if _scheduling is not None and _scheduling.giving():
        _scheduling.gave(reqs)
        return float(_scheduling.reserved_ratio())
    return _with_expected_output(reqs, original, reqs)


def _with_expected_output(
    requests: Iterable[Any], original: Callable[..., Result], *args: Any, **kwargs: Any
) -> Result:
    if _scheduling is None:
        return original(*args, **kwargs)
    limits = _scheduling.reservations.lower(requests)
    try:
        return original(*args, **kwargs)
    finally:
        restore(limits)


def pending_tokens(original: Callable[..., int], inquirer: Any, chunk_deduct: int = 0) -> int:
    """Around `SchedulerLoadInquirer._get_num_pending_tokens`: the same number, without a walk over the queue in each pass."""
    queue = inquirer.get_waiting_queue()
    tokens = None if _scheduling is None else _scheduling.waiting_tokens(queue)
    if tokens is None:
        return original(inquirer, chunk_deduct)
    chunked = inquirer.get_chunked_req()
    if chunked is not None:
        tokens += context_tokens(chunked) - prefix_tokens(chunked) - chunk_deduct
    return tokens


def received(result: list[Any] | None, receiver: Any) -> None:
    """After `SchedulerRequestReceiver._pull_raw_reqs`, whose result the first rank sends to all others."""
    if _rank_clock is None or _scheduling is None or result is None or not _is_first_rank():
        return
    if result or _scheduling.busy:
        _rank_clock.send(result)


def process_input(scheduler: Any, recv_reqs: list[Any]) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Before `Scheduler.process_input_requests`: take out the first rank's time. A paused engine does nothing else."""
    if scheduler._engine_paused and _scheduling is not None:
        running = scheduler.running_batch.reqs
        _scheduling.look(scheduler.waiting_queue, running, scheduler.chunked_req)
    return (scheduler, recv_reqs if _rank_clock is None else _rank_clock.read(recv_reqs)), {}


def new_prefill(original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
    """Around `Scheduler.get_new_batch_prefill`: the pass ends with it, also after an exception."""
    try:
        if _scheduling is not None:
            _scheduling.look(scheduler.waiting_queue, running_batch.reqs, scheduler.chunked_req)
            if running_batch.batch_is_full and _scheduling.wants_pass():
                running_batch.batch_is_full = False
            plan = _without_chunk(_scheduling, original, scheduler, running_batch)
            if plan is not None:
                return plan
        return original(scheduler, running_batch)
    finally:
        if _scheduling is not None:
            _scheduling.end_pass()
            _collector.look(idle=running_batch.is_empty() and not scheduler.waiting_queue)


def _without_chunk(
    scheduling: Scheduling, original: Callable[..., Any], scheduler: Any, running_batch: Any
) -> Any | None:
    """A pass in which the prompt in chunks waits (R13). None: it need not, or no other request can use the engine now."""
    chunk = scheduler.chunked_req
    if chunk is None:
        return None
    waits_its_turn = scheduling.should_wait(chunk, scheduler.waiting_queue, running_batch.reqs)
    is_idle = running_batch.is_empty()
    is_short = not is_idle and _is_short(scheduler)
    if not (waits_its_turn or is_short):
        return None
    others_decode = is_short or (not is_idle and scheduling.must_wait(chunk))
    with waits(scheduler, scheduling):
        plan = original(scheduler, running_batch)
    return plan if others_decode or plan.batch_to_run is not None else None


def _is_short(scheduler: Any) -> bool:
    """Whether the next chunk of the prompt does not fit into the memory."""
    needed = reserved_tokens(scheduler, scheduler.chunked_prefill_size)
    if not needed:
        return False
    return free_tokens(scheduler.token_to_kv_pool_allocator, scheduler.tree_cache) < needed


def run_batch(
    original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around `Scheduler.run_batch`: measure the forward pass. Its result carries the measurement."""
    if _scheduling is None:
        return original(scheduler, batch, *args, **kwargs)
    # Read before the pass: with overlap SGLang cuts the next chunk of a prompt before it processes this one's result.
    lengths = (batch.extend_lens or ()) if batch.forward_mode.is_extend() else ()
    # Other kinds of passes leave the lengths of an earlier one: then whole prompts count.
    is_told = len(lengths) == len(batch.reqs)
    computed = dict(zip(batch.reqs, lengths, strict=True)) if is_told else {}
    forward = partial(original, scheduler, batch, *args, **kwargs)
    on_cpu = scheduler.server_args.device == "cpu"
    result, launch = _step_clock.launch(forward, computes=on_cpu, computed=computed)
    result.evenkeel_launch = launch
    return result


def process_result(original: Callable[..., None], scheduler: Any, batch: Any, result: Any) -> None:
    """Around `Scheduler.process_batch_result`: charge what the forward pass produced."""
    batch_requests = list(batch.reqs)  # the engine removes those that finish
    is_prefill = batch.forward_mode.is_extend()
    original(scheduler, batch, result)
    if _scheduling is not None:
        launch = getattr(result, "evenkeel_launch", None)  # None: launched by another loop
        seconds, computed = (
            (0.0, {}) if launch is None else (_step_clock.ended(launch), launch.computed)
        )
        _scheduling.processed(
            batch_requests, is_prefill=is_prefill, seconds=seconds, computed=computed
        )


def decode_memory(
    original: Callable[..., bool], batch: Any, selected_indices: Sequence[int] | None = None
) -> bool:
    """Around `ScheduleBatch.check_decode_mem`: short until the requests that give memory back are retracted (R16), and while the rest of
    a prompt in chunks would not fit.

    The last request stays: SGLang would abort it.
    """
    if _scheduling is not None:
        giving, reserved = _scheduling.giving(), _scheduling.reserved_tokens()
        if giving or reserved:  # not in most steps
            indices = range(len(batch.reqs)) if selected_indices is None else selected_indices
            gives = any(batch.reqs[index] in giving for index in indices)
            if len(indices) > 1 and (gives or _takes(batch, len(indices), reserved)):
                return False
    return original(batch, selected_indices)


def _takes(batch: Any, requests: int, reserved: int) -> bool:
    """Whether a decode step of so many requests may take memory that is reserved."""
    if not reserved:
        return False
    allocator = batch.token_to_kv_pool_allocator
    needed = reserved + requests * int(allocator.page_size)
    return free_tokens(allocator, batch.tree_cache) < needed


def retraction_order(original: Callable[..., list[int]], reqs: Sequence[Any]) -> list[int]:
    """Around `ScheduleBatch._get_decode_retraction_order`, whose last request goes first: those that give memory back, then those of
    clients above their shares (R16)."""
    order = original(reqs)
    if _scheduling is not None:
        turns = {request: turn for turn, request in enumerate(_scheduling.giving())}
        is_above = _scheduling.is_above_share

        def place(index: int) -> tuple[int, int]:
            request = reqs[index]
            turn = turns.get(request)
            return (int(is_above(request)), 0) if turn is None else (2, -turn)

        order.sort(key=place)
    return order


def kv_published(result: None, publisher: Any, events: Any) -> None:
    """After `ZmqEventPublisher.publish`: a batch, which a thread of SGLang's gives the next number."""
    pages.published(events.ts, events.events)


def _is_first_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.tp_rank == 0 and parallel.pp_rank == 0)


def _announce(
    name: str, settings: EngineSettings, *, server_args: Any, scheduling: Scheduling
) -> None:
    """Start reports and metrics, and log the policy."""
    # Not at the top: SGLang decides first where samples go.
    from evenkeel_plugin import metrics

    metrics.active(name)
    scheduling.refused = metrics.refused
    scheduling.bypassed = metrics.bypassed
    scheduling.received = metrics.received
    scheduling.stalled = metrics.stalled
    reports = "no reports"
    if settings.reports_port is not None:
        book = ReportBook(incarnation=settings.incarnation or uuid.uuid4().hex, policy=name)
        server = ReportServer(
            book,
            scheduling.news,
            prompts=lambda: prompt_facts(server_args),
            pages=pages,
            host=server_args.host,
            port=settings.reports_port,
        )
        reports = f"reports on port {server.port} as incarnation {book.incarnation}"
    logger.info("evenkeel: policy %s orders the waiting queue; %s", name, reports)


def _in_flight(scheduler: Any) -> set[EngineRequest]:
    """The requests of all batches, those of other pipeline stages included, and those whose prompt is staged on the host."""
    found: set[EngineRequest] = scheduler.collect_inflight_reqs()
    staging = getattr(scheduler, "hisparse_coordinator", None)
    if staging is not None:
        found.update(one.req for one in staging.ack_staging_queue)
    return found


def make_scheduling(name: str, settings: EngineSettings, scheduler: Any) -> Scheduling:
    """The policy `name` in charge of a scheduler's queue."""
    ranks = scheduler.server_args.tp_size * scheduler.server_args.pp_size
    global _rank_clock
    _rank_clock = RankClock() if ranks > 1 else None
    match = seams.matcher()
    tree_cache = scheduler.tree_cache

    def matched_tokens(request: EngineRequest) -> int:
        match(request, tree_cache)
        return request.num_matched_prefix_tokens

    policy, accounts = policy_of(name, settings)
    shares_memory = settings.isolation is not None and policy.divides_time
    if any(map(seams.misfits, seams.MEMORY)):
        shares_memory = False
    scheduling = Scheduling(
        policy,
        accounts,
        match=matched_tokens,
        memory=MemoryShares(scheduler.max_total_num_tokens) if shares_memory else None,
        clock=_rank_clock or monotonic,
        adapters=AdapterLoads(
            lambda: scheduler.tp_worker.model_runner.lora_manager.memory_pool.uid_to_buffer_id
        ),
        # Ranks measure different times, and their batches would differ.
        time=EngineTime(isolation=settings.isolation)
        if settings.isolation is not None and policy.divides_time and ranks == 1
        else None,
    )
    scheduling.reserved_ratio = lambda: scheduler.new_token_ratio_tracker.current
    scheduling.in_flight = partial(_in_flight, scheduler)
    scheduling.reserved_tokens = partial(reserved_tokens, scheduler)
    return scheduling
