"""A phase in numbers. Pure.

Three choices that decide what the numbers mean:
- Percentiles are over *all* requests of the ordinary clients that arrived. One that had not ended when the
  phase was cut counts with the time it had waited by then, which is less than it would have been.
- Throughput counts what ended within the time in which requests arrived, so that a phase does not look
  slower for having a longer tail.
- Jain's index is of service got over service owed. Owed is the max-min share: nobody is owed more than it
  asked for, and what it leaves is owed to the others. Over plain service the index would call it unfair
  that the flood gets what nobody else wants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from evenkeel_fairshare.measures import jain_index, percentile
from evenkeel_simulator.experiments.workload import Program

from evenkeel_cli.demo.phases import Ran
from evenkeel_cli.demo.workload import FLOOD
from evenkeel_cli.replay.run import Outcome


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One phase."""

    title: str
    replica_policy: str
    fleet_policy: str
    requests: int
    """Of the ordinary clients."""
    unfinished: int
    """Of those, cut with the phase."""
    failed: int
    """Of all clients."""
    ttft_p50_s: float
    """Of the ordinary clients, like all latencies here."""
    ttft_p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    hit_rate: float
    """Of all clients: input tokens found in the cache."""
    tokens_per_s: float
    """Of all clients: input and output."""
    jain: float
    """Of got over owed, see above."""
    got_over_owed: dict[str, float]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """One request of an ordinary client."""

    arrival_s: float
    ttft_s: float
    latency_s: float
    ended: bool


def make_figures(ran: Ran) -> Figures:
    """All figures of a phase."""
    waits = ordinary_waits(ran)
    window_s = ran.phase.flood.duration_s
    ended = [o for o in ran.outcomes if o.answer.error is None and o.answer.ended_s <= window_s]
    got = _service(ended)
    owed = max_min(_asked(ran.programs), sum(got.values()))
    ratios = {client: got.get(client, 0.0) / owed[client] for client in owed if owed[client] > 0}
    inputs = sum(outcome.answer.input_tokens for outcome in ended)
    return Figures(
        title=ran.phase.title,
        replica_policy=ran.phase.replica_policy,
        fleet_policy=ran.phase.fleet_policy,
        requests=len(waits),
        unfinished=sum(not wait.ended for wait in waits),
        failed=sum(outcome.answer.error is not None for outcome in ran.outcomes),
        ttft_p50_s=percentile([wait.ttft_s for wait in waits], 50),
        ttft_p99_s=percentile([wait.ttft_s for wait in waits], 99),
        latency_p50_s=percentile([wait.latency_s for wait in waits], 50),
        latency_p99_s=percentile([wait.latency_s for wait in waits], 99),
        hit_rate=sum(o.answer.cached_tokens for o in ended) / inputs if inputs else 0.0,
        tokens_per_s=sum(o.answer.input_tokens + o.answer.output_tokens for o in ended) / window_s,
        jain=jain_index(list(ratios.values())),
        got_over_owed=ratios,
        elapsed_s=ran.elapsed_s,
    )


def ordinary_waits(ran: Ran) -> list[Wait]:
    """How long each request of the ordinary clients waited, in the order of arrival.

    A failed request waited until it failed.
    """
    by_program = {outcome.program: outcome for outcome in ran.outcomes}
    waits = []
    for program in ran.programs:
        if program.client == FLOOD:
            continue
        outcome = by_program.get(program.id)
        if outcome is None:
            waited_s = ran.elapsed_s - program.arrival_s
            waits.append(Wait(program.arrival_s, waited_s, waited_s, ended=False))
        else:
            answer = outcome.answer
            first_s = answer.ended_s if answer.first_token_s is None else answer.first_token_s
            waits.append(
                Wait(
                    program.arrival_s,
                    first_s - outcome.due_s,
                    answer.ended_s - outcome.due_s,
                    ended=True,
                )
            )
    return waits


def max_min(asked: Mapping[str, float], total: float) -> dict[str, float]:
    """`total` divided so that nobody gets more than asked, and whoever gets less gets as much as any."""
    shares: dict[str, float] = {}
    left = total
    for number, client in enumerate(sorted(asked, key=lambda client: asked[client])):
        shares[client] = min(asked[client], left / (len(asked) - number))
        left -= shares[client]
    return shares


def _service(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """input + 2·output by client: the client's view, cached or not."""
    service: dict[str, float] = {}
    for outcome in outcomes:
        tokens = outcome.answer.input_tokens + 2.0 * outcome.answer.output_tokens
        service[outcome.client] = service.get(outcome.client, 0.0) + tokens
    return service


def _asked(programs: Collection[Program] | Sequence[Program]) -> dict[str, float]:
    asked: dict[str, float] = {}
    for program in programs:
        tokens = sum(call.input_tokens + 2.0 * call.output_tokens for call in program.calls)
        asked[program.client] = asked.get(program.client, 0.0) + tokens
    return asked
