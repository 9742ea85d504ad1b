"""The fleet of the papers, for proofs-as-tests: a fleet policy in front of abstract engines, in lock step.

It keeps what a router keeps (who holds which prefix, what is outstanding) and measures what the theorems
speak of: each client's service over all replicas, and where it is backlogged, at every instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from evenkeel_fairshare.fleet.contract import (
    NOTHING,
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    replica_set,
)
from evenkeel_fairshare.prefix.index import PrefixIndex, token_blocks
from evenkeel_fairshare.replica.contract import ReplicaPolicy

from tests.support.abstract_engine import AbstractEngine, Job


@dataclass
class AbstractFleet:
    """`replicas` engines. `observe` is called after every event anywhere."""

    policy: FleetPolicy
    make_replica: Callable[[], ReplicaPolicy]
    replicas: int
    memory_tokens: int
    observe: Callable[[AbstractFleet], None] = lambda fleet: None
    estimate_factor: float = 1.0
    """How far off the router is when it guesses a prompt's tokens."""
    index: PrefixIndex = field(default_factory=PrefixIndex)
    engines: list[AbstractEngine] = field(default_factory=list)
    outstanding: list[int] = field(default_factory=list)
    sent: dict[Job, tuple[Dispatch, int]] = field(default_factory=dict)
    """What has not ended yet."""

    def __post_init__(self) -> None:
        for slot in range(self.replicas):
            self.engines.append(
                AbstractEngine(
                    self.make_replica(),
                    self.memory_tokens,
                    observe=lambda engine, job: self.observe(self),
                )
            )
            self.outstanding.append(0)
            self.policy.joined(slot)

    @property
    def everyone(self) -> ReplicaSet:
        return replica_set(range(self.replicas))

    def send(self, job: Job) -> int:
        """Match, select, dispatch; the slot it went to."""
        request, slot, hashes = self._dispatch(job)
        self.index.insert(hashes, slot)
        self.outstanding[slot] += 1
        self.sent[job] = (request, slot)
        self.engines[slot].submit(job)
        return slot

    def refuse(self, job: Job) -> None:
        """The same for a request that its replica refuses: nothing runs."""
        request, slot, _ = self._dispatch(job)
        self.policy.finished(request, slot, NOTHING)

    def _dispatch(self, job: Job) -> tuple[Dispatch, int, list[int]]:
        """The request, its slot, and the hashes of its prompt."""
        hashes = token_blocks([crc32(job.prefix.encode())], block_tokens=1) if job.prefix else []
        match = self.index.match(hashes, self.everyone)
        request = Dispatch(
            client=job.client,
            input_tokens=max(1, round(job.input_tokens * self.estimate_factor)),
            weight=job.tenant_weight * job.client_weight,
            longest=match.replicas,
            matched_tokens=round(match.blocks * job.prefix_tokens * self.estimate_factor),
        )
        slot = self.policy.select(request, self.everyone, self.outstanding)
        assert slot is not None
        self.policy.dispatched(request, slot)
        return request, slot, hashes

    def step(self) -> None:
        """One batching step of every engine, then the router hears of what ended."""
        for engine in self.engines:
            engine.step()
        for job in [job for job in self.sent if job.output_tokens == job.true_output_tokens]:
            request, slot = self.sent.pop(job)
            self.outstanding[slot] -= 1
            self.policy.finished(request, slot, Usage(job.input_tokens, 0, job.output_tokens))

    def waiting(self, slot: int, clients: Iterable[str]) -> int:
        """Requests of `clients` in the queue of one engine."""
        names = set(clients)
        return sum(job.client in names for job in self.engines[slot].queue)

    def backlogged_everywhere(self, clients: Iterable[str]) -> bool:
        """The premise of theorems 5.1 and 5.2: a waiting request on every worker."""
        names = set(clients)
        return all(any(job.client in names for job in engine.queue) for engine in self.engines)

    def service(self, client: str) -> float:
        """W: input computed at admission, output token by token, prices 1 and 2."""
        return sum(
            engine.extend_tokens.get(client, 0) + 2.0 * engine.output_tokens.get(client, 0)
            for engine in self.engines
        )

    def full_service(self, client: str) -> float:
        """The same with all input tokens, cached or not: what VTC counts."""
        return sum(
            engine.input_tokens.get(client, 0) + 2.0 * engine.output_tokens.get(client, 0)
            for engine in self.engines
        )


@dataclass
class Gap:
    """The largest change of a difference of two services over any interval on which a premise held."""

    lowest: float | None = None
    highest: float = 0.0
    widest: float = 0.0
    """max - min within one interval: over any of its parts, either client leads by no more."""
    steepest: float = 0.0
    """The largest rise from an earlier instant to a later one of the same interval."""
    instants: int = 0
    """How often the premise was seen to hold."""

    def see(self, difference: float, *, holds: bool) -> None:
        if not holds:
            self.lowest = None
            return
        self.instants += 1
        if self.lowest is None:
            self.lowest = self.highest = difference
        self.lowest = min(self.lowest, difference)
        self.highest = max(self.highest, difference)
        self.widest = max(self.widest, self.highest - self.lowest)
        self.steepest = max(self.steepest, difference - self.lowest)
