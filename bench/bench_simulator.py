"""How fast the simulator is: a million requests over 16 replicas on one core, with the settings that ship: D2LPM + DLPM, automatic
quanta, isolation, reservations by history.

    python bench/bench_simulator.py [--duration 4800] [--replica-policy DLPM] [--fleet-policy D2LPM]

The workload is `bench/workloads/million.yaml`: conversations, judgements and trees of 250 clients with shared
prefixes, near the fleet's capacity. Programs are generated while the simulation runs, which is part of what is
measured; records are counted, not kept, so memory stays flat.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from pathlib import Path

import msgspec
from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import make_workload, read_spec
from evenkeel_simulator.traffic.records import Record

WORKLOADS = Path(__file__).parent / "workloads"


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the simulator, in requests per second.")
    parser.add_argument(
        "--duration", type=float, default=4800.0, help="virtual seconds of arrivals"
    )
    parser.add_argument("--replica-policy", default="DLPM")
    parser.add_argument("--fleet-policy", default="D2LPM")
    options = parser.parse_args()
    spec = read_spec(WORKLOADS / "million.yaml")
    spec = msgspec.structs.replace(spec, duration_s=options.duration)
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        replica_policy=options.replica_policy,
        fleet_policy=options.fleet_policy,
        engine=engine_config(kv_tokens=spec.kv_tokens),
    )
    totals: Counter[str] = Counter()

    def count(record: Record) -> None:
        totals["requests"] += 1
        totals[record.status] += 1
        totals["input"] += record.input_tokens
        totals["cached"] += record.cached_tokens
        totals["output"] += record.output_tokens
        totals["retractions"] += record.retractions

    fleet = Fleet(setup.fleet(), count)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    makespan_s = fleet.run(make_workload("million", spec, seed=0, traces=Path()))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(
        json.dumps(
            {
                "requests": totals["requests"],
                "finished": totals["finished"],
                "replicas": spec.replicas,
                "virtual_s": round(makespan_s, 1),
                "wall_s": round(wall_s, 1),
                "cpu_s": round(cpu_s, 1),
                "requests_per_s": round(totals["requests"] / wall_s),
                "requests_per_cpu_s": round(totals["requests"] / cpu_s),
                "hit_rate": round(totals["cached"] / totals["input"], 3),
                "output_tokens_per_virtual_s": round(totals["output"] / makespan_s),
                "retractions": totals["retractions"],
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
