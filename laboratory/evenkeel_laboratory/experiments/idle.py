"""Seconds with an empty replica while a request waits at another one for longer than its missing prefix takes there (R2).

A replica is empty between the end of its last open request and the arrival of its next one. The missing prefix of a request is
what it found in the cache of its own replica: another replica may hold less of it, or as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final

from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.traffic.records import Record

from evenkeel_laboratory.experiments.fleet import FleetConfig

SHORT_S: Final = 0.1
"""A wait for the engine's next iteration is shorter, and does not count."""

_Spans = list[tuple[float, float]]


def idle_seconds(records: Collection[Record], fleet: FleetConfig) -> float:
    """Seconds in which some replica was empty while some request waited elsewhere for too long."""
    ran = [one for one in records if one.admitted_s is not None and one.finished_s is not None]
    end_s = max([one.finished_s or 0.0 for one in ran], default=0.0)
    empty = [
        list(_gaps([one for one in ran if one.replica == slot], end_s))
        for slot in range(fleet.replicas)
    ]
    idle: _Spans = []
    for one in ran:
        assert one.admitted_s is not None
        wait_s = one.admitted_s - one.arrival_s
        if wait_s > SHORT_S:
            missing_s = prefill_seconds(fleet.profile, one.cached_tokens)
            for slot, spans in enumerate(empty):
                if slot != one.replica and wait_s > missing_s * fleet.slowdown(slot):
                    idle += _overlaps(spans, one.arrival_s, one.admitted_s)
    return _length(idle)


def prefill_seconds(profile: CostProfile, tokens: int) -> float:
    """Time that an empty replica takes to compute the first `tokens` of a prompt."""
    attention_ms = profile.prefill_attention_ms * tokens * tokens / 2
    return (profile.prefill_token_ms * tokens + attention_ms) / 1000 if tokens else 0.0


def _gaps(records: Collection[Record], end_s: float) -> Iterator[tuple[float, float]]:
    """The times in which none of these requests is open."""
    free_s = 0.0
    for one in sorted(records, key=lambda one: one.arrival_s):
        assert one.finished_s is not None
        if one.arrival_s > free_s:
            yield free_s, one.arrival_s
        free_s = max(free_s, one.finished_s)
    if end_s > free_s:
        yield free_s, end_s


def _overlaps(spans: _Spans, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """The parts of ascending spans between two times."""
    first = max(0, bisect_left(spans, (start_s, start_s)) - 1)
    for place in range(first, len(spans)):
        begin_s, stop_s = spans[place]
        if begin_s >= end_s:
            return
        if stop_s > start_s:
            yield max(begin_s, start_s), min(stop_s, end_s)


def _length(spans: _Spans) -> float:
    """Seconds that lie in at least one of the spans."""
    total, covered_s = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(start_s, covered_s))
        covered_s = max(covered_s, end_s)
    return total
