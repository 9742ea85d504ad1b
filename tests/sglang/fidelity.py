"""One closed queue twice: as the real engine went through it, and as the simulator does.

A pass is the requests that it admitted, in order, and how many tokens each found in the cache.

SGLang caches all of a finished output but its last token, which was never fed back. The simulator's experiments cache all
of it, because their next prompts continue it; `Kept` does as SGLang.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenkeel_contract.queueorder import RequestOrder
from evenkeel_fairshare.replica.contract import AdmissionResult, ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_sglang.hooks import FLAGS
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import EngineRequest

from tests.sglang.engine import ask, tokens

PREFIX_TOKENS = 200
Passes = list[list[tuple[str, int]]]
"""Of every pass (request, tokens found in the cache), in the order of admission."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Clients that each share a prefix, their requests mixed."""

    name: str
    clients: int
    requests_each: int
    most_output_tokens: int = 40
    longest_tail_tokens: int = 60
    segment_tokens: int = PREFIX_TOKENS
    """How finely the simulator cuts prefixes: 1 where chunks end within them."""
    bets: bool = False
    """Whether the engine may hope that outputs end early. They never do: it loses, and retracts."""

    def asks(self) -> list[dict[str, Any]]:
        """The queue, in order of arrival. Request ids begin with the name."""
        rng = random.Random(self.name)
        asks = []
        for client in range(self.clients):
            prefix = tokens(rng, PREFIX_TOKENS)
            for index in range(self.requests_each):
                # No two tails begin alike, or a match would be a token longer than the prefix.
                tail = [2 + index, *tokens(rng, rng.randrange(10, self.longest_tail_tokens))]
                output_tokens = rng.randrange(4, self.most_output_tokens)
                body = ask(f"{self.name}-{client}", prefix + tail, output_tokens=output_tokens)
                if self.bets:
                    body["sampling_params"] |= {
                        "ignore_eos": False,
                        "min_new_tokens": output_tokens,
                    }
                asks.append(body | {"rid": f"{self.name}-{client}-{index}"})
        rng.shuffle(asks)
        return asks


def arrivals(trace: Path, scenario: Scenario) -> list[list[str]]:
    """The scenario's requests in the order in which the engine put them into its queue: those before its first pass that admits, those
    before the second one, and so on. A scheduler that goes on may find only a part of the requests that were sent meanwhile."""
    groups: list[list[str]] = [[]]
    for event in _events(trace, scenario):
        if event["kind"] == "pass":
            groups.append([])
        elif event["kind"] == "arrival" and not event["retracted"]:
            groups[-1].append(event["rid"])
    return groups


def retractions(trace: Path, scenario: Scenario) -> int:
    """How often the engine took a request of the scenario out of the batch again."""
    events = [event for event in _events(trace, scenario) if event["kind"] == "arrival"]
    return sum(event["retracted"] for event in events)


def real_passes(trace: Path, scenario: Scenario) -> Passes:
    """What the engine admitted, by the probe's trace."""
    return [
        [(rid, cached) for rid, cached, _ in event["admitted"]]
        for event in _events(trace, scenario)
        if event["kind"] == "pass" and event["admitted"]
    ]


def _events(trace: Path, scenario: Scenario) -> Iterable[Mapping[str, Any]]:
    """Those of one scenario; the engine may have gone through others before."""
    for line in trace.read_text().splitlines():
        event = json.loads(line)
        rids = [event["rid"]] if "rid" in event else [row[0] for row in event.get("admitted", ())]
        if rids and rids[0].startswith(f"{scenario.name}-"):
            yield event


class Kept(EngineRequest):
    """A request of whose output all but the last token is kept."""

    __slots__ = ()

    def retained(self) -> Sequence[Segment]:
        kept_tokens = self.output_tokens - 1
        return (*self.prompt, Segment(self.output_key, kept_tokens)) if kept_tokens else self.prompt


class UpstreamFcfs(Fcfs):
    """Upstream's own fcfs: who was retracted waits behind all others."""

    def requeue(self, request: Request, now_s: float) -> None:
        self._queue[request] = None


class UpstreamLpm(Lpm):
    """Upstream's own lpm: of those with at most 32 cached tokens that share 32 or more, one goes first."""

    FEW_TOKENS = 32

    def requeue(self, request: Request, now_s: float) -> None:
        self._queue[request] = None

    def admissions(self, now_s: float) -> Any:
        ahead: set[str] = set()
        later: set[Request] = set()
        for request in self.waiting():
            if request.matched_tokens <= self.FEW_TOKENS:
                (later.add(request) if request.client in ahead else ahead.add(request.client))
        order = sorted(self.waiting(), key=lambda r: (r in later, -r.matched_tokens))
        for request in order:
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                del self._queue[request]
            elif outcome is AdmissionResult.NO_ROOM:
                return


UPSTREAM: Mapping[str, Callable[[], ReplicaPolicy]] = {"fcfs": UpstreamFcfs, "lpm": UpstreamLpm}


def policy_of(flag: str, quantum: float, order: RequestOrder) -> ReplicaPolicy:
    """The simulator's policy for a `--schedule-policy`; DLPM with the plug-in's other defaults."""
    if flag in UPSTREAM:
        return UPSTREAM[flag]()
    rules = DeficitRules(quantum=quantum)
    return make_policy(FLAGS[flag], ReplicaPolicyConfig(deficits=rules, order=ORDERS[order.value]))


def simulated_passes(
    scenario: Scenario,
    arrived: Iterable[Sequence[str]],
    *,
    policy: ReplicaPolicy,
    config: EngineConfig,
) -> Passes:
    """What the simulator admits of the scenario, whose requests come as in `arrivals`."""
    engine = Engine(config, policy, next(iter(PROFILES.values())))
    asks = {body["rid"]: body for body in scenario.asks()}
    groups = iter(arrived)

    def submit_next() -> None:
        for rid in next(groups, ()):
            engine.submit(_request(asks[rid], scenario.segment_tokens), now_s)

    passes, now_s = [], 0.0
    submit_next()
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        if step.admitted:
            passes.append([(request.id, request.matched_tokens) for request in step.admitted])
            submit_next()
    return passes


def _request(body: Mapping[str, Any], segment_tokens: int) -> Kept:
    prompt, output_tokens = body["input_ids"], body["sampling_params"]["max_new_tokens"]
    client = body["routing_key"].split(";")[1]
    prefix = [
        Segment(tuple(prompt[at : at + segment_tokens]), segment_tokens)
        for at in range(0, PREFIX_TOKENS, segment_tokens)
    ]
    tail = Segment(tuple(prompt[PREFIX_TOKENS:]), len(prompt) - PREFIX_TOKENS)
    return Kept(
        id=body["rid"],
        client=client,
        tenant=client.rsplit("/", 1)[0],
        arrival_s=0.0,
        input_tokens=len(prompt),
        max_output_tokens=output_tokens,
        target_output_tokens=output_tokens,
        fixed_length=body["sampling_params"]["ignore_eos"],
        prompt=(*prefix, tail),
        output_key=body["rid"],
    )
