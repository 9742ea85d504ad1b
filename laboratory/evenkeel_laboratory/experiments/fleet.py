"""A fleet in virtual time: N engines, a fleet policy and its prefix index, fed with programs.

    program ─▶ match ─▶ select ─▶ engine.submit … iteration ends ─▶ account ─▶ children ─▶ start again

It is the router's routing core (design §5, steps 3, 4 and 6) around the engines that the wall-clock server
runs, with the time of the next event instead of a clock. Prompts are indexed by segments, one block each, when
they are sent; from then on the index follows what the caches store (outputs too) and drop.

At one instant, all ends are applied before all arrivals, and only then do engines start. So a pass of admissions sees
everything that has arrived, as a server's loop drains its socket first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.fleet.contract import (
    EMPTY,
    NOTHING,
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    nothing_held,
    replica_set,
    slots_of,
)
from evenkeel_fairshare.prefix.adapters import AdapterPlaces
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_fairshare.qoe import Expectation, qoe
from evenkeel_fairshare.replica.contract import Arrival, ReplicaPolicy
from evenkeel_simulator.engine.cache import Node, Segment, chain, namespace
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import CostProfile, slower
from evenkeel_simulator.engine.request import EngineRequest, RequestError
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Client, Program, Workload

from evenkeel_laboratory.experiments.central_queue import CentralQueue
from evenkeel_laboratory.experiments.speeds import Speeds
from evenkeel_laboratory.policies.central_dlpm import BATCHING_STEPS, CentralDlpm
from evenkeel_laboratory.policies.fleet_facts import FleetFacts, InformedPolicy
from evenkeel_laboratory.policies.rpm import DeferredRpm

MAX_REPLICAS: Final = 1024
"""A larger number of replicas is taken for a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet of replicas with one configuration."""

    replicas: int
    engine: EngineConfig
    profile: CostProfile
    replica_policy: Callable[[], ReplicaPolicy]
    fleet_policy: FleetPolicy
    cost: Cost
    slowdowns: Sequence[float] = ()
    """Factor on every duration of a replica, by slot, cyclically: (1, 4) makes every second replica four times slower. Empty: none."""
    expectation: Expectation | None = None
    """Measure QoE against it; the engine must keep `token_times`. None: do not measure QoE."""

    def slowdown(self, slot: int) -> float:
        """The factor on the durations of one replica."""
        return self.slowdowns[slot % len(self.slowdowns)] if self.slowdowns else 1.0


class _Run:
    """A program under way."""

    __slots__ = ("blockers", "children", "client", "program")

    def __init__(self, program: Program, client: Client) -> None:
        self.program = program
        self.client = client
        self.blockers = [len(call.after) for call in program.calls]
        """Number of a call's predecessors that have not ended, for each call."""
        self.children: list[list[int]] = [[] for _ in program.calls]
        for number, call in enumerate(program.calls):
            for parent in call.after:
                self.children[parent].append(number)


@dataclass(slots=True, eq=False)
class _FleetRequest(EngineRequest):
    """A dispatched call."""

    run: _Run = field(kw_only=True)
    number: int = field(kw_only=True)
    """Number of the call in the program."""
    dispatch: Dispatch = field(kw_only=True)


