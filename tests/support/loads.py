"""Loads for the abstract engine, drawn by hypothesis, and what happened under them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job, Room

MAX_INPUT_TOKENS = 40
MAX_OUTPUT_TOKENS = 40


@dataclass(frozen=True)
class Client:
    """Who sends."""

    tenant: str
    name: str
    tenant_weight: int = 1
    weight: int = 1

    @property
    def identity(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True)
class Sending:
    """One request of a load: who sends what, when."""

    step: int
    client: Client
    input_tokens: int
    max_output_tokens: int
    true_output_tokens: int
    prefix: str = ""
    prefix_tokens: int = 0

    def job(self, number: int) -> Job:
        return Job(
            id=f"r{number}",
            client=self.client.identity,
            tenant=self.client.tenant,
            arrival_s=float(self.step),
            input_tokens=self.input_tokens,
            max_output_tokens=self.max_output_tokens,
            client_weight=self.client.weight,
            tenant_weight=self.client.tenant_weight,
            true_output_tokens=self.true_output_tokens,
            prefix=self.prefix,
            prefix_tokens=self.prefix_tokens,
        )


@dataclass(frozen=True)
class Load:
    """What is sent to one replica."""

    memory_tokens: int
    sendings: tuple[Sending, ...]

    @property
    def clients(self) -> list[Client]:
        return sorted({s.client for s in self.sendings}, key=lambda client: client.identity)


@st.composite
def loads(
    draw: st.DrawFn, *, tenants: int = 1, weighted: bool = False, prefixes: bool = True
) -> Load:
    """Bursts of a few clients into a small memory, so that most of them wait most of the time."""
    weights = st.sampled_from([1, 2, 5]) if weighted else st.just(1)
    clients = []
    for tenant in range(tenants):
        tenant_weight = draw(weights)
        for name in range(draw(st.integers(1, 3)) if tenants > 1 else draw(st.integers(2, 4))):
            clients.append(Client(f"ns/t{tenant}", f"c{name}", tenant_weight, draw(weights)))
    sending = st.builds(
        lambda step, client, size, most, made, prefix, shared: Sending(
            step, client, size, max(most, made), min(most, made), prefix, min(shared, size)
        ),
        st.integers(0, 30),
        st.sampled_from(clients),
        st.integers(1, MAX_INPUT_TOKENS),
        st.integers(1, MAX_OUTPUT_TOKENS),
        st.integers(1, MAX_OUTPUT_TOKENS),
        st.sampled_from(["", "p", "q", "r", "s", "t"]) if prefixes else st.just(""),
        st.integers(1, MAX_INPUT_TOKENS),
    )
    sendings = draw(st.lists(sending, min_size=20, max_size=70))
    memory_tokens = draw(st.integers(MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS, 250))
    return Load(memory_tokens, tuple(sorted(sendings, key=lambda s: s.step)))


def newcomer(tenants: int) -> Load:
    """Two clients that wait all the time, and one of the last tenant that comes while they do: its first turn (R17)."""
    senders = [Client("ns/t0", "c0"), Client("ns/t0", "c1")]
    late = Client(f"ns/t{tenants - 1}", "late")
    waiting = [Sending(0, client, 30, 20, 20) for client in senders for _ in range(8)]
    return Load(120, (*waiting, *(Sending(28, late, 30, 20, 20) for _ in range(4))))


@dataclass
class Trace:
    """One party's trajectory, one value per event of the run."""

    service: list[float] = field(default_factory=list)
    """W(0, t), weighted tokens."""
    queued: list[bool] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    probes: list[Any] = field(default_factory=list)
    """What the test's `probe` said of it; None where it said nothing."""


Probe = Callable[[ReplicaPolicy], Mapping[str, Any]]
"""What the policy holds for or against each party, to be noted at every event."""


@dataclass
class Run:
    """A load's whole life under a policy. Parties are clients and tenants, by identity."""

    engine: AbstractEngine
    parties: dict[str, Trace]
    jobs: list[Job]

    def backlogged(self, *parties: str) -> Iterator[range]:
        """Maximal intervals of events in which all of `parties` have a waiting request at every event."""
        queued = [
            all(flags) for flags in zip(*(self.parties[p].queued for p in parties), strict=True)
        ]
        start = None
        for event, flag in enumerate([*queued, False]):
            if flag and start is None:
                start = event
            elif not flag and start is not None:
                yield range(start, event)
                start = None


def run(
    policy: ReplicaPolicy,
    load: Load,
    *,
    cost: Cost | None = None,
    full_input: bool = False,
    room: Room = Room.RESERVE,
    probe: Probe = lambda policy: {},
    prepare: Callable[[Job], None] = lambda job: None,
) -> Run:
    """Play `load` to its end. Service is measured here, from what the engine did, by h = `cost`.

    `full_input`: input counts in full, cached or not (VTC's service), instead of what was computed (DLPM's).
    """
    parties = {
        party: Trace() for client in load.clients for party in (client.identity, client.tenant)
    }
    served = dict.fromkeys(parties, 0.0)
    queued = dict.fromkeys(parties, 0)
    running = dict.fromkeys(parties, 0)
    counted: dict[
        Job, tuple[int, int]
    ] = {}  # what of a job is in `served`: admissions, output tokens
    h = cost or LinearCost()

    def gain(job: Job) -> float:
        admissions, made = counted.get(job, (0, 0))
        counted[job] = (job.admissions, job.output_tokens)
        # After a preemption the output so far is computed again.
        computed = job.input_tokens + job.output_tokens if full_input else job.extend_tokens
        admitted = h.input_cost(computed) if job.admissions > admissions else 0.0
        return admitted + h.output_cost(computed, made, job.output_tokens)

    def observe(engine: AbstractEngine, job: Job) -> None:
        gained = gain(job)
        for party in (job.client, job.tenant):
            served[party] += gained
            queued[party] = sum(party in (other.client, other.tenant) for other in engine.queue)
            running[party] = sum(party in (other.client, other.tenant) for other in engine.batch)
        held = probe(policy)
        for party, trace in parties.items():
            trace.service.append(served[party])
            trace.queued.append(queued[party] > 0)
            trace.running.append(running[party])
            trace.probes.append(held.get(party))

    engine = AbstractEngine(policy, load.memory_tokens, room=room, observe=observe)
    jobs = [sending.job(number) for number, sending in enumerate(load.sendings)]
    for job in jobs:
        prepare(job)
    pending = [*zip(load.sendings, jobs, strict=True)]
    while pending or engine.queue or engine.batch:
        while pending and pending[0][0].step <= engine.step_number:
            engine.submit(pending.pop(0)[1])
        engine.step()
    return Run(engine, parties, jobs)


def largest_rise(values: Iterable[float]) -> float:
    """The largest values[t2] - values[t1] over t1 <= t2."""
    lowest, largest = float("inf"), 0.0
    for value in values:
        lowest = min(lowest, value)
        largest = max(largest, value - lowest)
    return largest
