"""A run in numbers: the content of `summary.json`.

There are two services. *Requested* and *service rate* count all input tokens, cached or
not (the client's view; VTC tables, Jain's index in the D2LPM paper); *service* counts what was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean

import msgspec
from evenkeel_fairshare.measures import jain_index, percentile
from evenkeel_fairshare.verdict import HELD_S, RunRecord, judge
from evenkeel_fairshare.window import Taken, WindowShares

from evenkeel_simulator.traffic.owed import owed_service, service_of
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.service_difference import (
    Recipe,
    ServiceDifference,
    service_difference,
    spread,
)
from evenkeel_simulator.traffic.timeline import (
    Completion,
    Span,
    accumulated_difference,
    all_active,
    served,
)
from evenkeel_simulator.traffic.workload import Client

TICKS = 100
"""Points at which the accumulated difference is looked at."""


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One client. Times are None where nothing of it finished."""

    requests: int
    finished: int
    service: float
    """Weighted tokens computed: extend + 2·output."""
    owed: float
    """Service that was due to it: its share while it waited, otherwise what it was given."""
    worst_minute: float | None
    """Service over owed service in its worst minute, of those in which it waited for half of the time; None without one. The
    verdict on fairness is on this figure."""
    requested: float
    """Requested weighted tokens: input + 2·output."""
    hit_rate: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    itl_p50_s: float | None
    """Inter-token latency: the mean time between the tokens of a request. None without a request of two tokens."""
    itl_p99_s: float | None
    qoe_mean: float | None
    """Quality of experience; None if it was not measured."""
    qoe_p10: float | None
    program_latency_p50_s: float | None
    """Median time from a program's first arrival to its last end, seconds; None without programs."""
    program_latency_p99_s: float | None

    @property
    def given_over_owed(self) -> float | None:
        """1: it got its share; None: it was owed nothing."""
        return self.service / self.owed if self.owed > 0 else None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run."""

    requests: int
    finished: int
    rejected: int
    refused: int
    """Requests that would not have fitted an empty engine."""
    failed: int
    """Requests that the service failed."""
    slow: int = 0
    """Finished requests whose first token came after two seconds or more."""
    oldest_open_s: float = 0.0
    """Age of the oldest request that had not ended when the run did."""
    retractions: int
    makespan_s: float
    throughput_tokens_per_s: float
    """Input and output tokens of finished requests, until the last one ended."""
    output_tokens_per_s: float
    service_rate: float
    """input + 2·output of finished requests per second until the last one ended."""
    hit_rate: float
    """Input tokens found in the cache, of all."""
    qoe_mean: float | None
    """Quality of experience of finished requests, from 0 to 1; None if it was not measured."""
    service_difference: ServiceDifference
    accumulated_difference_max: float
    """Largest accumulated difference over the whole run, of the service rate's kind."""
    jain_index: float
    """Jain's index of what each client was given over what it was owed, as in `evenkeel top`."""
    jain_index_service_rate: float
    """The D2LPM paper's: of service rates while all clients were active; of the whole run if there was no such time."""
    idle_s: float = 0.0
    """Seconds in which a replica was empty while requests waited at another; 0 if it is not known."""
    took: dict[str, Taken]
    """Clients that were given more than they were owed in the worst minute of all."""
    clients: dict[str, ClientSummary]
    verdict: str = ""
    """One sentence (`evenkeel_fairshare.verdict`), as `evenkeel top` gives it of the last minute."""
    level: str = ""
    """The level of the verdict: `Out`, `HeldUp`, `Unfair`, `Unjudged`, `Fair` or `Nothing`."""

    @property
    def record(self) -> RunRecord:
        """What the verdict judges."""
        worst = {name: client.worst_minute for name, client in self.clients.items()}
        shares = WindowShares(
            {name: part for name, part in worst.items() if part is not None},
            self.took,
            self.idle_s,
        )
        judged = any(part is not None for part in worst.values())
        open_ = self.requests - self.finished - self.failed - self.rejected - self.refused
        return RunRecord(
            shares=shares,
            answered=self.finished,
            failed=self.failed,
            declined=self.rejected + self.refused,
            slow=self.slow,
            waiting=open_,
            oldest_s=self.oldest_open_s,
            unjudged=0 if judged else open_,
            unjudged_s=0.0 if judged else self.oldest_open_s,
        )

    @property
    def given_over_owed(self) -> dict[str, float]:
        """Client → service that it got over owed service, for clients that were owed something."""
        parts = {name: client.given_over_owed for name, client in self.clients.items()}
        return {name: part for name, part in parts.items() if part is not None}


