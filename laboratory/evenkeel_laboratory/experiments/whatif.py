"""Compares two runs of one workload, client by client: who gains and who loses. Pure.

All figures are of the time in which requests arrived, so that a queue that a run leaves behind does not count as service.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import msgspec
from evenkeel_contract.recording import RequestLine
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.timeline import Span, served

CHANGED_RATE = 0.02
"""A smaller change of tokens per second is none."""
CHANGED_TTFT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request, replayed or recorded. Times are seconds."""

    client: str
    arrival_s: float
    first_token_s: float
    end_s: float
    extend_tokens: int
    output_tokens: int


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One client in one run."""

    share: float
    """Part of the weighted tokens of all clients."""
    tokens_per_s: float
    """Output tokens per second."""
    ttft_p50_s: float
    ttft_p95_s: float
    gpu_s: float
    """Replica seconds of the fleet times `share`."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run."""

    replicas: int
    window_s: float
    gpu_s: float
    tokens_per_s: float
    ttft_p50_s: float
    verdict: str
    """Sentence of `evenkeel_fairshare.verdict`, as `simulate` and `top` give it."""
    clients: dict[str, ClientFigures]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a change does to one client."""

    client: str
    effect: str
    """`gains`, `loses`, `trades` (more tokens but a longer wait, or the reverse), or `keeps`: no difference, or one within the error."""
    sentence: str


def of_records(records: Iterable[Record]) -> list[Served]:
    """The requests that a replay served."""
    return [
        Served(
            client=one.client,
            arrival_s=one.arrival_s,
            first_token_s=one.first_token_s,
            end_s=one.finished_s,
            extend_tokens=one.extend_tokens,
            output_tokens=one.output_tokens,
        )
        for one in records
        if one.first_token_s is not None and one.finished_s is not None
    ]


def of_requests(requests: Iterable[RequestLine]) -> list[Served]:
    """The requests that a fleet served; the first byte of an answer that was not streamed is its end."""
    return [
        Served(
            client=one.client,
            arrival_s=one.arrival_s,
            first_token_s=one.arrival_s + (one.duration_s if one.ttft_s is None else one.ttft_s),
            end_s=one.arrival_s + one.duration_s,
            extend_tokens=one.input_tokens - one.cached_tokens,
            output_tokens=one.output_tokens,
        )
        for one in requests
    ]


def figures(
    run: Collection[Served],
    *,
    replicas: int,
    window_s: float,
    verdict: str,
    output_weight: float = 2.0,
    input_weight: float = 1.0,
) -> RunFigures:
    """Figures of the requests that arrived within the window, and of the service within it."""
    window = [(0.0, window_s)]
    service = served(
        (
            span
            for one in run
            for span in (
                Span(
                    one.client,
                    one.first_token_s,
                    one.first_token_s,
                    input_weight * one.extend_tokens,
                ),
                Span(one.client, one.first_token_s, one.end_s, output_weight * one.output_tokens),
            )
        ),
        window,
    )
    output = served(
        (Span(one.client, one.first_token_s, one.end_s, one.output_tokens) for one in run), window
    )
    ttfts: defaultdict[str, list[float]] = defaultdict(list)
    for one in run:
        ttfts[one.client].append(one.first_token_s - one.arrival_s)
    total = sum(amount for (amount,) in service.values()) or 1.0
    gpu_s = replicas * window_s
    return RunFigures(
        replicas=replicas,
        window_s=window_s,
        gpu_s=gpu_s,
        tokens_per_s=sum(amount for (amount,) in output.values()) / window_s,
        verdict=verdict,
        ttft_p50_s=median([ttft for each in ttfts.values() for ttft in each]),
        clients={
            name: ClientFigures(
                share=service[name][0] / total,
                tokens_per_s=output[name][0] / window_s,
                ttft_p50_s=median(ttfts[name]),
                ttft_p95_s=percentile(ttfts[name], 95),
                gpu_s=gpu_s * service[name][0] / total,
            )
            for name in sorted(ttfts)
        },
    )


def verdicts(recorded: RunFigures, before: RunFigures, after: RunFigures) -> list[Verdict]:
    """One for each client. A change that is smaller than the error of the model, the difference of the replay `before` to what was
    recorded, is no difference."""
    return [
        _verdict(name, recorded.clients.get(name), before.clients[name], after.clients[name])
        for name in before.clients
        if name in after.clients
    ]


def _verdict(
    name: str, recorded: ClientFigures | None, before: ClientFigures, after: ClientFigures
) -> Verdict:
    real = before if recorded is None else recorded
    rate = _change(real.tokens_per_s, before.tokens_per_s, after.tokens_per_s, CHANGED_RATE)
    # A client that waits for a part of the run only shows it in the tail, and not in the median.
    tail = _change(real.ttft_p95_s, before.ttft_p95_s, after.ttft_p95_s, CHANGED_TTFT)
    middle = _change(real.ttft_p50_s, before.ttft_p50_s, after.ttft_p50_s, CHANGED_TTFT)
    wait = -(tail.sign or middle.sign)
    effect = "trades" if rate.sign * wait < 0 else _EFFECTS[rate.sign or wait]
    inside = effect == "keeps" and any(one.is_within_error for one in (rate, tail, middle))
    what = "no difference within the error of the model" if inside else effect
    sentence = (
        f"{name}{':' if inside else ''} {what}: {before.share:.0%} → {after.share:.0%} of the service, "
        f"{before.tokens_per_s:,.1f} → {after.tokens_per_s:,.1f} output tokens/s, "
        f"median TTFT {before.ttft_p50_s:,.2f} → {after.ttft_p50_s:,.2f} s, "
        f"p95 {before.ttft_p95_s:,.2f} → {after.ttft_p95_s:,.2f} s."
    )
    return Verdict(client=name, effect=effect, sentence=sentence)


class _Change(NamedTuple):
    sign: int
    """1: it grew; -1: it fell; 0: neither, or less than the error of the model."""
    is_within_error: bool
    """Whether it changed by less than that error."""


def _change(real: float, before: float, after: float, least: float) -> _Change:
    """The change of a figure. `real`: as recorded. The error of the model is the difference of the replay `before` to it. `least`: the part
    from which on a change counts."""
    error = abs(before - real) / max(before, 1e-9)
    sign = _sign(before, after, max(least, error))
    return _Change(sign, not sign and bool(_sign(before, after, least)))


_EFFECTS: Mapping[int, str] = {1: "gains", 0: "keeps", -1: "loses"}


def _sign(before: float, after: float, least: float) -> int:
    """1 if it grew by more than the part `least`, -1 if it fell by more."""
    change = after - before
    if abs(change) <= least * max(before, 1e-9):
        return 0
    return 1 if change > 0 else -1
