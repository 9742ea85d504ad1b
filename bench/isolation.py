"""What one client may cost another whose requests run (design R13 to R15): `python -m bench.isolation [--isolation 0.5]`.

Runs the closed loops of `bench/workloads/isolation/` on one engine in virtual time, without and with the division of engine
time, and prints the figures of the measured client.

    python -m bench.isolation --honest flood:1 qa-s1:2.5 qa-s2:2.5 judge-s1:1 [--replicas 1]

prints instead what isolation costs honest fleets: the time that a workload of `bench/workloads/` takes at so many times its load.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import make_workload, read_spec
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.records import Record

from bench.closed_loop import (
    LoopFigures,
    LoopSpec,
    read_loop,
    run_closed_loop,
    total_service_per_s,
)
from bench.fleet_comparison import OURS, TRACES, WORKLOADS, fleet_of, scaled

FOLDER: Final = Path(__file__).parent / "workloads" / "isolation"
ATTACKS: Final = ("alone", "prompts-3000", "prompts-20000", "prompts-1000", "honest-flood")
CHATS: Final = ("prompts-100000", "prompts-400000", "reasoning", "hold")
"""Workloads whose measured client sends at a rate, or shares a prefix: the shipped settings, nothing set."""
FRONT: Final = (0.0, 0.5, 0.75, 0.9, 1.0, 1.25)
BATCHES: Final = (128, 96, 64, 48, 32)


def run(
    name: str,
    *,
    quantum: float | None,
    isolation: float | None = None,
    max_running: int = 4096,
    admission: AdmissionRule = AdmissionRule.SGLANG,
) -> tuple[LoopSpec, Mapping[str, LoopFigures]]:
    """(workload, figures by client) of one run under DLPM."""
    spec = read_loop(FOLDER / f"{name}.yaml")
    policy = make_policy("DLPM", ReplicaPolicyConfig(deficits=DeficitRules(quantum=quantum)))
    rules = EngineConfig(isolation=isolation, max_running=max_running, admission=admission)
    engine = Engine(rules, policy, PROFILES[spec.profile])
    return spec, run_closed_loop(engine, spec.clients, until_s=spec.duration_s)


def most_service_per_s(spec: LoopSpec, rate_per_s: float) -> float:
    """The most service per second of any schedule beside `rate_per_s` requests of the measured client (design note 0006).

    All clients send requests of its shape. A decode step has a fixed time and gives each of its open requests a token at most, so
    its rate needs a number of steps. The rest of the time goes to tokens, each of which has a price. Prefills are free of fixed time
    here, as if one pass could compute all prompts.
    """
    profile, shape = PROFILES[spec.profile], spec.clients[0]
    extend, decoded = shape.input_tokens - shape.shared_tokens, shape.output_tokens - 1
    context = shape.input_tokens + (1 + decoded) / 2
    prefill_ms = extend * (
        profile.prefill_token_ms + profile.prefill_attention_ms * shape.input_tokens
    )
    token_ms = profile.decode_request_ms + profile.decode_kv_token_ms * context
    steps_per_s = rate_per_s * decoded / shape.open_requests
    left_ms = 1000 - steps_per_s * profile.decode_ms
    return left_ms / (prefill_ms + decoded * token_ms) * (extend + 2 * shape.output_tokens)


def chunk_s(spec: LoopSpec) -> float:
    """Seconds of the longest prefill that the rivals' prompts can make: the most that a gap between tokens may grow."""
    profile, budget = PROFILES[spec.profile], EngineConfig().prefill_tokens or 0
    tokens = attention = 0
    for client in spec.clients[1:]:
        for _ in range(client.open_requests):
            chunk = min(client.input_tokens - client.shared_tokens, budget - tokens)
            tokens += chunk
            attention += chunk * client.input_tokens
    ms = profile.prefill_ms + profile.prefill_token_ms * tokens
    return (ms + profile.prefill_attention_ms * attention) / 1000


def row(name: str, spec: LoopSpec, figures: Mapping[str, LoopFigures]) -> str:
    """One line of the table."""
    measured, interval = figures["measured"], (spec.warmup_s, spec.duration_s)
    service, rate = total_service_per_s(figures.values(), *interval), measured.rate_per_s(*interval)
    alike = len({(one.input_tokens, one.output_tokens) for one in spec.clients}) == 1
    limit = f"{most_service_per_s(spec, rate):8.0f}" if alike else ""
    return (
        f"{name:32} {rate:6.2f} {1e3 * measured.mean_gap_s(spec.warmup_s):9.1f} "
        f"{1e3 * measured.p99_gap_s(spec.warmup_s):9.0f} {1e3 * chunk_s(spec):9.0f} {service:8.0f} {limit}"
    )


