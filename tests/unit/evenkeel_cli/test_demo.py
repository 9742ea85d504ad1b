"""The load of the demo and its figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from evenkeel_cli.demo.figures import make_figures, ordinary_requests
from evenkeel_cli.demo.phases import FLOOD, ORDINARY, Flood, PhaseResult, _file, phases
from evenkeel_cli.manifest import parse_manifest
from evenkeel_cli.replay.run import Outcome
from evenkeel_cli.replay.sender import Answer
from evenkeel_simulator.traffic.workload import Call, Program


def test_the_load_is_reproducible_and_has_the_stated_rates() -> None:
    flood = Flood(duration_s=200)
    programs = flood.programs()
    assert programs == Flood(duration_s=200).programs()
    assert programs == sorted(programs, key=lambda program: program.arrival_s)
    counts = Counter(program.client for program in programs)
    assert set(counts) == {FLOOD, *ORDINARY}
    for client, per_s in [(FLOOD, 20), *((name, 2) for name in ORDINARY)]:
        assert counts[client] == pytest.approx(200 * per_s, rel=0.15), client
    assert {len({p.calls[0].prompt for p in programs if p.client == c}) for c in counts} == {4}
    assert all(
        32 <= p.calls[0].input_tokens - 512 <= 160 and 32 <= p.calls[0].output_tokens <= 96
        for p in programs
    )


def test_the_flood_does_not_change_the_requests_of_the_others() -> None:
    flood = Flood(duration_s=20)
    alone = replace(flood, flood_factor=0.0).programs()
    assert alone == [program for program in flood.programs() if program.client != FLOOD]


def test_the_phases_differ_only_in_policies_and_flood() -> None:
    baseline, common, fair = phases(Flood(), 8000)
    assert common.flood == fair.flood
    assert baseline.flood.flood_factor == 0
    files = [parse_manifest(_file(phase).encode(), phase.name) for phase in (common, fair)]
    policies = [file.service.spec.scheduling for file in files]
    assert [(p.replica_policy.value, p.fleet_policy.value) for p in policies] == [
        ("LPM", "RoundRobin"),
        ("DLPM", "D2LPM"),
    ]
    assert files[0].service.spec.engine == files[1].service.spec.engine
    assert files[0].tenants == files[1].tenants
    assert all(file.warnings == () for file in files)


def program(name: str, client: str, arrival_s: float) -> Program:
    call = Call(input_tokens=100, output_tokens=10, max_output_tokens=10)
    return Program(name, client, arrival_s, (call,))


def outcome(of: Program, *, first_s: float, ended_s: float, error: str | None = None) -> Outcome:
    answer = Answer(
        sent_s=of.arrival_s,
        ended_s=ended_s,
        first_token_s=None if error else first_s,
        input_tokens=100,
        cached_tokens=40,
        output_tokens=10,
        error=error,
    )
    return Outcome(program=of.id, number=0, client=of.client, due_s=of.arrival_s, answer=answer)


def result() -> PhaseResult:
    """Two ordinary requests ended and one did not; one request of the flood ended too late to count."""
    ada = [program("ada-0", "ada", 0.0), program("ada-1", "ada", 1.0), program("ada-2", "ada", 2.0)]
    flood = [program("flood-0", FLOOD, 0.0), program("flood-1", FLOOD, 0.5)]
    return PhaseResult(
        phase=replace(phases(Flood(duration_s=10.0), 8000)[1]),
        programs=[*ada, *flood],
        outcomes=[
            outcome(ada[0], first_s=1.0, ended_s=3.0),
            outcome(ada[1], first_s=4.0, ended_s=9.0),
            outcome(flood[0], first_s=1.0, ended_s=5.0),
            outcome(flood[1], first_s=1.0, ended_s=11.0),
        ],
        elapsed_s=20.0,
    )


def test_an_unfinished_request_counts_with_its_waiting_time() -> None:
    assert [(one.ttft_s, one.latency_s, one.ended) for one in ordinary_requests(result())] == [
        (1.0, 3.0, True),
        (3.0, 8.0, True),
        (18.0, 18.0, False),
    ]


def test_figures_are_those_of_ordinary_clients_and_of_finished_requests() -> None:
    figures = make_figures(result())
    assert (figures.requests, figures.unfinished, figures.failed) == (3, 1, 0)
    assert (figures.ttft_p50_s, figures.latency_p50_s) == (3.0, 8.0)
    assert figures.tokens_per_s == 3 * 110 / 10
    assert figures.hit_rate == pytest.approx(0.4)
    # Neither is owed more than it was given: they are given the same while both wait, and then one is alone.
    assert figures.given_over_owed == {FLOOD: 1.0, "ada": 1.0}
    assert figures.jain == 1.0


def test_a_client_that_waits_until_the_end_is_owed_its_share() -> None:
    ada = program("ada-0", "ada", 0.0)
    flood = [program(f"flood-{n}", FLOOD, 0.0) for n in range(10)]
    served = [outcome(one, first_s=n + 0.5, ended_s=n + 1.0) for n, one in enumerate(flood)]
    starved = replace(result(), programs=[ada, *flood], outcomes=served, elapsed_s=10.0)
    figures = make_figures(starved)
    # Each request is 60 computed and 10 output tokens: 80 weighted tokens. In each of the first nine seconds both wait.
    assert figures.given_over_owed["ada"] == 0.0
    assert figures.given_over_owed[FLOOD] == pytest.approx(800 / (9 * 40 + 80), rel=0.1)
    assert figures.jain == pytest.approx(0.5)


def test_a_failed_request_counts_with_the_time_until_its_failure() -> None:
    one = result()
    failed = outcome(one.programs[1], first_s=0, ended_s=6.0, error="503")
    figures = make_figures(replace(one, outcomes=[one.outcomes[0], failed, *one.outcomes[2:]]))
    assert figures.failed == 1
    assert figures.ttft_p50_s == 5.0
    assert figures.tokens_per_s == 2 * 110 / 10
