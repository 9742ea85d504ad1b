"""One DLPM admission pass over 4096 waiting requests of 200 clients, beside LPM's over the same queue.

    PYTHONPATH=fairshare python bench/bench_dlpm_pass.py [--waiting 4096]

Matching prefixes is the engine's work and not part of it. Each line is the median over fresh, equal queues; the policies
alternate. CPU time, so that other work on the machine does not count. The target (DESIGN §9) is under 2 ms for a pass.
LPM sorts in the pass, DLPM when a request arrives: the last line has the time of an arrival.

`--opcodes` counts the opcodes of DLPM's pass, which the machine does not change; `--waiting 512 --opcodes` is quick.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import process_time
from types import FrameType
from typing import Any

from evenkeel_fairshare.replica.contract import AdmissionResult, ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.lpm import Lpm

CLIENTS = 200
TENANTS = 8


@dataclass(frozen=True)
class Scenario:
    """A queue, and the number of requests that the engine admits."""

    name: str
    admitted: int | None
    """None: all."""
    quantum: float = 8000.0
    flooder_share: float = 0.0
    """The part of the queue that belongs to one client without cached prefixes and in debt."""
    debt: float = 0.0


SCENARIOS = (
    Scenario("memory full, no request enters", 0),
    Scenario("memory full, all clients in debt", 0, debt=100_000),
    Scenario("64 enter, then memory is full", 64),
    Scenario("512 enter, then memory is full", 512),
    Scenario("64 enter, each three quanta long", 64, quantum=100),
    Scenario("512 enter, each three quanta long", 512, quantum=100),
    Scenario("64 enter, one client floods from deep debt", 64, flooder_share=0.95, debt=1e6),
    Scenario("all enter", None),
)


def queue(scenario: Scenario, waiting: int) -> list[Request]:
    """The same queue every time: clients share prefixes, lengths vary."""
    rng = Random(1)
    prefixes = [rng.randint(0, 6000) for _ in range(CLIENTS)]
    requests = []
    for number in range(waiting):
        floods = rng.random() < scenario.flooder_share
        client = 0 if floods else rng.randrange(CLIENTS)
        shared = 0 if floods else prefixes[client]
        request = Request(
            id=str(number),
            client=f"ns/t{client % TENANTS}/c{client}",
            tenant=f"ns/t{client % TENANTS}",
            arrival_s=0.0,
            input_tokens=shared + 300,
            max_output_tokens=256,
            seed=-scenario.debt if floods or not scenario.flooder_share else 0.0,
        )
        request.matched_tokens = max(0, shared - rng.randrange(64))
        requests.append(request)
    return requests


def pass_s(policy: ReplicaPolicy, admitted: int) -> float:
    """CPU seconds of one pass in which the engine takes `admitted` requests and then has no room."""
    start = process_time()
    conversation = policy.admissions(0.0)
    request = next(conversation, None)
    room = admitted
    try:
        while request is not None:
            if not room:
                conversation.send(AdmissionResult.NO_ROOM)
            room -= 1
            request.extend_tokens = request.input_tokens - request.matched_tokens
            request = conversation.send(AdmissionResult.ADMITTED)
    except StopIteration:
        pass
    elapsed = process_time() - start
    assert room == 0, "the pass must admit as many as the scenario"
    return elapsed


def measure(
    make: Callable[[], ReplicaPolicy], scenario: Scenario, waiting: int
) -> tuple[float, float]:
    """CPU seconds of one pass over a fresh queue, and of an arrival."""
    policy, requests = make(), queue(scenario, waiting)
    start = process_time()
    for request in requests:
        policy.arrive(request, 0.0)
    arrival_s = (process_time() - start) / waiting
    gc.collect()
    return pass_s(policy, waiting if scenario.admitted is None else scenario.admitted), arrival_s


def opcodes(scenario: Scenario, waiting: int) -> int:
    """Opcodes of one pass of DLPM over a fresh queue."""
    policy, count = Dlpm(rules=DeficitRules(quantum=scenario.quantum)), 0
    for request in queue(scenario, waiting):
        policy.arrive(request, 0.0)

    def step(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return step

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return step

    sys.settrace(call)
    try:
        pass_s(policy, waiting if scenario.admitted is None else scenario.admitted)
    finally:
        sys.settrace(None)
    return count


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="DLPM's pass against LPM's")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--waiting", type=int, default=4096)
    parser.add_argument("--opcodes", action="store_true")
    arguments = parser.parse_args()
    if arguments.opcodes:
        for scenario in SCENARIOS:
            if (scenario.admitted or 0) <= arguments.waiting:
                print(f"{scenario.name:52}{opcodes(scenario, arguments.waiting):9}")
        return
    print(f"{'scenario':52}{'LPM ms':>9}{'DLPM ms':>9}{'ratio':>7}")
    arrivals: list[tuple[float, ...]] = []
    for scenario in SCENARIOS:
        if (scenario.admitted or 0) > arguments.waiting:
            continue
        makers = (Lpm, partial(Dlpm, rules=DeficitRules(quantum=scenario.quantum)))
        passes: list[tuple[float, ...]] = []
        for _ in range(arguments.repeat):
            pairs = [measure(make, scenario, arguments.waiting) for make in makers]
            passes.append(tuple(taken_s * 1e3 for taken_s, _ in pairs))
            arrivals.append(tuple(arrival_s * 1e6 for _, arrival_s in pairs))
        lpm, dlpm = (median(column) for column in zip(*passes, strict=True))
        print(f"{scenario.name:52}{lpm:9.3f}{dlpm:9.3f}{dlpm / lpm:7.2f}")
    lpm, dlpm = (median(column) for column in zip(*arrivals, strict=True))
    print(f"{'an arrival, in µs':52}{lpm:9.3f}{dlpm:9.3f}")


if __name__ == "__main__":
    main()