def chat_row(name: str) -> str:
    """One line: the measured client beside its rival, under the settings that ship."""
    spec = read_loop(FOLDER / f"{name}.yaml")
    fleet = Setup(profile=find_profile(spec.profile), engine=engine_config()).fleet()
    engine = Engine(fleet.engine, fleet.replica_policy(), fleet.profile)
    figures = run_closed_loop(engine, spec.clients, until_s=spec.duration_s)
    from_s, measured = spec.warmup_s, figures["measured"]
    service = total_service_per_s(figures.values(), from_s, spec.duration_s)
    return (
        f"{name:32} {measured.rate_per_s(from_s, spec.duration_s):6.2f} {measured.ttft_mean_s(from_s):9.2f} "
        f"{measured.ttft_s(from_s, 99):9.2f} {measured.hit_rate(from_s):9.2f} {service:8.0f}"
    )


def honest(name: str, load: float, *, replicas: int | None, isolation: float) -> str:
    """One line: the time that a fleet needs for a workload, without and with isolation, and the part of cached tokens."""
    spec = scaled(read_spec(WORKLOADS / f"{name}.yaml"), load, replicas)
    took_s, hits = [], []
    for setting in (None, isolation):
        fleet = fleet_of(OURS, spec)
        fleet = replace(fleet, engine=replace(fleet.engine, isolation=setting))
        records: list[Record] = []
        work = make_workload(name, spec, seed=0, traces=TRACES)
        took_s.append(Fleet(fleet, records.append).run(work))
        inputs = sum(record.input_tokens for record in records)
        hits.append(sum(record.cached_tokens for record in records) / inputs)
    return (
        f"{f'{name} x{load:g}, D={spec.replicas}':32} {took_s[0]:8.1f} {took_s[1]:8.1f} "
        f"{took_s[1] / took_s[0] - 1:+8.1%} {hits[0]:8.3f} {hits[1]:8.3f}"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", type=float, default=0.5)
    parser.add_argument("--quantum", type=float, help="Q^u, weighted tokens; measured by default")
    parser.add_argument("--honest", nargs="+", metavar="WORKLOAD:LOAD")
    parser.add_argument("--replicas", type=int, help="of an honest fleet")
    options = parser.parse_args()
    if options.honest:
        print(
            f"{'seconds, hit rate':32} {'Off':>8} {options.isolation:8} {'':8} {'Off':>8} {options.isolation:8}"
        )
        for workload in options.honest:
            name, _, load = workload.partition(":")
            fleet = {"replicas": options.replicas, "isolation": options.isolation}
            print(honest(name, float(load or 1), **fleet), flush=True)
        return
    quantum = options.quantum
    print(
        f"{'':32} {'measured':>6} {'ITL mean':>9} {'ITL p99':>9} {'chunk':>9} {'service':>8} {'limit':>8}"
    )
    print(f"{'workload':32} {'req/s':>6} {'ms':>9} {'ms':>9} {'ms':>9} {'per s':>8} {'per s':>8}")
    for name in ATTACKS:
        print(row(f"{name}, prefill first", *run(name, quantum=quantum)))
        played = run(name, quantum=quantum, isolation=options.isolation)
        print(row(f"{name}, {options.isolation}", *played))
    print(f"{'':32} {'req/s':>6} {'TTFT, s':>9} {'p99, s':>9} {'hits':>9} {'service':>8}")
    for name in CHATS:
        print(chat_row(name))
    for batch in BATCHES:
        played = run("honest-flood", quantum=quantum, max_running=batch)
        print(row(f"honest-flood, batch of {batch}", *played))
    for isolation in FRONT:
        played = run("honest-flood", quantum=quantum, isolation=isolation)
        print(row(f"honest-flood, isolation {isolation}", *played))
    for rule in (AdmissionRule.SGLANG, AdmissionRule.HISTORY):
        played = run("lying-flood", quantum=quantum, admission=rule)
        print(row(f"lying-flood, admission {rule.value}", *played))
    spec, figures = run("rejoin", quantum=quantum)
    print("rejoin: weighted tokens per second of the old client and of the measured one, by 2 s")
    for at in range(int(spec.warmup_s), int(spec.warmup_s) + 16, 2):
        rates = [figures[name].service_per_s(at, at + 2) for name in ("old", "measured")]
        print(f"{at:4} s {rates[0]:8.0f} {rates[1]:8.0f}")


if __name__ == "__main__":
    main()
