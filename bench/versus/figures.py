"""The figures of the head to head, from what clients and engines saw. Pure.

Requests that were sent in the first and in the last ten seconds count in no latency: the first found empty engines, and of the last
too many had not ended. One that was never answered counts with the time until the end of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.verdict import judge
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import summarise

from bench.versus.clients import Seen
from bench.versus.workloads import BIG, SMALL, Case

EDGE_S: Final = 10.0
"""Time left out at both ends of a run of at least 100 s; of a shorter one a tenth is left out."""
PATIENCE_S: Final = 0.5
"""An engine that is empty while a request has waited this long for its first token is idle capacity."""


class Sample(NamedTuple):
    """What the engines held at one time; seconds since the run began."""

    at_s: float
    held: tuple[int, ...]
    """Requests that run or wait, by engine."""
    late_s: float
    """Delay of the sample: how late the engines' process was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contender under one workload. Latencies are those of the small team unless they say otherwise; seconds."""

    share: float
    """The small team's part of the service of requests that ended: computed input + 2 · output."""
    worst_minute: float | None
    """The small team's service over what it was owed, in its worst minute; None: it did not wait for half a minute."""
    answered: float
    """Part of the small team's requests that were answered."""
    ttft_p50_s: float
    ttft_p95_s: float
    gap_p50_s: float
    """Time between two tokens of a request, its mean; infinite without an answer of two tokens."""
    gap_p95_s: float
    big_ttft_p50_s: float
    big_ttft_p95_s: float
    tokens_per_s: float
    """Input and output tokens of both teams' requests that ended."""
    cached: float
    """Part of the input that was in the cache."""
    idle: float
    """Part of the engines' time in which an engine was empty although a request of a client waited."""
    refusals: int
    """Refused attempts of both teams."""
    failures: int
    """Requests that failed for another reason."""
    verdict: str
    """The sentence of `evenkeel_fairshare.verdict`."""


def figures(case: Case, seen: Sequence[Seen], samples: Sequence[Sample], seconds: float) -> Figures:
    """The figures of a run of `seconds`."""
    edge_s = min(EDGE_S, seconds / 10)
    counted = [one for one in seen if edge_s <= one.sent_s < seconds - edge_s]
    small = [one for one in counted if one.team == SMALL]
    big = [one for one in counted if one.team == BIG]
    ended = [one for one in seen if _answered(one) and edge_s <= (one.ended_s or 0.0) < seconds]
    service = {
        team: sum(_service(one) for one in ended if one.team == team) for team in case.weights
    }
    ttfts = [_ttft_s(one, seconds) for one in small]
    gaps = [gap for one in small if (gap := _gap_s(one)) is not None]
    # What was sent last may run by now: only its engine knows.
    known = [one for one in seen if one.ended_s is not None or one.sent_s < seconds - edge_s]
    summary = summarise([_record(one, seconds) for one in known], seconds, clients=case.clients())
    own = summary.clients.get(SMALL)
    return Figures(
        share=service[SMALL] / max(1.0, sum(service.values())),
        worst_minute=None if own is None else own.worst_minute,
        answered=sum(map(_answered, small)) / max(1, len(small)),
        ttft_p50_s=_percentile(ttfts, 50),
        ttft_p95_s=_percentile(ttfts, 95),
        gap_p50_s=_percentile(gaps, 50),
        gap_p95_s=_percentile(gaps, 95),
        big_ttft_p50_s=_percentile([_ttft_s(one, seconds) for one in big], 50),
        big_ttft_p95_s=_percentile([_ttft_s(one, seconds) for one in big], 95),
        tokens_per_s=sum(one.input_tokens + one.output_tokens for one in ended)
        / (seconds - edge_s),
        cached=sum(one.cached_tokens for one in ended)
        / max(1, sum(one.input_tokens for one in ended)),
        idle=idle_part(seen, [one for one in samples if edge_s <= one.at_s < seconds]),
        refusals=sum(one.refusals for one in seen),
        failures=sum(bool(one.error) for one in seen),
        verdict=judge(summary.record).sentence,
    )


