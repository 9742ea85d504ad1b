"""Reads what the probe wrote down (`probe/evenkeel_probe.py`), for benchmarks and long runs.

A request's way is measured in steps of the engine and in CPU time of its scheduler's thread, which computes the forward
passes too. Neither depends on other load of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Way:
    """One request's way through the engine."""

    arrived_step: int
    arrived_cpu_ns: int
    cached_tokens: int = 0
    """At the first admission."""
    extend_tokens: int = 0
    admitted_step: int | None = None
    finished_step: int | None = None
    finished_cpu_ns: int = 0

    @property
    def steps(self) -> int:
        """Forward passes of the engine from arrival to end."""
        assert self.finished_step is not None
        return self.finished_step - self.arrived_step

    @property
    def cpu_ms(self) -> float:
        """The engine's CPU time from arrival to end."""
        return (self.finished_cpu_ns - self.arrived_cpu_ns) / 1e6


def events(trace: Path) -> Iterator[Mapping[str, Any]]:
    """What was written down, in order."""
    with trace.open() as lines:
        for line in lines:
            yield json.loads(line)


def ways(trace: Path, prefix: str = "") -> dict[str, Way]:
    """By request id, of those whose id begins with `prefix`."""
    found: dict[str, Way] = {}
    step = 0
    for event in events(trace):
        match event["kind"]:
            case "arrival" if event["rid"].startswith(prefix):
                found.setdefault(event["rid"], Way(step, event["cpu_ns"]))
            case "pass":
                for rid, cached_tokens, extend_tokens in event["admitted"]:
                    way = found.get(rid)
                    if way is not None and way.admitted_step is None:
                        way.admitted_step, way.cached_tokens = step, cached_tokens
                        way.extend_tokens = extend_tokens
            case "step":
                step += 1
                for rid in event["finished"]:
                    if rid in found:
                        found[rid].finished_step = step
                        found[rid].finished_cpu_ns = event["cpu_ns"]
    return found