def summarise(
    records: Collection[Record],
    makespan_s: float,
    *,
    duration_s: float = 0.0,
    clients: Mapping[str, Client] | None = None,
    idle_s: float = 0.0,
) -> Summary:
    """All figures of a run.

    `duration_s`: planned duration of arrivals, if longer than the actual one. `clients`: those with a weight or a tenant.
    `idle_s`: see `Summary`.
    """
    finished = [record for record in records if record.status == "finished"]
    completions = [completion(record) for record in finished]
    spans = spread(completions)
    tokens = sum(record.input_tokens + record.output_tokens for record in finished)
    output = sum(record.output_tokens for record in finished)
    times_s = [makespan_s * tick / TICKS for tick in range(1, TICKS + 1)]
    # A client without service counts in Jain's index, unless no replica could ever serve it.
    servable = {record.client for record in records if record.status != "refused"}
    owed = owed_service(records, clients or {}, makespan_s)
    by_client = {
        name: _client(own, owed.service.get(name, 0.0), owed.shares.given_over_owed.get(name))
        for name, own in _by(records, lambda r: r.client).items()
    }
    summary = Summary(
        requests=len(records),
        finished=len(finished),
        rejected=sum(record.status == "rejected" for record in records),
        refused=sum(record.status == "refused" for record in records),
        failed=sum(record.status == "failed" for record in records),
        oldest_open_s=max(
            (makespan_s - one.arrival_s for one in records if one.status == "unfinished"),
            default=0.0,
        ),
        retractions=sum(record.retractions for record in records),
        makespan_s=makespan_s,
        throughput_tokens_per_s=tokens / makespan_s if makespan_s else 0.0,
        output_tokens_per_s=output / makespan_s if makespan_s else 0.0,
        service_rate=(tokens + output) / makespan_s if makespan_s else 0.0,
        hit_rate=_hit_rate(finished),
        qoe_mean=_mean(qualities(finished)),
        service_difference=_difference(
            completions, max([duration_s, *[record.arrival_s for record in records]])
        ),
        accumulated_difference_max=max(accumulated_difference(spans, times_s), default=0.0),
        idle_s=idle_s,
        jain_index=jain_index(
            [by_client[name].given_over_owed or 0.0 for name in sorted(servable)]
        ),
        jain_index_service_rate=_jain(spans, completions, servable),
        took=dict(owed.shares.took),
        clients=by_client,
        slow=sum(one.ttft_s is not None and one.ttft_s >= HELD_S for one in finished),
    )
    found = judge(summary.record)
    return msgspec.structs.replace(summary, verdict=found.sentence, level=found.level.value)


def program_latencies(records: Collection[Record]) -> list[float]:
    """Seconds from first arrival to last end of each program; none where a call was not served."""
    latencies = []
    for calls in _by(records, lambda record: record.program).values():
        ends = [call.finished_s for call in calls if call.finished_s is not None]
        if all(call.status == "finished" for call in calls):
            latencies.append(max(ends) - min(call.arrival_s for call in calls))
    return latencies


def _difference(completions: Collection[Completion], duration_s: float) -> ServiceDifference:
    if duration_s <= 0:
        return ServiceDifference(0.0, 0.0, 0.0)
    # The tables' windows for runs of 600 s and more; in shorter ones the same proportions.
    scale = min(1.0, duration_s / 600)
    recipe = Recipe(duration_s=duration_s, warmup_s=30 * scale, window_s=60 * scale)
    return service_difference(completions, recipe=recipe)


def _jain(
    spans: Sequence[Span], completions: Collection[Completion], clients: Collection[str]
) -> float:
    window = all_active(completions) or (0.0, float("inf"))
    amounts = served(spans, [window])
    return jain_index([amounts.get(client, [0.0])[0] for client in sorted(clients)])


def completion(record: Record) -> Completion:
    """A finished record, for the measures of the laboratory."""
    assert record.first_token_s is not None
    assert record.finished_s is not None
    return Completion(
        client=record.client,
        arrival_s=record.arrival_s,
        first_token_s=record.first_token_s,
        end_s=record.finished_s,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
    )


def _client(records: Sequence[Record], owed: float, worst_minute: float | None) -> ClientSummary:
    finished = [record for record in records if record.status == "finished"]
    ttfts = [record.ttft_s for record in finished if record.ttft_s is not None]
    latencies = [record.latency_s for record in finished if record.latency_s is not None]
    itls = [record.itl_s for record in finished if record.itl_s is not None]
    programs = program_latencies(records)
    return ClientSummary(
        requests=len(records),
        finished=len(finished),
        service=sum(service_of(record) for record in records),
        owed=owed,
        worst_minute=worst_minute,
        requested=sum(r.input_tokens + 2.0 * r.output_tokens for r in finished),
        hit_rate=_hit_rate(finished),
        ttft_p50_s=_percentile(ttfts, 50),
        ttft_p99_s=_percentile(ttfts, 99),
        latency_p50_s=_percentile(latencies, 50),
        latency_p99_s=_percentile(latencies, 99),
        itl_p50_s=_percentile(itls, 50),
        itl_p99_s=_percentile(itls, 99),
        qoe_mean=_mean(qualities(finished)),
        qoe_p10=_percentile(qualities(finished), 10),
        program_latency_p50_s=_percentile(programs, 50),
        program_latency_p99_s=_percentile(programs, 99),
    )


def qualities(records: Collection[Record]) -> list[float]:
    """QoE of the requests for which it was measured."""
    return [record.qoe for record in records if record.qoe is not None]


def _mean(values: Collection[float]) -> float | None:
    return fmean(values) if values else None


def _hit_rate(records: Collection[Record]) -> float:
    inputs = sum(record.input_tokens for record in records)
    return sum(record.cached_tokens for record in records) / inputs if inputs else 0.0


def _percentile(values: Collection[float], percent: float) -> float | None:
    return percentile(values, percent) if values else None


def _by(records: Collection[Record], key: Callable[[Record], str]) -> Mapping[str, list[Record]]:
    """Records by a key, keys in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: groups[name] for name in sorted(groups, key=_natural)}


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (-1, name)