class _CacheEvents:
    """Reports to the index what one replica stores and drops, as KV events do (Algorithm 2, stream 3)."""

    def __init__(self, index: PrefixIndex, slot: int) -> None:
        self._index = index
        self._slot = slot

    def stored(self, nodes: Sequence[Node]) -> None:
        """Outputs, which programs extend, and prompts that were evicted while their request waited.

        The papers' listing indexes prompts at dispatch and nothing else (ALGORITHMS §2.4).
        """
        self._index.insert([node.block for node in nodes], self._slot)

    def removed(self, node: Node) -> None:
        self._index.evict((node.block,), self._slot)

    def cleared(self) -> None:
        self._index.drop(self._slot)


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """A run creates no reference cycles (tested); the garbage collector would take an eighth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Fleet:
    """Runs one workload. `on_record` gets each request once it is over."""

    def __init__(self, config: FleetConfig, on_record: Callable[[Record], None]) -> None:
        self.config = config
        self.policy = config.fleet_policy
        self.index = PrefixIndex()
        self.engines = [self._make_engine(slot) for slot in range(config.replicas)]
        self._adapters = AdapterPlaces(config.engine.adapters_per_batch or 1)
        self._on_record = on_record
        self._facts = FleetFacts(index=self.index)
        self._informed = self.policy if isinstance(self.policy, InformedPolicy) else None
        if self._informed is not None:
            self._informed.facts = self._facts
        self.central: CentralQueue[tuple[_Run, int, float]] | None = (
            CentralQueue(self.policy) if isinstance(self.policy, CentralDlpm) else None
        )
        self._outstanding = [0] * config.replicas
        self._routable: ReplicaSet = replica_set(range(config.replicas))
        for slot in range(config.replicas):
            self.policy.joined(slot)
        self._speeds = Speeds(self.policy)
        self._ends: list[tuple[float, int]] = []
        """(end of an iteration, slot); stale if the engine's end has changed since. For an idle engine: when to start it again."""
        self._idle: dict[int, None] = {}
        """Slots whose engine is between iterations and may have work."""
        self.tick_s = inf
        """When `tick` is called next, while there is work."""

    @_no_cycle_collection()
    def run(self, workload: Workload) -> float:
        """Serve a workload to its end; returns when the last request ended."""
        arrivals = _in_order(workload.programs)
        upcoming = next(arrivals, None)
        now_s, ends = 0.0, self._ends
        while upcoming is not None or ends:
            # 1. The next instant at which anything happens.
            arrival_s = inf if upcoming is None else upcoming.arrival_s
            end_s = ends[0][0] if ends else inf
            now_s = self._facts.now_s = min(arrival_s, end_s, self.tick_s)
            # 2. Iterations that end, with the children they release; 3. arrivals; 4. new iterations.
            if self._speeds.due_s <= now_s:
                self._fill_idle(now_s)
            while ends and ends[0][0] <= now_s:
                self._finish(*heappop(ends))
            while upcoming is not None and upcoming.arrival_s <= now_s:
                self._begin(upcoming, workload.client(upcoming.client))
                upcoming = next(arrivals, None)
            self._start_idle(now_s)
            if self.tick_s <= now_s:
                self.tick(now_s)
        stuck = sum(len(engine.policy) for engine in self.engines)
        stuck += len(self.central.policy) if self.central is not None else 0
        if stuck:
            raise RuntimeError(f"{stuck} requests wait in idle engines: the policy admits none")
        return now_s

    def tick(self, now_s: float) -> None:
        """Change the fleet at `tick_s`, if its size changes (`scaling`)."""

    # Requests

    def _begin(self, program: Program, client: Client) -> None:
        run = _Run(program, client)
        for number, call in enumerate(program.calls):
            if not call.after:
                self._send(run, number, call, program.arrival_s)

    def _send(self, run: _Run, number: int, call: Call, now_s: float) -> None:
        dispatch = self._dispatch(run, call)
        slot = self.policy.select(dispatch, self._routable, self._outstanding)
        if slot is not None:
            self._submit(self._request(run, number, dispatch, now_s), slot, now_s)
            return
        if self.central is None:
            raise ValueError(f"fleet policy {self.policy.name} holds requests: not modelled here")
        self.central.hold(dispatch, (run, number, now_s))
        for idle, engine in enumerate(self.engines):
            if engine.busy_until_s is None:
                self._idle[idle] = None

    def _submit(self, request: _FleetRequest, slot: int, now_s: float) -> None:
        engine = self.engines[slot]
        before_s = engine.busy_until_s
        try:
            arrival = engine.submit(request, now_s)
        except RequestError:
            if self.central is not None:  # it was charged when it was pulled
                self.policy.dispatched(request.dispatch, slot)
                self.policy.finished(request.dispatch, slot, NOTHING)
            self._record(request, -1, "refused")
            return
        if arrival is Arrival.REJECTED:
            self._record(request, slot, "rejected")
            return
        self.policy.dispatched(request.dispatch, slot)
        self._outstanding[slot] += 1
        self._adapters.sent(request.adapter, slot)
        if self.policy.matches_prefix:
            self.index.insert(request.dispatch.blocks, slot)
        end_s = engine.busy_until_s
        if end_s is None:
            self._idle[slot] = None
        elif end_s != before_s:
            heappush(self._ends, (end_s, slot))

    def _dispatch(self, run: _Run, call: Call) -> Dispatch:
        """The request as the fleet policy sees it."""
        client, adapter = run.client, run.program.adapter
        blocks: list[int] = []
        block_tokens: list[int] = []
        longest, matched_tokens, adapter_tokens, matched_at = EMPTY, 0, 0, nothing_held
        if self.policy.matches_prefix:
            prompt = (*namespace(adapter), *call.prompt)
            blocks = path_blocks(prompt)
            depth, longest = self.index.match(blocks, self._routable)
            matched_tokens = sum([segment.tokens for segment in prompt[:depth]])

            def matched_at(slot: int) -> int:
                depth, _ = self.index.match(blocks, replica_set([slot]))
                return sum([segment.tokens for segment in prompt[:depth]])

            longest, adapter_tokens = self._adapters.nearest(adapter, longest, self._routable)
            if self._informed is not None:
                block_tokens = [segment.tokens for segment in prompt]
        return Dispatch(
            client=client.name,
            input_tokens=call.input_tokens,
            weight=client.weight,
            longest=longest,
            matched_tokens=matched_tokens,
            adapter_tokens=adapter_tokens,
            blocks=blocks,
            block_tokens=block_tokens,
            matched_at=matched_at,
        )

    def _request(
        self, run: _Run, number: int, dispatch: Dispatch, arrival_s: float
    ) -> _FleetRequest:
        call, client, name = run.program.calls[number], run.client, run.program.id
        return _FleetRequest(
            id=name if len(run.program.calls) == 1 else f"{name}.{number}",
            client=client.name,
            tenant=client.tenant,
            arrival_s=arrival_s,
            input_tokens=call.input_tokens,
            max_output_tokens=call.max_output_tokens,
            client_weight=client.client_weight,
            tenant_weight=client.tenant_weight,
            expected_output_tokens=call.output_tokens,
            prompt=call.prompt,
            target_output_tokens=call.output_tokens,
            output_key=call.output_key,
            adapter=run.program.adapter,
            run=run,
            number=number,
            dispatch=dispatch,
        )

    def _end(self, request: _FleetRequest, slot: int, now_s: float) -> None:
        self._outstanding[slot] -= 1
        usage = Usage(request.input_tokens, request.cached_tokens, request.output_tokens)
        if self._informed is not None:
            assert request.first_token_s is not None
            decoded = request.output_tokens - 1
            self._informed.timed(
                slot,
                ttft_s=request.first_token_s - request.arrival_s,
                itl_s=(now_s - request.first_token_s) / decoded if decoded else None,
            )
        self.policy.finished(request.dispatch, slot, usage)
        self._record(request, slot, "finished")
        run = request.run
        for number in run.children[request.number]:
            run.blockers[number] -= 1
            if not run.blockers[number]:
                self._send(run, number, run.program.calls[number], now_s)

    def _record(self, request: _FleetRequest, slot: int, status: str) -> None:
        self._on_record(
            Record(
                id=request.id,
                program=request.run.program.id,
                client=request.client,
                replica=slot,
                status=status,
                arrival_s=request.arrival_s,
                admitted_s=request.admitted_s,
                first_token_s=request.first_token_s,
                finished_s=request.finished_s,
                input_tokens=request.input_tokens,
                cached_tokens=request.cached_tokens,
                extend_tokens=request.computed_tokens,
                output_tokens=request.output_tokens,
                retractions=request.retractions,
                qoe=self._qoe(request, slot) if status == "finished" else None,
            )
        )

    def _qoe(self, request: _FleetRequest, slot: int) -> float | None:
        expectation, times = self.config.expectation, self.engines[slot].token_times
        if expectation is None or times is None:
            return None
        return qoe(times.take(request), arrival_s=request.arrival_s, expectation=expectation)

    # Engines

    def _fill_idle(self, now_s: float) -> None:
        """Measure the replicas' speeds and fill idle replicas, as the router does once a second (R2)."""
        self._speeds.measure(self.engines, now_s)
        for slot in slots_of(self._routable):
            if not self._outstanding[slot]:
                self._fill(slot, now_s)

    def _fill(self, idle: int, now_s: float) -> None:
        """Relocate a request to an idle replica: of those that waited too long, the one that waited longest."""
        found: tuple[float, int, _FleetRequest] | None = None
        for slot, engine in enumerate(self.engines):
            for request in engine.waiting():
                assert isinstance(request, _FleetRequest)
                if found is not None and found[0] <= request.arrival_s:
                    break  # the others there are younger
                wait_s = now_s - request.arrival_s
                if wait_s > self.policy.longest_wait_s(request.dispatch, slot, idle):
                    found = request.arrival_s, slot, request
                    break
        if found is not None:
            self._relocate(found[2], found[1], idle, now_s)

    def _relocate(self, request: _FleetRequest, at: int, to: int, now_s: float) -> None:
        engine, dispatch = self.engines[at], request.dispatch
        before_s = engine.busy_until_s
        engine.abort(request.id, now_s)
        if engine.busy_until_s is not None and engine.busy_until_s != before_s:
            heappush(self._ends, (engine.busy_until_s, at))
        self._outstanding[at] -= 1
        self.policy.finished(dispatch, at, NOTHING)
        call = request.run.program.calls[request.number]
        held = dispatch.matched_tokens if dispatch.longest >> at & 1 else 0
        prompt = (*namespace(request.adapter), *call.prompt)
        ends = accumulate([segment.tokens for segment in prompt])
        depth = sum([end <= held for end in ends])
        self.index.truncate(dispatch.blocks, depth, at)  # it was not computed there
        again = self._request(
            request.run, request.number, self._dispatch(request.run, call), request.arrival_s
        )
        self._submit(again, to, now_s)

    def _make_engine(self, slot: int) -> Engine:
        return Engine(
            self.config.engine,
            self.config.replica_policy(),
            slower(self.config.profile, self.config.slowdown(slot)),
            cost=self.config.cost,
            observer=_CacheEvents(self.index, slot) if self.policy.matches_prefix else None,
        )

    def _finish(self, end_s: float, slot: int) -> None:
        engine = self.engines[slot]
        if engine.busy_until_s is None:
            self._idle[slot] = None  # no iteration ends here: the policy may admit more now
            return
        if engine.busy_until_s != end_s:
            return  # cut short since, and pushed again
        step = engine.finish()
        self._idle[slot] = None
        for request in step.finished:
            assert isinstance(request, _FleetRequest)
            self._end(request, slot, end_s)

    def _start_idle(self, now_s: float) -> None:
        for slot in self._idle:
            engine = self.engines[slot]
            if self.central is None:
                end_s = engine.start(now_s)
            else:
                end_s = self._start_after_pull(self.central, slot, now_s)
            if end_s is None and isinstance(engine.policy, DeferredRpm):
                end_s = engine.policy.opens_s()
            if end_s is not None and end_s < inf:
                heappush(self._ends, (end_s, slot))
        self._idle.clear()

    def _start_after_pull(
        self, central: CentralQueue[tuple[_Run, int, float]], slot: int, now_s: float
    ) -> float | None:
        """A batching step: wait for the scheduler's answer, or take it and begin an iteration."""
        engine = self.engines[slot]
        until_s = central.blocks(slot, engine, now_s)
        if until_s is not None:
            return until_s
        for dispatch, (run, number, arrival_s) in central.pull(slot, engine, now_s):
            self._submit(self._request(run, number, dispatch, arrival_s), slot, now_s)
        return engine.start(now_s, most_steps=BATCHING_STEPS)


def _in_order(programs: Iterable[Program]) -> Iterator[Program]:
    last_s = 0.0
    for program in programs:
        if not program.arrival_s >= last_s:
            raise ValueError(f"program {program.id} arrives out of order, or before 0")
        last_s = program.arrival_s
        yield program


def path_blocks(prompt: Sequence[Segment]) -> list[int]:
    """The hashes of the cache's nodes on this path (`Node.block`)."""
    blocks = []
    block = 0
    for segment in prompt:
        block = chain(block, segment)
        blocks.append(block)
    return blocks
