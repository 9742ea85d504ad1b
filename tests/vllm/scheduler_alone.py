"""vLLM's own scheduler with the plug-in, under random events, without a worker. Runs inside vLLM's Python.

    python scheduler_alone.py MODEL SEED EVENTS LAG

The scheduler, its queues and its block manager are vLLM's. A forward pass gives each request of the batch a token. Its output is processed
LAG steps later: 0, as on a CPU, or 1, as with asynchronous scheduling. After each event the books of the plug-in are compared with what
the engine holds. Their clock is virtual: only steps take time. The last line is JSON: how often each event came, and each way in which a
request went.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from evenkeel_vllm.scheduler import FairScheduler
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS, BLOCKS = 32, 40
CLIENTS = ("a1", "a2", "b1", "c1")
EVENTS_OF_A_LIFE = 400
"""Events between two times at which all requests must end."""
STEPS = 20_000
"""Steps in which they must: far more than their tokens need."""
STEP_S = 0.01


def made(model: str) -> tuple[FairScheduler, Callable[[Any], Any]]:
    """A scheduler as the engine's process makes it, and what hashes the blocks of a request."""
    config = EngineArgs(
        model=model,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=96,
        block_size=BLOCK_TOKENS,
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        prefix_caching_hash_algo="sha256_cbor",
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)  # fmt: skip
    blocks = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    hashed = get_hash_fn_by_name("sha256_cbor")
    init_none_hash(hashed)
    scheduler = FairScheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=False,
    )
    return scheduler, get_request_block_hasher(BLOCK_TOKENS, hashed)


