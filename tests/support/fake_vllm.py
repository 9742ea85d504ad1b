"""vLLM's scheduler as far as the plug-in touches it, in the shape of vLLM 0.32.0 and 0.33.0. No model, no blocks: memory is only counted.

Names, signatures, the order of the calls on the waiting queue, and the moment at which the tokens of a step count as computed are
those of `vllm.v1.core.sched` in that version. `evenkeel_vllm.seams` compares names and signatures with the real engine at each
start, and `make test-vllm` runs the plug-in in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from types import ModuleType, SimpleNamespace
from typing import Any, Final

VERSION: Final = "0.32.0"


class RequestStatus(IntEnum):
    """`vllm.v1.request.RequestStatus`, in part; those after PREEMPTED are ends."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()


@dataclass(eq=False)
class Request:
    """`vllm.v1.request.Request`, in part."""

    request_id: str
    session_id: str | None
    prompt_token_ids: list[int] | None
    max_tokens: int = 4
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    lora_request: Any = None
    cache_salt: str | None = None
    status: RequestStatus = RequestStatus.WAITING

    def __post_init__(self) -> None:
        if self.prompt_token_ids is not None:
            self.num_prompt_tokens = len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED


class RequestQueue(ABC):
    """`vllm.v1.core.sched.request_queue.RequestQueue`."""

    @abstractmethod
    def add_request(self, request: Any) -> None: ...
    @abstractmethod
    def pop_request(self) -> Any: ...
    @abstractmethod
    def peek_request(self) -> Any: ...
    @abstractmethod
    def prepend_request(self, request: Any) -> None: ...
    @abstractmethod
    def prepend_requests(self, requests: Any) -> None: ...
    @abstractmethod
    def remove_request(self, request: Any) -> None: ...
    @abstractmethod
    def remove_requests(self, requests: Iterable[Any]) -> None: ...
    @abstractmethod
    def __bool__(self) -> bool: ...
    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


class KVCacheManager:
    """Finds the prefixes that a test names, by request id."""

    def __init__(self) -> None:
        self.cached: dict[str, int] = {}

    def get_computed_blocks(self, request: Any) -> tuple[None, int]:
        return None, self.cached.get(request.request_id, 0)


class Publisher:
    """The publisher of KV events."""

    topic = "kv-events"

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def publish(self, events: Any) -> None:
        self.batches.append(events)


def config(
    *, seqs: int = 2, budget: int = 1000, memory: int = 1_000_000, **changes: Any
) -> SimpleNamespace:
    """`vllm.config.VllmConfig`, in part. `memory`: tokens of the cache. `changes`: parts to exchange."""
    parts: dict[str, Any] = {
        "scheduler_config": SimpleNamespace(
            max_num_seqs=seqs, max_num_batched_tokens=budget, policy="fcfs"
        ),
        "cache_config": SimpleNamespace(
            block_size=16, prefix_caching_hash_algo="sha256_cbor", memory=memory
        ),
        "parallel_config": SimpleNamespace(data_parallel_size=1),
        "kv_transfer_config": None,
        "diffusion_config": None,
    }
    return SimpleNamespace(**(parts | changes))


class Scheduler:
    """`vllm.v1.core.sched.scheduler.Scheduler`: running requests first, then the waiting queue up to the first misfit."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.waiting: Any = None
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = KVCacheManager()
        self.kv_event_publisher: Any = Publisher()
        self.without_slot: set[str] = set()
        """Adapters that have no slot in this step."""

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        limits = self.vllm_config.scheduler_config
        scheduled: dict[str, int] = {}
        before = len(self.running)
        budget = self._schedule_running(scheduled, limits.max_num_batched_tokens)
        may_enter = len(self.running) == before  # none in a step that preempted one
        skipped: deque[Request] = deque()
        while may_enter and self.waiting and budget > 0:
            if len(self.running) == limits.max_num_seqs:
                break
            request = self.waiting.peek_request()
            adapter = request.lora_request
            if adapter is not None and adapter.lora_name in self.without_slot:
                skipped.appendleft(self.waiting.pop_request())
                continue
            cached = self.kv_cache_manager.get_computed_blocks(request)[1]
            tokens = min(request.num_tokens - cached, budget)
            if not self._fits(cached + tokens, scheduled):
                break
            request = self.waiting.pop_request()
            self.running.append(request)
            scheduled[request.request_id] = tokens
            budget -= tokens
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = cached
        if skipped:
            self.waiting.prepend_requests(skipped)
        for request_id, tokens in scheduled.items():
            self.requests[request_id].num_computed_tokens += tokens
        return SimpleNamespace(num_scheduled_tokens=scheduled)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """`model_runner_output`: the ids of requests that end with this token."""
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.num_computed_tokens < request.num_tokens:
                continue  # aborted meanwhile, or a chunk that is not the last one
            request.output_token_ids.append(7)
            if request_id in model_runner_output:
                self._end(request, RequestStatus.FINISHED_STOPPED)
            elif len(request.output_token_ids) >= request.max_tokens:
                self._end(request, RequestStatus.FINISHED_LENGTH_CAPPED)
        return {}

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Request]:
        ended = [self.requests[one] for one in request_ids if one in self.requests]
        self.waiting.remove_requests({one for one in ended if one not in self.running})
        for request in ended:
            self._end(request, finished_status)
        return ended

    def _schedule_running(self, scheduled: dict[str, int], budget: int) -> int:
        """Adds their tokens to `scheduled`; returns what is left of the budget. The youngest ones make room."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            while not self._fits(tokens, scheduled):
                victim = self.running.pop()
                victim.status = RequestStatus.PREEMPTED
                victim.num_computed_tokens = 0
                self.waiting.prepend_request(victim)
                if victim is request:
                    return 0
            if tokens:
                scheduled[request.request_id] = tokens
            budget -= tokens
            index += 1
        return budget

    def _end(self, request: Request, status: RequestStatus) -> None:
        if request in self.running:
            self.running.remove(request)
        del self.requests[request.request_id]
        request.status = status

    def _fits(self, tokens: int, scheduled: Mapping[str, int]) -> bool:
        used = sum(request.num_computed_tokens for request in self.running)
        memory: int = self.vllm_config.cache_config.memory
        return used + sum(scheduled.values()) + tokens <= memory


class AsyncScheduler(Scheduler):
    """`vllm.v1.core.sched.async_scheduler.AsyncScheduler`, of which the plug-in's class is one."""


def modules() -> Mapping[str, ModuleType]:
    """The modules of vLLM that the plug-in imports or inspects, for `sys.modules`."""
    core = "vllm.v1.core"
    contents: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("vllm", "vllm.v1", core, f"{core}.sched")},
        f"{core}.kv_cache_manager": {"KVCacheManager": KVCacheManager},
        f"{core}.sched.request_queue": {"RequestQueue": RequestQueue},
        f"{core}.sched.scheduler": {"Scheduler": Scheduler},
        f"{core}.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
    }
    found: dict[str, ModuleType] = {}
    for name, content in contents.items():
        found[name] = module = ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
    return found
