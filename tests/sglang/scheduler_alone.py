"""SGLang's own scheduler with the plug-in, under random events, without a model's forward passes. Runs inside SGLang's Python.

    python scheduler_alone.py SEED EVENTS FLAG ...

The scheduler, its loop, its cache and its pools are SGLang's. Two functions are replaced: the worker's forward pass, which gives each
request a token at once, and the sleep of an idle loop. Before each turn of the loop comes an event in place of what the tokenizer sends.
After each event the books of the plug-in are compared with what the engine holds. The plug-in's clocks are virtual, so a stall is found
after as many turns on any machine. The last line is JSON: how often each event came, and each way in which a request went.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
import zmq
from evenkeel_sglang import hooks
from evenkeel_sglang.engine import StepClock
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import (
    AbortReq,
    ContinueGenerationReqInput,
    FlushCacheReqInput,
    PauseGenerationReqInput,
    TokenizedGenerateReqInput,
    UpdateWeightFromDiskReqInput,
    sock_recv,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, prepare_server_args

CLIENTS = ("a1", "a2", "b1", "c1")
EVENTS_OF_A_LIFE = 400
"""Events between two times at which all requests must end."""
TURNS = 20_000
"""Turns of the loop in which they must: far more than their tokens need."""
TURN_S = 0.001
"""A turn without a forward pass."""

REFUSALS = {
    "The request queue is full.": "refused",
    "Out of memory even after retracting all other requests in the decode batch. Aborting the last request.": "last",
}
"""What SGLang says to requests that it ends itself → name of the count."""


class Device:
    """A model that gives each request a token, and no end of sequence: each output has its full length. Only turns of the loop and forward
    passes take time, which is virtual."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def turn(self) -> None:
        """The loop begins a turn. `Stalls` would end in `TURNS` of them."""
        self.now_s += TURN_S

    def forward(self, batch: Any, **_: object) -> GenerationBatchResult:
        tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else 0
        self.now_s += 0.01 + tokens / 20_000
        return GenerationBatchResult(next_token_ids=torch.full((len(batch.reqs),), 7))