class Life:
    """The events, the requests that were sent, and the comparisons."""

    def __init__(self, model: str, *, rng: Random, lag: int) -> None:
        self.scheduler, self._hasher = made(model)
        self.rng, self.lag = rng, lag
        self.launched: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.open: dict[str, int] = {}
        """Requests without their whole answer → tokens that are missing."""
        self.aborted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0
        books: Any = self.scheduler.scheduling
        books._clock = lambda: self.now_s
        books.stalled = lambda: self.counts.update(["stalls"])
        books.bypassed = lambda: self.counts.update(["bypassed"])

    # Events

    def arrivals(self) -> None:
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            client = self.rng.choice(CLIENTS)
            tokens = self.rng.choice([5, 40, 90, 90, 300])
            shared = [100 * CLIENTS.index(client) + 2 + i for i in range(min(tokens, 64))]
            ids = shared + [self.rng.randrange(2, 1000) for _ in range(tokens - 64)]
            self.arrive(client, ids, self.rng.choice([1, 4, 20, 60, 150]))

    def arrive(self, client: str, ids: list[int], output_tokens: int) -> str:
        rid = f"r{self.counts['requests']:06}"
        self.counts["requests"] += 1
        self.open[rid] = output_tokens
        self.scheduler.add_request(
            Request(
                request_id=rid,
                prompt_token_ids=ids,
                sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
                pooling_params=None,
                session_id=f"ek1;ns/{client[0]}/{client};w=1,1",
                block_hasher=self._hasher,
            )
        )
        return rid

    def abort(self) -> None:
        if self.open:
            self._abort([self.rng.choice([*self.open])])

    def abort_all(self) -> None:
        self._abort([*self.open])

    def preempt_all(self) -> None:
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def flush(self) -> None:
        self.scheduler.reset_prefix_cache()

    def update_weights(self) -> None:
        """As trainers do."""
        self.pause_all()
        self.preempt_all()
        self.resume()

    def pause_new(self) -> None:
        self.scheduler.set_pause_state(PauseState.PAUSED_NEW)

    def pause_all(self) -> None:
        self.scheduler.set_pause_state(PauseState.PAUSED_ALL)

    def resume(self) -> None:
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def nothing(self) -> None:
        pass

    def _abort(self, rids: list[str]) -> None:
        for rid in rids:
            del self.open[rid]
        self.aborted.update(rids)
        self.scheduler.finish_requests(rids, RequestStatus.FINISHED_ABORTED)

    # The engine's loop

    def step(self) -> None:
        self.now_s += STEP_S
        output = self.scheduler.schedule()
        if output.total_num_scheduled_tokens:
            rids = list(output.num_scheduled_tokens)
            tokens = [[] if self.scheduler.requests[one].is_prefill_chunk else [7] for one in rids]
            result = ModelRunnerOutput(rids, {rid: i for i, rid in enumerate(rids)}, tokens)
            self.launched.append((output, result))
        keep = self.lag if output.total_num_scheduled_tokens else 0
        while len(self.launched) > keep:
            answers = self.scheduler.update_from_output(*self.launched.popleft())
            for one in (one for client in answers.values() for one in client.outputs):
                self._answered(one)

    def _answered(self, one: Any) -> None:
        if one.request_id in self.aborted:
            return
        self.open[one.request_id] -= len(one.new_token_ids)
        if one.finish_reason is not None:
            assert str(one.finish_reason) == "length"
            assert self.open.pop(one.request_id) == 0
            self.counts["answered"] += 1

    # Comparisons

    def compare(self) -> None:
        """The requests in the books are those of the engine."""
        engine, queue, books = self.scheduler, self.scheduler.waiting, self.scheduler.scheduling
        books.begin_pass(queue._queue(), queue._batch())
        books.end_pass()
        running = set(engine.running)
        waiting = set(engine.requests.values()) - running
        assert {one.request for one in books._running} == running
        assert {one.request for one in books._waiting} == waiting
        assert {one.engine.request for one in books.policy.waiting()} == waiting
        assert {one.request for one in books._matching._computed_by} <= running
        assert {one.request for one in queue._running.values()} == running
        self.counts["comparisons"] += 1

    def all_end(self) -> None:
        """Without new ones, and without the comparisons, each request ends."""
        self.resume()
        steps = 0
        while self.scheduler.requests or self.launched:
            self.step()
            steps += 1
            assert steps < STEPS, f"{len(self.scheduler.requests)} requests wait for ever"
        assert not self.open
        self.assert_empty()
        self.aborted.clear()

    def assert_empty(self) -> None:
        books = self.scheduler.scheduling
        assert not books.busy
        assert {row.running for row in books.snapshot()[0].values()} <= {0}

    def preempted_and_aborted(self) -> None:
        """A request that was preempted, and is aborted before the next pass, is in no report any more."""
        rids = [self.arrive("a1", list(range(2, 50 + i)), 20) for i in range(3)]
        for _ in range(4):
            self.step()
        assert len(self.scheduler.running) == len(rids)
        self.preempt_all()
        self._abort(rids)
        self.assert_empty()

    def live(self, events: int) -> None:
        kinds = (
            (30, self.arrivals), (45, self.nothing), (12, self.abort), (1, self.abort_all), (2, self.preempt_all), (2, self.flush),
            (1, self.update_weights), (1, self.pause_new), (1, self.pause_all), (6, self.resume),
        )  # fmt: skip
        weights = [weight for weight, _ in kinds]
        for number in range(events):
            [(_, kind)] = self.rng.choices(kinds, weights)
            self.counts[kind.__name__] += 1
            kind()
            self.compare()
            for _ in range(self.rng.choice([0, 1, 2, 6])):
                self.step()
                self.compare()
            if (number + 1) % EVENTS_OF_A_LIFE == 0 or number + 1 == events:
                self.all_end()


def main(model: str, seed: str, events: str, lag: str) -> None:
    life = Life(model, rng=Random(int(seed)), lag=int(lag))
    preempt = life.scheduler._preempt_request

    def preempted(*arguments: Any, drop_stale_output: bool = False) -> None:
        life.counts["preempted"] += not drop_stale_output  # for lack of memory
        preempt(*arguments, drop_stale_output=drop_stale_output)

    life.scheduler._preempt_request = preempted  # type: ignore[method-assign]
    life.preempted_and_aborted()
    life.live(int(events))
    print("\n" + json.dumps(life.counts))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
