"""The figures of a phase. Pure.

Three choices decide the meaning of the figures:
- Percentiles are over *all* requests of the ordinary clients. A request that had not ended when the phase was cut
  counts with its waiting time until then, which is less than its complete waiting time.
- Throughput counts the requests that ended within the time in which requests arrived. A longer tail after that time
  does not reduce it.
- What each client was given over what it was owed, and Jain's index of it, are those of `evenkeel top` and `simulate`: see
  `evenkeel_simulator.traffic.owed`. A request that had not ended when the phase was cut was not given anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from evenkeel_fairshare.measures import jain_index, percentile
from evenkeel_fairshare.verdict import RunRecord
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import Summary, summarise
from evenkeel_simulator.traffic.workload import Program

from evenkeel_cli.demo.phases import FLOOD, PhaseResult


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one phase."""

    title: str
    replica_policy: str
    fleet_policy: str
    requests: int
    """Requests of the ordinary clients."""
    unfinished: int
    """Requests of the ordinary clients that had not ended when the phase was cut."""
    failed: int
    """Failed requests of all clients."""
    ttft_p50_s: float
    """Median time to first token of the ordinary clients. The times below are theirs, too."""
    ttft_p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    itl_p50_s: float | None
    """Inter-token latency: the mean time between the tokens of a request, of those that ended. None without any."""
    itl_p99_s: float | None
    hit_rate: float
    """The part of the input tokens that was cached, of all clients."""
    tokens_per_s: float
    """Input and output tokens per second, of all clients."""
    jain: float
    """Jain's index of what each client was given over what it was owed."""
    given_over_owed: dict[str, float]
    """Client → what it was given over what it was owed, of those that were owed something."""
    record: RunRecord
    """What the verdict is on: among others, given over owed in the worst minute, of clients that waited for half of it."""
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class OrdinaryRequest:
    """The times of one request of an ordinary client."""

    arrival_s: float
    ttft_s: float
    latency_s: float
    ended: bool


def make_figures(result: PhaseResult) -> PhaseFigures:
    """All figures of a phase."""
    requests = ordinary_requests(result)
    window_s = result.phase.flood.duration_s
    ended = [o for o in result.outcomes if o.answer.error is None and o.answer.ended_s <= window_s]
    summary = _summary(result)
    ratios = summary.given_over_owed
    answered = [o.record().itl_s for o in result.outcomes if o.client != FLOOD]
    itls = [itl_s for itl_s in answered if itl_s is not None]
    inputs = sum(outcome.answer.input_tokens for outcome in ended)
    return PhaseFigures(
        title=result.phase.title,
        replica_policy=result.phase.replica_policy,
        fleet_policy=result.phase.fleet_policy,
        requests=len(requests),
        unfinished=sum(not one.ended for one in requests),
        failed=sum(outcome.answer.error is not None for outcome in result.outcomes),
        ttft_p50_s=percentile([one.ttft_s for one in requests], 50),
        ttft_p99_s=percentile([one.ttft_s for one in requests], 99),
        latency_p50_s=percentile([one.latency_s for one in requests], 50),
        latency_p99_s=percentile([one.latency_s for one in requests], 99),
        itl_p50_s=percentile(itls, 50) if itls else None,
        itl_p99_s=percentile(itls, 99) if itls else None,
        hit_rate=sum(o.answer.cached_tokens for o in ended) / inputs if inputs else 0.0,
        tokens_per_s=sum(o.answer.input_tokens + o.answer.output_tokens for o in ended) / window_s,
        jain=jain_index(list(ratios.values())),
        given_over_owed=ratios,
        record=summary.record,
        elapsed_s=result.elapsed_s,
    )


def ordinary_requests(result: PhaseResult) -> list[OrdinaryRequest]:
    """The times of each request of the ordinary clients, in the order of arrival.

    A failed request counts with the time until its failure.
    """
    by_program = {outcome.program: outcome for outcome in result.outcomes}
    requests = []
    for program in result.programs:
        if program.client == FLOOD:
            continue
        outcome = by_program.get(program.id)
        if outcome is None:
            waited_s = result.elapsed_s - program.arrival_s
            requests.append(OrdinaryRequest(program.arrival_s, waited_s, waited_s, ended=False))
        else:
            answer = outcome.answer
            first_s = answer.ended_s if answer.first_token_s is None else answer.first_token_s
            requests.append(
                OrdinaryRequest(
                    program.arrival_s,
                    first_s - outcome.due_s,
                    answer.ended_s - outcome.due_s,
                    ended=True,
                )
            )
    return requests


def _summary(result: PhaseResult) -> Summary:
    """The figures of all requests until the phase was cut."""
    records = [outcome.record() for outcome in result.outcomes]
    ended = {record.program for record in records}
    records += [
        _unfinished(one, result.elapsed_s) for one in result.programs if one.id not in ended
    ]
    return summarise(records, result.elapsed_s)


def _unfinished(program: Program, elapsed_s: float) -> Record:
    """A request that waited until the phase was cut, as far as its client knows."""
    return Record(
        id=program.id,
        program=program.id,
        client=program.client,
        replica=-1,
        status="unfinished",
        arrival_s=program.arrival_s,
        admitted_s=elapsed_s,
        first_token_s=None,
        finished_s=None,
        input_tokens=0,
        cached_tokens=0,
        extend_tokens=0,
        output_tokens=0,
        retractions=0,
    )