def idle_part(seen: Collection[Seen], samples: Sequence[Sample]) -> float:
    """Part of the samples' engines that were empty while a request had waited for longer than `PATIENCE_S`."""
    waits = sorted(_waits(seen))
    empty, place = 0, 0
    open_: list[tuple[float, float]] = []
    for sample in sorted(samples):
        while place < len(waits) and waits[place][0] <= sample.at_s:
            open_.append(waits[place])
            place += 1
        open_ = [one for one in open_ if one[1] > sample.at_s]
        if open_:
            empty += sum(not held for held in sample.held)
    return empty / max(1, sum(len(sample.held) for sample in samples))


def _waits(seen: Collection[Seen]) -> Iterator[tuple[float, float]]:
    """The times in which a request had waited for long, begin and end."""
    for one in seen:
        until_s = one.first_token_s if one.first_token_s is not None else one.ended_s
        begin_s, end_s = one.sent_s + PATIENCE_S, float("inf") if until_s is None else until_s
        if end_s > begin_s:
            yield begin_s, end_s


def _answered(one: Seen) -> bool:
    return one.ended_s is not None and not one.error


def _service(one: Seen) -> float:
    return one.input_tokens - one.cached_tokens + 2.0 * one.output_tokens


def _ttft_s(one: Seen, seconds: float) -> float:
    """Time to first token. A request that was never answered has waited until the run ended."""
    answered = _answered(one) and one.first_token_s is not None
    return (one.first_token_s if answered and one.first_token_s else seconds) - one.sent_s


def _gap_s(one: Seen) -> float | None:
    return _record(one, 0.0).itl_s if _answered(one) else None


def _percentile(values: Collection[float], percent: float) -> float:
    return percentile(values, percent) if values else inf


def _record(one: Seen, seconds: float) -> Record:
    """The record of a request, for the measures that all tools share. One that had not ended counts as one that waited until the end."""
    record = Record(
        id=one.id,
        program=one.id,
        client=one.team,
        replica=-1,
        status="failed" if one.error else "finished",
        arrival_s=one.sent_s,
        admitted_s=None,
        first_token_s=None if one.error else one.first_token_s,
        finished_s=None if one.error else one.ended_s,
        input_tokens=one.input_tokens,
        cached_tokens=one.cached_tokens,
        extend_tokens=one.input_tokens - one.cached_tokens,
        output_tokens=one.output_tokens,
        retractions=0,
    )
    return (
        record
        if one.ended_s is not None
        else record._replace(status="unfinished", admitted_s=seconds)
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that one contender can have better than another."""

    field: str
    words: str
    least: float = 0.0
    """A smaller difference does not count."""
    part: float = 0.1
    """Nor does one below this part of the figure."""
    higher: bool = False

    def better(self, one: Figures, than: Figures) -> bool:
        """Whether `one` has the better figure."""
        a, b = self.of(one), self.of(than)
        if not self.higher:
            a, b = -a, -b
        return a - b > max(self.least, self.part * min(abs(a), abs(b)))

    def of(self, figures: Figures) -> float:
        """The value; a team that did not wait got what it was owed, and more than that is not better."""
        value = getattr(figures, self.field)
        if self.field == "worst_minute":
            return 1.0 if value is None else min(1.0, value)
        return float(value)


LEAST_TTFT_S: Final = 0.05
MEASURES: Final = (
    Measure("worst_minute", "small team, given over owed", least=0.05, higher=True),
    Measure("answered", "small team, answered", least=0.02, part=0.0, higher=True),
    Measure("ttft_p50_s", "small team, TTFT p50", least=LEAST_TTFT_S),
    Measure("ttft_p95_s", "small team, TTFT p95", least=LEAST_TTFT_S),
    Measure("gap_p50_s", "small team, between tokens p50", least=0.002),
    Measure("gap_p95_s", "small team, between tokens p95", least=0.002),
    Measure("big_ttft_p50_s", "big team, TTFT p50", least=LEAST_TTFT_S),
    Measure("big_ttft_p95_s", "big team, TTFT p95", least=LEAST_TTFT_S),
    Measure("tokens_per_s", "tokens/s, both teams", part=0.03, higher=True),
    Measure("idle", "idle capacity", least=0.01, part=0.0),
)
