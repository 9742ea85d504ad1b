"""What one client may cost another whose requests run (design R13 to R15): `python -m bench.isolation [--isolation 0.5]`.

Runs the closed loops of `bench/workloads/isolation/` on one engine in virtual time, without and with the division of engine
time, and prints the victim's figures.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.laboratory.closed_loop import (
    LoopFigures,
    LoopSpec,
    read_loop,
    run_closed_loop,
    total_service_per_s,
)

FOLDER: Final = Path(__file__).parent / "workloads" / "isolation"
FRONT: Final = (0.0, 0.5, 0.75, 0.9, 1.0, 1.25)
BATCHES: Final = (128, 96, 64, 48, 32)


def run(
    spec: LoopSpec, *, quantum: float, isolation: float | None, max_running: int = 4096
) -> Mapping[str, LoopFigures]:
    """One run under DLPM."""
    policy = make_policy("DLPM", ReplicaPolicyConfig(deficits=DeficitRules(quantum=quantum)))
    config = EngineConfig(isolation=isolation, max_running=max_running)
    engine = Engine(config, policy, PROFILES[spec.profile])
    return run_closed_loop(engine, spec.clients, until_s=spec.duration_s)


def row(name: str, spec: LoopSpec, figures: Mapping[str, LoopFigures]) -> str:
    """One line of the table."""
    victim, interval = figures["victim"], (spec.warmup_s, spec.duration_s)
    return (
        f"{name:32} {victim.rate_per_s(*interval):6.2f} {1e3 * victim.mean_gap_s(spec.warmup_s):9.1f} "
        f"{1e3 * victim.p99_gap_s(spec.warmup_s):9.0f} {total_service_per_s(figures.values(), *interval):8.0f}"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", type=float, default=0.5)
    parser.add_argument("--quantum", type=float, default=8000.0, help="Q^u, weighted tokens")
    options = parser.parse_args()
    print(f"{'':32} {'victim':>6} {'ITL mean':>9} {'ITL p99':>9} {'service':>8}")
    print(f"{'workload':32} {'req/s':>6} {'ms':>9} {'ms':>9} {'per s':>8}")
    for path in sorted(FOLDER.glob("*.yaml")):
        spec = read_loop(path)
        for isolation in (None, options.isolation):
            name = path.stem + (", prefill first" if isolation is None else f", {isolation}")
            figures = run(spec, quantum=options.quantum, isolation=isolation)
            print(row(name, spec, figures))
    flood = read_loop(FOLDER / "honest-flood.yaml")
    for batch in BATCHES:
        figures = run(flood, quantum=options.quantum, isolation=None, max_running=batch)
        print(row(f"honest-flood, batch of {batch}", flood, figures))
    for isolation in FRONT:
        figures = run(flood, quantum=options.quantum, isolation=isolation)
        print(row(f"honest-flood, isolation {isolation}", flood, figures))


if __name__ == "__main__":
    main()
