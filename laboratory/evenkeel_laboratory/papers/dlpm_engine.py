"""The figures of the DLPM paper on one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from evenkeel_fairshare.measures import jain_index

from evenkeel_laboratory.experiments.generators import TreeOfThoughts
from evenkeel_laboratory.papers.dlpm import SLACK, jain, rate, workload_of
from evenkeel_laboratory.papers.panels import Panel, bars, curves
from evenkeel_laboratory.papers.results import Outcome, Table, row
from evenkeel_laboratory.papers.runs import Context, Run, run

CHATS: Final = ("chat-1", "chat-2")
"""The clients of Fig. 12 with conversations."""


def figure_1(context: Context) -> Table:
    spec = workload_of(context, "tot-s1", replicas=1)
    systems: dict[str, dict[str, Any]] = {
        "VTC": {"replica_policy": "VTC"},
        **{
            f"DLPM, Q = {quantum:,}": {"replica_policy": "DLPM", "quantum": float(quantum)}
            for quantum in (2000, 8000, 32_000)
        },
        "LPM": {"replica_policy": "LPM"},
    }
    results = {
        name: run(context, spec, f"fig1, {name}", {"fleet_policy": "RoundRobin", **setup})
        for name, setup in systems.items()
    }
    rates = [rate(result) for result in results.values()]
    indexes = [jain(result) for result in results.values()]
    rows = []
    for place, (name, result) in enumerate(results.items()):
        ordered = place == 0 or (
            rates[place] >= rates[place - 1] * (1 - SLACK)
            and indexes[place] <= indexes[place - 1] + SLACK
        )
        rows.append(row(name, rate(result), jain(result), met=ordered))
    return Table(
        name="dlpm-fig1",
        title="Fig. 1: throughput and fairness over the quantum, one A10G",
        about="Trees of thoughts (tot-s1). Each row down the table should have more throughput and a lower Jain index than the one above, within 2 %.",
        headings=("system", "tokens/s", "Jain"),
        rows=tuple(rows),
        figure_only=True,
        panels=(
            curves(
                "Fairness over throughput",
                {name: [(rate(result), jain(result))] for name, result in results.items()},
                x="tokens/s",
                y="Jain's index of service rates",
            ),
        ),
    )


def figure_11(context: Context) -> Table:
    policies = ("DLPM", "LPM", "VTC")
    counts = (5, 50) if context.quick else (5, 10, 20, 50)
    rates: dict[int, dict[str, float]] = {}
    for count in counts:
        spec = workload_of(context, "tot-s1", replicas=1)
        client = spec.clients[1]
        arrivals = client.arrivals
        client = msgspec.structs.replace(
            client,
            count=count,
            program=TreeOfThoughts(branches=2),
            arrivals=msgspec.structs.replace(arrivals, rate_per_s=arrivals.rate_per_s * 12 / count),
        )
        spec = msgspec.structs.replace(spec, clients=(client,))
        rates[count] = {
            policy: rate(
                run(
                    context,
                    spec,
                    f"fig11, {count} clients, {policy}",
                    {"replica_policy": policy, "fleet_policy": "RoundRobin"},
                )
            )
            for policy in policies
        }
    throughput = {
        policy: [(count, got[policy]) for count, got in rates.items()] for policy in policies
    }
    return Table(
        name="dlpm-fig11",
        title="Fig. 11: number of clients at a constant total rate, one A10G",
        about="Tokens/s. Paper: DLPM near LPM with a slight decline, VTC flat and lower.",
        headings=("clients", *policies),
        rows=tuple(
            row(
                str(count),
                *got.values(),
                met=got["DLPM"] >= 0.9 * got["LPM"] and got["VTC"] <= got["DLPM"] * (1 + SLACK),
            )
            for count, got in rates.items()
        ),
        figure_only=True,
        panels=(curves("Throughput", throughput, x="clients", y="tokens/s"),),
    )


def figure_12(context: Context) -> Table:
    spec = workload_of(context, "mixed")
    results = {
        policy: run(
            context,
            spec,
            f"fig12, {policy}",
            {"replica_policy": policy, "fleet_policy": "RoundRobin"},
        )
        for policy in ("DLPM", "VTC", "LPM")
    }
    return Table(
        name="dlpm-fig12",
        title="Fig. 12: two clients with conversations, two with trees of thoughts",
        about="Paper: DLPM has the best response and total time, VTC the most even service, and under LPM the trees hurt the conversations.",
        headings=(
            "scheduler",
            "total time, s",
            "TTFT of conversations, s",
            "program, s",
            "Jain of computed service",
        ),
        rows=tuple(_rows_of_12(results)),
        figure_only=True,
        panels=_panels_of_12(results),
    )


def _rows_of_12(results: Mapping[str, Run]) -> Iterator[Outcome]:
    ours = results["DLPM"]
    for policy, result in results.items():
        is_met = (
            ours.makespan_s <= result.makespan_s * (1 + SLACK)
            and _chat_ttft_s(ours) <= _chat_ttft_s(result) * (1 + SLACK)
            and (policy != "VTC" or _actual_jain(result) >= _actual_jain(ours) - SLACK)
        )
        yield row(
            policy,
            result.makespan_s,
            _chat_ttft_s(result),
            result.latency_s(),
            _actual_jain(result),
            met=None if policy == "DLPM" else is_met,
        )


def _panels_of_12(results: Mapping[str, Run]) -> tuple[Panel, ...]:
    def by_policy(of: Callable[[Run], float]) -> dict[str, float]:
        return {policy: of(result) for policy, result in results.items()}

    times = {
        "total": by_policy(lambda result: result.makespan_s),
        "program": by_policy(Run.latency_s),
    }
    ttft = {chat: by_policy(partial(Run.ttft_s, client=chat)) for chat in CHATS}
    return (bars("Time", times, y="s"), bars("Mean TTFT", ttft, y="s"))


def _chat_ttft_s(result: Run) -> float:
    return max(map(result.ttft_s, CHATS))


def _actual_jain(result: Run) -> float:
    return jain_index([client.service for client in result.summary.clients.values()])