class Life:
    """The events, the requests that were sent, and the comparisons."""

    def __init__(self, scheduler: Any, messages: Messages, *, rng: Random, model: str) -> None:
        self.scheduler, self.messages, self.rng, self.model = scheduler, messages, rng, model
        self.books: Any = hooks._scheduling
        self.books.stalled = lambda: self.counts.update(["stalls"])
        self.books.bypassed = lambda: self.counts.update(["bypassed"])
        self.open: dict[str, int] = {}
        """Requests without an answer → tokens that they ask for."""
        self.aborted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.compares = False

    # Events, as what the tokenizer's process sends

    def arrivals(self) -> Iterator[object]:
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            client = self.rng.choice(CLIENTS)
            tokens = self.rng.choice([5, 5, 40, 90, 300])
            shared = [100 * CLIENTS.index(client) + 2 + i for i in range(min(tokens, 64))]
            ids = shared + [self.rng.randrange(2, 1000) for _ in range(tokens - 64)]
            key = f"ek1;ns/{client[0]}/{client};w=1,1"
            yield self._request(ids, key, self.rng.choice([1, 4, 20, 60, 150]))

    def probe(self) -> Iterator[object]:
        request = self._request([1], None, 1)
        del self.open[request.rid]  # a busy engine drops it
        request.rid = f"HEALTH_CHECK_{request.rid}"
        yield request

    def abort(self) -> Iterator[object]:
        if self.open:
            rid = self.rng.choice([*self.open][-80:])
            self.aborted.add(rid)
            yield AbortReq(rid=rid)

    def abort_all(self) -> Iterator[object]:
        self.aborted.update(self.open)
        yield AbortReq(rid="", abort_all=True)

    def timeout(self) -> Iterator[object]:
        """SGLang aborts what waits or runs for longer than its limits. One request did, by its own record."""
        held = [one for one in (*self.scheduler.waiting_queue, *self.scheduler.running_batch.reqs) if one.rid in self.open]  # fmt: skip
        if not held:
            return
        request = self.rng.choice(held)
        self.aborted.add(request.rid)
        times = request.time_stats
        times.wait_queue_entry_time = times.forward_entry_time = 1e-9
        limit_s = time.perf_counter() - 1  # others began after its first second
        with envs.SGLANG_REQ_WAITING_TIMEOUT.override(limit_s), envs.SGLANG_REQ_RUNNING_TIMEOUT.override(limit_s):  # fmt: skip
            yield from self.scheduler._poll_timeout_aborts()

    def pause(self) -> Iterator[object]:
        yield PauseGenerationReqInput(mode="retract")

    def pause_and_leave(self) -> Iterator[object]:
        """Clients leave before a step follows the pause: what it retracted is aborted while it waits."""
        yield from self.pause()
        for _ in range(4):
            yield from self.abort()

    def pause_in_place(self) -> Iterator[object]:
        yield PauseGenerationReqInput(mode="in_place")

    def resume(self) -> Iterator[object]:
        yield ContinueGenerationReqInput()

    def flush(self) -> Iterator[object]:
        yield FlushCacheReqInput()

    def update_weights(self) -> Iterator[object]:
        """As trainers do."""
        yield PauseGenerationReqInput(mode="retract")
        yield FlushCacheReqInput()
        yield UpdateWeightFromDiskReqInput(model_path=self.model, flush_cache=True)
        yield ContinueGenerationReqInput()

    def nothing(self) -> Iterator[object]:
        return iter(())

    def _request(self, ids: list[int], key: str | None, output_tokens: int) -> Any:
        rid = f"r{self.counts['requests']:06}"  # SGLang aborts by prefix
        self.counts["requests"] += 1
        self.open[rid] = output_tokens
        sampling = SamplingParams(max_new_tokens=output_tokens, ignore_eos=True, temperature=0)
        sampling.normalize(None)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text=None,
            input_ids=array("q", ids),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            routing_key=key,
        )

    # What comes in place of the receiver

    def turns(self, events: int) -> Iterator[list[object]]:
        """What the scheduler reads in each turn of its loop."""
        kinds: list[tuple[int, Callable[[], Iterator[object]]]] = [
            (30, self.arrivals), (45, self.nothing), (12, self.abort), (3, self.timeout), (1, self.abort_all), (2, self.pause), (2, self.pause_and_leave),
            (1, self.pause_in_place), (6, self.resume), (2, self.flush), (1, self.update_weights), (2, self.probe),
        ]  # fmt: skip
        weights = [weight for weight, _ in kinds]
        while events > 0:
            self.compares = True
            for _ in range(min(events, EVENTS_OF_A_LIFE)):
                [(_, kind)] = self.rng.choices(kinds, weights)
                self.counts[kind.__name__] += 1
                events -= 1
                yield list(kind())
                for _ in range(self.rng.choice([0, 1, 2, 6])):
                    yield []
            self.compares = False  # what follows must come right without the comparisons
            yield list(self.resume())
            turns = 0
            while not self.scheduler.is_fully_idle():
                turns += 1
                assert turns < TURNS, f"{len(self.scheduler.waiting_queue)} requests wait for ever"
                yield []
            self.all_ended()

    def compare(self) -> None:
        """The requests in the books are those of the engine."""
        engine, books = self.scheduler, self.books
        queue, batch, chunk = engine.waiting_queue, engine.running_batch.reqs, engine.chunked_req
        books.begin_pass(queue, batch, chunk)
        books.end_pass()
        waiting = {one for one in queue if not one.rid.startswith("HEALTH_CHECK")}
        in_batches = {*engine.collect_inflight_reqs(), *([chunk] if chunk else [])}
        held = {one for one in in_batches - {*queue} if not one.finished() and one.routing_key}
        assert books._waiting.keys() == waiting
        assert books._running.keys() == held, [one.rid for one in books._running.keys() ^ held]
        assert {one.engine for one in books.policy.waiting()} == waiting
        running = set(books._running.values())
        time, memory, matching = books._shares.time, books._shares.memory, books._matching
        assert {*time._prefilling, *time._decoding} == running
        assert memory._clients.keys() == running | set(books._waiting.values())
        assert memory._decoding.keys() == {one for one in running if one.decodes}
        assert matching._computed_by.keys() <= held
        assert {*books._giving, *books._given} <= held
        self.counts["comparisons"] += 1
        self.read()

    def read(self) -> None:
        """The messages that the tokenizer's process would get."""
        for message in self.messages:
            self.answered(message)

    def answered(self, message: Any) -> None:
        """A message to the tokenizer's process."""
        rids = [message.rid] if isinstance(message, AbortReq) else getattr(message, "rids", None)
        if rids is None:
            return
        if isinstance(message, AbortReq):
            reasons = [{"type": "abort", **(message.finished_reason or {})}]
        else:
            reasons = message.finished_reasons
        for index, (rid, reason) in enumerate(zip(rids, reasons, strict=True)):
            if reason is None or rid.startswith("HEALTH_CHECK"):
                continue
            asked = self.open.pop(rid)  # once
            if reason["type"] == "length":
                assert message.completion_tokens[index] == asked
                self.counts["answered"] += 1
            elif reason.get("message") in REFUSALS:
                self.counts[REFUSALS[reason["message"]]] += 1
            else:
                assert rid in self.aborted, reason
                self.counts["aborted"] += 1

    def all_ended(self) -> None:
        """Nothing is left in the books, and each request has its answer."""
        assert not self.books.busy
        assert {row.running for row in self.books.snapshot()[0].values()} <= {0}
        self.read()
        assert not self.open, "no answer"
        self.aborted.clear()


