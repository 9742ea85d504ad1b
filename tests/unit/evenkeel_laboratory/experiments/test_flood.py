"""The benchmark's flood (`bench/workloads/engine/flood.yaml`) in virtual time: what the engine's rig shows in minutes, in a second."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig
from evenkeel_laboratory.policies.registry import policies
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import EngineRequest

WORKLOAD = yaml.safe_load(
    (Path(__file__).parents[4] / "bench/workloads/engine/flood.yaml").read_text()
)
REPLY_STEPS = 1
"""An answer reaches its client, and the next request the engine, while a step is under way."""


class Seen(NamedTuple):
    """What the modest client saw, and what was found in the cache of all input."""

    worst_steps: int
    hit_rate: float


def requests(name: str, seed: int) -> Iterator[EngineRequest]:
    rng, client = random.Random(f"{name}{seed}"), WORKLOAD[name]
    for number in range(client["requests"]):
        prefix = Segment((name, rng.randrange(client["prefixes"])), client["prefix_tokens"])
        tail = Segment((name, "tail", number), client["tail_tokens"])
        yield EngineRequest(
            id=f"{name}-{number}",
            client=f"ns/{name}/{name}",
            tenant=f"ns/{name}",
            arrival_s=0.0,
            input_tokens=prefix.tokens + tail.tokens,
            max_output_tokens=client["output_tokens"],
            target_output_tokens=client["output_tokens"],
            fixed_length=True,
            prompt=(prefix, tail),
        )


def play(policy: str, seed: int, *, flooded: bool = True, printed: bool = False) -> Seen:
    """Both keep their requests under way until they have sent all; the modest one begins after the flooder's first answer."""
    config = ReplicaPolicyConfig(deficits=DeficitRules(quantum=WORKLOAD["quantum"]))
    engine = Engine(
        EngineConfig(
            kv_tokens=WORKLOAD["pool_tokens"],
            max_running=WORKLOAD["running"],
            isolation=None,  # it hides the difference of the two orders
        ),
        policies(printed=printed, artifact=False)[policy](config),
        next(iter(PROFILES.values())),
    )
    to_come = {name: requests(name, seed) for name in ("modest", "flooder")}
    due: defaultdict[int, list[EngineRequest]] = defaultdict(list)
    arrived: dict[str, int] = {}
    steps: dict[str, int] = {}
    done: list[EngineRequest] = []
    step, now_s, flooding = 0, 0.0, flooded
    for name in ("flooder",) if flooded else ("modest",):
        due[0] = [next(to_come[name]) for _ in range(WORKLOAD[name]["outstanding"])]
    while due or engine.has_work:
        for request in due.pop(step, ()):
            engine.submit(request, now_s)
            arrived[request.id] = step
        did = engine.step(now_s)
        step += 1
        now_s = did.end_s if did else now_s
        for request in did.finished if did else ():
            steps[request.id] = step - arrived[request.id]
            done.append(request)
            begun = WORKLOAD["modest"]["outstanding"] if flooding else 0
            flooding = False
            again = [to_come["modest"]] * begun + [to_come[request.id.partition("-")[0]]]
            due[step + REPLY_STEPS] += [one for one in (next(them, None) for them in again) if one]
    modest = [count for id, count in steps.items() if id.startswith("modest")]
    assert len(modest) == WORKLOAD["modest"]["requests"]
    cached, input_tokens = (
        sum(one.cached_tokens for one in done),
        sum(one.input_tokens for one in done),
    )
    return Seen(max(modest), cached / input_tokens)


@pytest.mark.parametrize("seed", range(3))
def test_beside_a_flood_a_modest_client_keeps_its_share_and_a_warm_cache(seed):
    ideal_steps = 2 * play("DLPM", seed, flooded=False).worst_steps
    lpm, printed = play("LPM", seed), play("DLPM", seed, printed=True)
    ours = play("DLPM", seed)
    assert ours.worst_steps <= 1.5 * ideal_steps < printed.worst_steps < lpm.worst_steps
    assert printed.hit_rate < lpm.hit_rate - 0.05 < ours.hit_rate
