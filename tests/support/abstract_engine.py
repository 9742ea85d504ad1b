"""The engine of the papers, for proofs-as-tests: batching steps, one token per running request and step.

It computes no times and knows nothing of the policy but its contract. What it measures (service, who waits)
it measures itself, so that a policy's own accounts are tested against it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, ReplicaPolicy, Request


class Room(Enum):
    """Admission tests (ALGORITHMS §7 A1)."""

    RESERVE = "sum of input + max_output fits: the test that the theorems assume"
    PEAK = "the peak of the known lengths fits: staggered requests decode more than M"


@dataclass(slots=True, eq=False)
class Job(Request):
    """A request with what only the engine knows."""

    true_output_tokens: int = 1
    prefix: str = ""
    """What its first `prefix_tokens` are; equal names are equal tokens."""
    prefix_tokens: int = 0
    arrived_step: int = 0
    admitted_step: int | None = None
    admissions: int = 0
    retractions: int = 0


@dataclass
class AbstractEngine:
    """Continuous batching over a policy. `observe` is told of every event, and of the job it happened to."""

    policy: ReplicaPolicy
    memory_tokens: int
    room: Room = Room.RESERVE
    cached_prefixes: int = 3
    observe: Callable[[AbstractEngine, Job], None] = lambda engine, job: None
    step_number: int = 0
    queue: list[Job] = field(default_factory=list)
    batch: list[Job] = field(default_factory=list)
    rejected: list[Job] = field(default_factory=list)
    cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    extend_tokens: Counter[str] = field(default_factory=Counter)
    """By client: input tokens computed so far."""
    input_tokens: Counter[str] = field(default_factory=Counter)
    """By client: input tokens admitted so far, cached or not."""
    output_tokens: Counter[str] = field(default_factory=Counter)
    proposals: list[Job] = field(default_factory=list)
    """Everything the policy yielded in the last pass."""
    peak_resident_tokens: int = 0
    """M' of §7 A1: the largest sum of final lengths that ever ran together."""

    def submit(self, job: Job) -> None:
        job.arrived_step = self.step_number
        if self.policy.arrive(job, float(self.step_number)) is Arrival.REJECTED:
            self.rejected.append(job)
            return
        self.queue.append(job)
        self.observe(self, job)

    def admit(self) -> list[Job]:
        """One admission pass; who was admitted, in order."""
        if self.policy.matches_prefix:
            for job in self.policy.waiting():
                job.matched_tokens = self._matched(job)
                self.policy.rematched(job)
        self.proposals = []
        admitted: list[Job] = []
        conversation = self.policy.admissions(float(self.step_number))
        job = next(conversation, None)
        while job is not None:
            self.proposals.append(job)
            outcome = self._offer(job)
            if outcome is AdmissionResult.ADMITTED:
                admitted.append(job)
            try:
                proposed = conversation.send(outcome)
            except StopIteration:
                proposed = None
            self.observe(self, job)
            job = proposed
        return admitted

    def decode(self) -> None:
        """One token for each request in the batch; finished ones leave."""
        for job in list(self.batch):
            job.output_tokens += 1
            self.output_tokens[job.client] += 1
            self.policy.progress(job, 1)
            self.observe(self, job)
        for job in [job for job in self.batch if job.output_tokens == job.true_output_tokens]:
            self.batch.remove(job)
            self.policy.leave(job, float(self.step_number))
            self.observe(self, job)

    def step(self) -> list[Job]:
        """One batching step; who was admitted in it."""
        for job in self.policy.preempt(list(self.batch), float(self.step_number)):
            assert isinstance(job, Job)
            self.retract(job)
        admitted = self.admit()
        self.decode()
        self.step_number += 1
        return admitted

    def abort(self, job: Job) -> None:
        """`job` waits or runs, and goes."""
        (self.queue if job in self.queue else self.batch).remove(job)
        self.policy.leave(job, float(self.step_number))
        self.observe(self, job)

    def retract(self, job: Job) -> None:
        """`job` runs, and waits again; its input is to be computed once more."""
        self.batch.remove(job)
        self.queue.append(job)
        job.retractions += 1
        self.policy.requeue(job, float(self.step_number))
        self.observe(self, job)

    def fits(self, job: Job) -> bool:
        """Whether `job` may join the batch now."""
        if self.room is Room.RESERVE:
            needed = [r.input_tokens + r.max_output_tokens for r in (*self.batch, job)]
            return sum(needed) <= self.memory_tokens
        return self._peak((*self.batch, job)) <= self.memory_tokens

    def _offer(self, job: Job) -> AdmissionResult:
        if not self.fits(job):
            return AdmissionResult.NO_ROOM
        job.extend_tokens = job.input_tokens + job.output_tokens - self._matched(job)
        job.admitted_step = self.step_number
        job.admissions += 1
        self.queue.remove(job)
        self.batch.append(job)
        self.extend_tokens[job.client] += job.extend_tokens
        self.input_tokens[job.client] += job.input_tokens + job.output_tokens
        self._remember(job)
        finals = sum(r.input_tokens + r.true_output_tokens for r in self.batch)
        self.peak_resident_tokens = max(self.peak_resident_tokens, finals)
        return AdmissionResult.ADMITTED

    def _matched(self, job: Job) -> int:
        """At least one token is computed (§1.12)."""
        return min(self.cache.get(job.prefix, 0), job.prefix_tokens, job.input_tokens - 1)

    def _remember(self, job: Job) -> None:
        if not job.prefix:
            return
        self.cache[job.prefix] = max(self.cache.pop(job.prefix, 0), job.prefix_tokens)
        while len(self.cache) > self.cached_prefixes:
            self.cache.popitem(last=False)

    @staticmethod
    def _peak(jobs: tuple[Job, ...]) -> int:
        """LightLLM's test: the largest memory that is ever held if no other request comes."""
        pairs = sorted(
            (
                (job.true_output_tokens - job.output_tokens, job.input_tokens + job.output_tokens)
                for job in jobs
            ),
            reverse=True,
        )
        held = peak = 0
        for count, (remaining, now) in enumerate(pairs, start=1):
            held += now
            peak = max(peak, held + remaining * count)
        return peak
