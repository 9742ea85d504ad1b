"""What the benchmarks of the real engine make of a trace and of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from evenkeel_contract.reports import ClientReport

from bench.engine import bounds, contended
from tests.sglang.ways import ways


def written(folder: Path, *events: Mapping[str, Any]) -> Path:
    trace = folder / "trace"
    trace.write_text("".join(json.dumps({"cpu_ns": 0, **event}) + "\n" for event in events))
    return trace


def arrival(rid: str, *, cpu_ns: int = 0, retracted: bool = False) -> dict[str, Any]:
    return {"kind": "arrival", "rid": rid, "cpu_ns": cpu_ns, "retracted": retracted}


def admission(*rows: tuple[str, int, int]) -> dict[str, Any]:
    return {"kind": "pass", "admitted": rows}


def step(*finished: str, cpu_ns: int = 0) -> dict[str, Any]:
    return {"kind": "step", "finished": finished, "made": {}, "cpu_ns": cpu_ns}


def test_a_way_is_counted_in_steps_and_cpu_time_of_the_engine(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        step("warmup"),
        arrival("a-0", cpu_ns=1_000_000),
        arrival("b-0"),
        admission(("a-0", 200, 20)),
        step(),
        step("a-0", cpu_ns=4_000_000),
        arrival("a-0", retracted=True),  # never taken for a new one
        admission(("a-0", 210, 10)),
    )
    way = ways(trace, "a-")["a-0"]
    assert (way.steps, way.cpu_ms) == (2, 3.0)
    assert (way.cached_tokens, way.extend_tokens) == (200, 20)
    assert set(ways(trace)) == {"a-0", "b-0"}


def test_what_ran_together_is_counted_by_final_lengths_until_it_ends(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        admission(("chat-1-100", 0, 90), ("chat-2-50", 0, 40)),
        step("chat-1-100"),
        admission(("solo-3-70", 0, 60)),
        arrival("solo-3-70", retracted=True),
        admission(("solo-4-30", 0, 20)),
        step(),
    )
    assert bounds.resident(trace) == (150, 1)


def test_p99_is_the_value_that_99_of_100_are_not_above() -> None:
    assert contended.p99(list(range(1, 101))) == 99
    assert contended.p99([3.0]) == 3.0


def report(service: float) -> dict[str, ClientReport]:
    rows = {}
    for name, weight in bounds.CLIENTS.items():
        tenant = name.rsplit("/", 1)[0]
        siblings = sum(other.rsplit("/", 1)[0] == tenant for other in bounds.CLIENTS)
        rows[name] = ClientReport(
            client=name,
            extend_tokens=0,
            cached_tokens=0,
            output_tokens=0,
            service=service,
            normalised=service / weight,
            tenant_normalised=0.0,
            requests=1,
            deficit=bounds.QUANTUM * weight - service,
            tenant_deficit=bounds.QUANTUM * bounds.TENANTS[tenant] - siblings * service,
            waiting=1,
            running=1,
        )
    return rows


def test_identities_are_counted_and_gaps_are_those_of_intervals() -> None:
    found = bounds.Found(resident_tokens=1000)
    for service in (500, 700):
        found.check(report(service))
    assert (found.samples, found.identities) == (2, 2 * 2 * len(bounds.CLIENTS))
    gap = found.gaps["ns/big/chat, ns/big/batch"]
    assert gap.width == pytest.approx(200 * (1 - 1 / 3))
    assert gap.width < found.bounds()["ns/big/chat, ns/big/batch"]


def test_one_token_too_many_breaks_the_identity() -> None:
    rows = report(500)
    spoiled = rows["ns/big/chat"]
    values = {name: getattr(spoiled, name) for name in spoiled.__struct_fields__}
    rows["ns/big/chat"] = ClientReport(**{**values, "deficit": spoiled.deficit + 1})
    found = bounds.Found()
    found.check(report(500))
    with pytest.raises(AssertionError, match="ns/big/chat: W \\+ q is 3001"):
        found.check(rows)
