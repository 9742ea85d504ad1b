"""Seconds with an empty replica while a request waits elsewhere longer than its missing prefix takes there."""

from __future__ import annotations

import pytest
from evenkeel_laboratory.experiments.fleet import FleetConfig
from evenkeel_laboratory.experiments.idle import idle_seconds, prefill_seconds
from evenkeel_laboratory.experiments.setup import Setup
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.records import Record

PROFILE = PROFILES["a100-llama3.1-8b"]


def fleet(slowdowns: tuple[float, ...] = ()) -> FleetConfig:
    return Setup(profile=PROFILE, replicas=2, slowdowns=slowdowns).fleet()


def record(
    replica: int, arrival_s: float, admitted_s: float, finished_s: float, *, cached_tokens: int = 0
) -> Record:
    return Record(
        id=f"{replica}/{arrival_s}",
        program="",
        client="c",
        replica=replica,
        status="finished",
        arrival_s=arrival_s,
        admitted_s=admitted_s,
        first_token_s=finished_s,
        finished_s=finished_s,
        input_tokens=100_000,
        cached_tokens=cached_tokens,
        extend_tokens=100_000 - cached_tokens,
        output_tokens=1,
        retractions=0,
    )


def test_only_time_in_which_another_replica_is_empty_counts() -> None:
    records = [record(1, 3, 3, 5), record(0, 0, 0, 8), record(0, 2, 7, 9), record(0, 2, 8, 9)]
    # Replica 1 is empty until 3 and from 5; requests wait from 2 to 8.
    assert idle_seconds(records, fleet()) == pytest.approx(1 + 3)


def test_a_request_that_waits_for_its_prefix_counts_once_that_is_too_long() -> None:
    tokens = 20_000
    missing_s = prefill_seconds(PROFILE, tokens)
    assert 1 < missing_s < 2
    short, long = (
        [record(0, 0, wait_s, 9, cached_tokens=tokens)]
        for wait_s in (missing_s - 0.01, missing_s + 0.01)
    )
    assert idle_seconds(short, fleet()) == 0
    assert idle_seconds(long, fleet()) == pytest.approx(missing_s + 0.01)
    assert idle_seconds(long, fleet((1.0, 4.0))) == 0  # a slow replica takes longer


def test_waits_for_an_iteration_and_requests_that_never_ran_do_not_count() -> None:
    never = record(0, 0, 0, 9)._replace(admitted_s=None)
    assert idle_seconds([record(0, 0, 0.05, 1), never], fleet()) == 0
    assert idle_seconds([], fleet()) == 0
