"""The engine against what must hold of any engine: conservation, no over-commitment, jump ≡ single steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from unittest.mock import patch

import msgspec
import pytest
from evenkeel_simulator.engine.admission import SGLangAdmission
from evenkeel_simulator.engine.cache import Node, RadixCache, Segment
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.engine.request import EngineRequest, State
from evenkeel_simulator.engine.step import Step
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.unit.evenkeel_simulator.engine_support import (
    PROFILE,
    LongestMatch,
    Queue,
    insert,
    make_request,
)

POOL = 200
KEYS = st.sampled_from("abc")
PROMPTS = st.lists(KEYS, max_size=4).map(
    # A key's length follows from its place, so that equal paths are equal tokens.
    lambda keys: tuple((key, 9 + 5 * depth + ord(key) % 3) for depth, key in enumerate(keys))
)


@dataclass(frozen=True)
class Event:
    at_s: float
    prompt: tuple[tuple[str, int], ...]
    tail: int
    output: int
    slack: int
    client: str
    abort_after_s: float | None


EVENTS = st.lists(
    st.builds(
        Event,
        at_s=st.floats(0, 3).map(lambda x: round(x, 3)),
        prompt=PROMPTS,
        tail=st.integers(1, 20),
        output=st.integers(1, 40),
        slack=st.integers(0, 40),
        client=st.sampled_from(["ns/t/a", "ns/t/b", "ns/u/c"]),
        abort_after_s=st.none() | st.floats(0, 2).map(lambda x: round(x, 3)),
    ),
    min_size=1,
    max_size=12,
)
CONFIGS = st.builds(
    EngineConfig,
    kv_tokens=st.just(POOL),
    admission=st.sampled_from(AdmissionRule),
    max_running=st.sampled_from([1, 3, 100]),
    prefill_tokens=st.sampled_from([None, 7, 50]),
    mixed=st.booleans(),
    prefix_cache=st.booleans(),
    share_in_batch=st.booleans(),
    decode_steps_between_passes=st.sampled_from([0, 3]),
    isolation=st.sampled_from([None, 0.0, 0.5, 2.0]),
    retry_when_full=st.booleans(),
)
POLICIES = st.sampled_from([Queue, LongestMatch])


def check_memory(engine: Engine) -> None:
    """The pool adds up, nothing is over-committed, and locks are those of the batch."""
    memory, cache = engine.memory, engine.memory.cache
    nodes: list[Node] = []
    stack = list(cache.root.children.values())
    while stack:
        nodes.append(stack.pop())
        stack.extend(nodes[-1].children.values())
    batch = list(engine.running())
    locked: set[int] = set()
    for request in batch:
        node = request.node
        while node is not None:
            locked.add(id(node))
            node = node.parent
    assert memory.available >= 0
    assert memory.free + sum(r.pending_tokens for r in batch) >= 0  # the rest is promised
    assert cache.nodes == len(nodes)
    assert cache.tokens == sum(n.segment.tokens for n in nodes)
    assert cache.evictable == sum(n.segment.tokens for n in nodes if id(n) not in locked)
    assert {id(n) for n in nodes if n.locks} == locked - {id(cache.root)}
    assert memory.private == sum(r.held_tokens for r in batch)
    for request in batch:
        held = request.path_tokens + request.held_tokens
        # Of a running request all but its last token, which is yet to be fed back.
        assert held >= request.context_tokens - (request.state is State.RUNNING)
        assert held <= request.context_tokens + request.path_tokens


def drive(
    config: EngineConfig,
    policy: Queue,
    events: list[Event],
    *,
    jump: bool,
    profile: CostProfile = PROFILE,
) -> tuple[Engine, list[EngineRequest], list[tuple[str, ...]]]:
    """Run the events to the end; the engine, its requests, and a log of all that matters with its times."""
    engine = Engine(config, policy, profile)
    requests, agenda = schedule(events)
    log: list[tuple[str, ...]] = []
    now_s = 0.0
    while agenda or engine.has_work:
        end_s = engine.busy_until_s
        if end_s is None:
            end_s = engine.start(now_s, inf if jump else now_s)
        if end_s is not None and (not agenda or agenda[0][0] >= end_s):
            log += entries(engine.finish())
            now_s = end_s
        else:
            at_s, _, what = agenda.pop(0)
            if end_s is None:
                now_s = max(now_s, at_s)
            if isinstance(what, str):
                engine.abort(what, at_s)
            else:
                engine.submit(what, at_s)
        check_memory(engine)
    return engine, requests, log


def schedule(
    events: list[Event],
) -> tuple[list[EngineRequest], list[tuple[float, int, EngineRequest | str]]]:
    """The requests, and what to do when: a request is submitted, an id aborted."""
    agenda: list[tuple[float, int, EngineRequest | str]] = []
    requests = []
    for number, event in enumerate(events):
        request = make_request(
            f"r{number}",
            prompt=event.prompt,
            tail=event.tail,
            output=event.output,
            max_output=event.output + event.slack,
            client=event.client,
            arrival_s=event.at_s,
            output_key=f"out{number}",
        )
        requests.append(request)
        agenda.append((event.at_s, number, request))
        if event.abort_after_s is not None:
            agenda.append((event.at_s + event.abort_after_s, 100 + number, request.id))
    return requests, sorted(agenda, key=lambda item: item[:2])


def entries(step: Step) -> list[tuple[str, ...]]:
    """What a step did, with its times to the last bit."""
    return [
        (name, *[request.id for request in requests], at_s.hex())
        for name, requests, at_s in (
            ("admitted", step.admitted, step.start_s),
            ("retracted", step.retracted, step.start_s),
            ("finished", step.finished, step.end_s),
        )
        if requests
    ]


@examples(100)
@given(config=CONFIGS, policy=POLICIES, events=EVENTS, waiting_ms=st.sampled_from([0.0, 0.7]))
def test_jumps_do_exactly_what_single_steps_do(
    config: EngineConfig, policy: type[Queue], events: list[Event], waiting_ms: float
) -> None:
    profile = msgspec.structs.replace(PROFILE, waiting_ms=waiting_ms)
    runs = [drive(config, policy(), events, jump=jump, profile=profile) for jump in (False, True)]
    (single, single_requests, single_log), (jumped, jumped_requests, jumped_log) = runs
    assert jumped_log == single_log
    for one, other in zip(single_requests, jumped_requests, strict=True):
        for name in (
            "state",
            "output_tokens",
            "first_token_s",
            "finished_s",
            "computed_tokens",
            "cached_tokens",
            "retractions",
        ):
            assert getattr(one, name) == getattr(other, name), (one.id, name)
    assert single.policy.produced == jumped.policy.produced  # type: ignore[attr-defined]
    for client, totals in single.accounts.clients.items():
        other_totals = jumped.accounts.clients[client]
        assert (totals.service, totals.output_tokens, totals.extend_tokens) == (
            other_totals.service,
            other_totals.output_tokens,
            other_totals.extend_tokens,
        )


@examples(100)
@given(config=CONFIGS, policy=POLICIES, events=EVENTS)
def test_every_request_ends_and_tokens_are_conserved(
    config: EngineConfig, policy: type[Queue], events: list[Event]
) -> None:
    engine, requests, _ = drive(config, policy(), events, jump=True)
    for request in requests:
        assert request.state in (State.FINISHED, State.ABORTED)
        if request.state is State.FINISHED:
            assert request.output_tokens == request.target_output_tokens
            assert request.first_token_s is not None
            if not request.retractions:
                assert request.cached_tokens + request.computed_tokens == request.input_tokens
            if not config.prefix_cache:
                assert request.computed_tokens >= request.input_tokens
    totals = engine.accounts.clients.values()
    assert sum(t.output_tokens for t in totals) == sum(r.output_tokens for r in requests)
    assert sum(t.extend_tokens for t in totals) == sum(r.computed_tokens for r in requests)
    assert all(t.running == 0 for t in totals)
    loads = engine.loads()
    assert (loads.running, loads.waiting, loads.used_tokens) == (0, 0, 0)
    assert len(engine.policy.left) == len(requests)  # type: ignore[attr-defined]


@examples(100)
@given(events=EVENTS, policy=POLICIES)
def test_under_reservation_nothing_is_ever_retracted(
    events: list[Event], policy: type[Queue]
) -> None:
    config = EngineConfig(kv_tokens=POOL, admission=AdmissionRule.RESERVATION)
    _, requests, _ = drive(config, policy(), events, jump=True)
    assert not any(request.retractions for request in requests)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_crowd_that_outgrows_memory_is_retracted_and_still_ends(mixed: bool) -> None:
    crowd = [Event(0.01 * n, (("a", 3),), 10, 60, 0, "ns/t/a", None) for n in range(40)]
    config = EngineConfig(kv_tokens=POOL, mixed=mixed)
    runs = [drive(config, Queue(), crowd, jump=jump) for jump in (False, True)]
    assert runs[0][2] == runs[1][2]
    assert sum(request.retractions for request in runs[0][1]) > 0


@examples(40)
@given(
    sizes=st.lists(st.tuples(st.integers(5, 40), st.integers(30, 90)), min_size=4, max_size=20),
    mixed=st.booleans(),
)
def test_retracted_requests_come_back_and_end_like_others(
    sizes: list[tuple[int, int]], mixed: bool
) -> None:
    crowd = [Event(0.0, (("a", 3),), tail, output, 0, "ns/t/a", None) for tail, output in sizes]
    config = EngineConfig(kv_tokens=POOL, mixed=mixed, admission=AdmissionRule.SGLANG)
    # A bet as good as lost, so that retractions are many.
    with patch.object(SGLangAdmission, "INITIAL", 0.1):
        runs = [drive(config, Queue(), crowd, jump=jump) for jump in (False, True)]
    assert runs[0][2] == runs[1][2]
    for request in runs[1][1]:
        assert request.state is State.FINISHED
        assert request.output_tokens == request.target_output_tokens


class NaiveCache:
    """A set of cached paths, searched by brute force."""

    def __init__(self) -> None:
        self.paths: set[tuple[Segment, ...]] = set()

    def match(self, prompt: tuple[Segment, ...]) -> int:
        depth = 0
        while depth < len(prompt) and prompt[: depth + 1] in self.paths:
            depth += 1
        return sum(segment.tokens for segment in prompt[:depth])


class CacheMachine(RuleBasedStateMachine):
    """The radix cache, its observer and its followers against `NaiveCache`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = NaiveCache()
        self.cache = RadixCache(self)
        self.locked: list[Node] = []
        self.seekers: list[EngineRequest] = []

    # The observer
    def stored(self, nodes: list[Node]) -> None:
        for node in nodes:
            assert path_of(node) not in self.model.paths
            self.model.paths.add(path_of(node))

    def removed(self, node: Node) -> None:
        assert path_of(node) not in self.locked_paths()
        self.model.paths.remove(path_of(node))

    def cleared(self) -> None:
        self.model.paths.clear()

    def locked_paths(self) -> set[tuple[Segment, ...]]:
        paths = [path_of(node) for node in self.locked]
        return {path[: n + 1] for path in paths for n in range(len(path))}

    @rule(prompt=PROMPTS)
    def insert(self, prompt: tuple[tuple[str, int], ...]) -> None:
        insert(self.cache, self.cache.root, [Segment(*piece) for piece in prompt])

    @rule(tokens=st.integers(1, 30))
    def evict(self, tokens: int) -> None:
        evictable = self.cache.evictable
        assert self.cache.evict(tokens) >= min(tokens, evictable)

    @rule(prompt=PROMPTS)
    def lock(self, prompt: tuple[tuple[str, int], ...]) -> None:
        self.locked.append(self.cache.match([Segment(*piece) for piece in prompt]).node)
        self.cache.lock(self.locked[-1])

    @precondition(lambda self: self.locked)
    @rule()
    def unlock(self) -> None:
        self.cache.unlock(self.locked.pop())

    @rule(prompt=PROMPTS)
    def follow(self, prompt: tuple[tuple[str, int], ...]) -> None:
        self.seekers.append(make_request("s", prompt=prompt, tail=1))
        self.cache.follow(self.seekers[-1])

    @precondition(lambda self: self.seekers)
    @rule(data=st.data())
    def unfollow(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.seekers) - 1))
        self.cache.unfollow(self.seekers.pop(place))

    @rule()
    def clear(self) -> None:
        locked = bool(self.locked_paths())
        assert self.cache.clear() is not locked

    @invariant()
    def sizes_agree(self) -> None:
        assert self.cache.nodes == len(self.model.paths)
        assert self.cache.tokens == sum(path[-1].tokens for path in self.model.paths)
        locked = sum(path[-1].tokens for path in self.locked_paths())
        assert self.cache.evictable == self.cache.tokens - locked

    @invariant()
    def followers_know_their_match(self) -> None:
        for seeker in self.seekers:
            assert seeker.matched_tokens == self.model.match(tuple(seeker.prompt))


TestCacheAgainstANaiveOne = CacheMachine.TestCase
TestCacheAgainstANaiveOne.settings = examples(60, stateful_step_count=30)


def path_of(node: Node) -> tuple[Segment, ...]:
    path: list[Segment] = []
    while node.parent is not None:
        path.append(node.segment)
        node = node.parent
    return tuple(reversed(path))