class Messages:
    """Where the messages to the tokenizer's process arrive. All that were sent are read, so that a seed gives one sequence of events."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        self._unread = 0
        send = SenderWrapper.send_output

        def counted(*arguments: Any) -> None:
            send(*arguments)
            self._unread += 1

        SenderWrapper.send_output = counted

    def __iter__(self) -> Iterator[Any]:
        while self._unread:
            assert self._socket.poll(60_000), f"{self._unread} messages are missing"
            self._unread -= 1
            yield sock_recv(self._socket)


def made(flags: list[str]) -> tuple[Any, Messages]:
    """A scheduler as in its own process, and its messages."""
    load_plugins()
    arguments = prepare_server_args(flags)
    ports = PortArgs.init_new(arguments)
    messages = Messages(ports.tokenizer_ipc_name)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    return Scheduler(arguments, ports), messages


def main(seed: str, events: str, *flags: str) -> None:
    model = next(flag.partition("=")[2] for flag in flags if flag.startswith("--model-path="))
    device = Device()
    hooks.monotonic = device.clock  # type: ignore[assignment]
    hooks._step_clock = StepClock(device.clock)
    scheduler, messages = made([*flags, "--skip-tokenizer-init"])
    life = Life(scheduler, messages, rng=Random(int(seed)), model=model)
    scheduler.tp_worker.forward_batch_generation = device.forward
    scheduler.idle_sleeper = None  # it would wait a second for a message, in each idle turn
    turns = life.turns(int(events))
    queue = scheduler._add_request_to_queue

    def retracted(request: Any, is_retracted: bool = False) -> None:
        life.counts["retracted"] += is_retracted
        queue(request, is_retracted)

    scheduler._add_request_to_queue = retracted

    def ingest(stop_at_pause: bool = False) -> list[object]:
        device.turn()
        read = next(turns, None)
        if read is None:
            scheduler.gracefully_exit = True
            return []
        scheduler.process_input_requests(read)
        if life.compares:
            life.compare()
        return read

    scheduler.ingest_requests = ingest
    scheduler.run_event_loop()
    print("\n" + json.dumps(life.counts))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
