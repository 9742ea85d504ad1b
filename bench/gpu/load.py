"""The load: a workload of the fleet's experiments, at a rate for one engine. Pure.

The rates of the files are meant for simulated
fleets. Of them only the ratio between clients is kept: how much an engine manages is measured first, everything at
once (`burst`), and arrivals are then set to a multiple of that (`paced`).
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from evenkeel_laboratory.experiments.generators import ProgramSpec
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec, make_workload
from evenkeel_simulator.traffic.workload import Program

_ENDLESS_S = 1e6


def shrunk(spec: WorkloadSpec, factor: float) -> WorkloadSpec:
    """The same programs with all token counts divided, for engines that are toys; every count stays at least 1."""
    clients = tuple(
        msgspec.structs.replace(client, program=_shrunk(client.program, factor))
        for client in spec.clients
    )
    return msgspec.structs.replace(spec, clients=clients)


def burst(spec: WorkloadSpec, count: int, *, seed: int) -> list[Program]:
    """The first `count` programs, all due at once, in the clients' ratio."""
    endless = msgspec.structs.replace(spec, duration_s=_ENDLESS_S)
    first = islice(make_workload("burst", endless, seed=seed, traces=Path()).programs, count)
    return [Program(program.id, program.client, 0.0, program.calls) for program in first]


def paced(
    spec: WorkloadSpec, *, programs_per_s: float, duration_s: float, seed: int
) -> list[Program]:
    """Programs that arrive for `duration_s` at this rate over all clients, in the clients' ratio."""
    total = sum(client.arrivals.rate_per_s * client.count for client in spec.clients)
    clients = tuple(
        msgspec.structs.replace(
            client,
            arrivals=msgspec.structs.replace(
                client.arrivals, rate_per_s=client.arrivals.rate_per_s * programs_per_s / total
            ),
        )
        for client in spec.clients
    )
    scaled = msgspec.structs.replace(spec, clients=clients, duration_s=duration_s)
    return list(make_workload("paced", scaled, seed=seed, traces=Path()).programs)


def longest_call(programs: list[Program]) -> int:
    """Tokens of the longest context, input and output, which an engine must be able to serve."""
    return max(
        call.input_tokens + call.output_tokens for program in programs for call in program.calls
    )


def _shrunk(program: ProgramSpec, factor: float) -> ProgramSpec:
    def divided(value: int) -> int:
        return max(1, round(value / factor))

    changes: dict[str, Any] = {}
    for name in program.__struct_fields__:
        value = getattr(program, name)
        if name.endswith("_tokens") and value is not None:
            is_several = isinstance(value, tuple)
            changes[name] = tuple(map(divided, value)) if is_several else divided(value)
    return msgspec.structs.replace(program, **changes)
