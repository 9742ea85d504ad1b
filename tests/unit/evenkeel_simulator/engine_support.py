"""What the engine's tests share: the smallest policies there are, and requests in one line."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import ClassVar

from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, ReplicaPolicy, Request
from evenkeel_simulator.engine.cache import Node, RadixCache, Segment
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.engine.request import EngineRequest

PROFILE = CostProfile(
    prefill_ms=8,
    prefill_token_ms=0.25,
    prefill_attention_ms=0.0,
    decode_ms=16,
    decode_request_ms=0.5,
    decode_kv_token_ms=0.125,
    kv_tokens=1000,
)


class Queue(ReplicaPolicy):
    """FCFS that also counts the calls it gets, so that tests can compare accounts."""

    name: ClassVar[str] = "queue"
    matches_prefix: ClassVar[bool] = False

    def __init__(self) -> None:
        self.queue: list[Request] = []
        self.produced: dict[str, int] = {}
        self.left: list[str] = []

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self.queue.append(request)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        for request in self.order():
            outcome = yield request
            if outcome is AdmissionResult.NO_ROOM:
                return
            if outcome is AdmissionResult.ADMITTED:
                self.queue.remove(request)

    def order(self) -> list[Request]:
        return list(self.queue)

    def progress(self, request: Request, tokens: int) -> None:
        self.produced[request.id] = self.produced.get(request.id, 0) + tokens

    def requeue(self, request: Request, now_s: float) -> None:
        self.queue.insert(0, request)

    def leave(self, request: Request, now_s: float) -> None:
        if request in self.queue:
            self.queue.remove(request)
        self.left.append(request.id)

    def waiting(self) -> Iterable[Request]:
        return list(self.queue)

    def __len__(self) -> int:
        return len(self.queue)


class LongestMatch(Queue):
    """LPM at its smallest: reads the matches that the engine keeps current."""

    name: ClassVar[str] = "longest-match"
    matches_prefix: ClassVar[bool] = True

    def order(self) -> list[Request]:
        return sorted(self.queue, key=lambda request: -request.matched_tokens)


def make_request(
    name: str,
    *,
    prompt: tuple[tuple[str, int], ...] = (),
    tail: int = 0,
    output: int = 4,
    max_output: int | None = None,
    client: str = "ns/t/a",
    arrival_s: float = 0.0,
    output_key: str | None = None,
) -> EngineRequest:
    """A request whose prompt is spelled as (key, tokens) pairs plus `tail` tokens that are not shared."""
    segments = tuple(Segment(key, tokens) for key, tokens in prompt)
    return EngineRequest(
        id=name,
        client=client,
        tenant=client.rsplit("/", 1)[0],
        arrival_s=arrival_s,
        input_tokens=sum(tokens for _, tokens in prompt) + tail,
        max_output_tokens=output if max_output is None else max_output,
        prompt=segments,
        target_output_tokens=output,
        output_key=output_key,
    )


def insert(cache: RadixCache, node: Node, segments: Sequence[Segment]) -> Node:
    """Store `segments` below `node` for a request that has ended; returns the last one's node, which may be evicted."""
    cache.lock(node)
    end = cache.extend(node, segments)
    cache.unlock(end)
    return end
