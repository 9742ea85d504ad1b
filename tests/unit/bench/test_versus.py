"""The rules, figures and words of the head to head (`bench.versus`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path

import msgspec
import pytest
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, ReplicaSet

from bench.versus import page as pages
from bench.versus import raw
from bench.versus.clients import Seen
from bench.versus.figures import MEASURES, Figures, Sample, figures, idle_part
from bench.versus.isolation import effect
from bench.versus.policies import KeyLimits, TurnQueues, WeightedScores, backoff_s
from bench.versus.workloads import BIG, CASES, SMALL, capacity

RESULTS = Path(__file__).parents[3] / "bench" / "results"
BOTH = ReplicaSet(0b11)
FIGURES = Figures(
    share=0.3,
    worst_minute=0.9,
    answered=1.0,
    ttft_p50_s=0.4,
    ttft_p95_s=1.0,
    gap_p50_s=0.05,
    gap_p95_s=0.08,
    big_ttft_p50_s=4.0,
    big_ttft_p95_s=9.0,
    tokens_per_s=4000.0,
    cached=0.5,
    idle=0.0,
    refusals=0,
    failures=0,
    verdict="Fair.",
)
FACTS = raw.Facts(
    command="make versus",
    commit="abc",
    date="2026-11-27",
    seconds=100.0,
    litellm="1.2.3",
    cores=2,
    nice=0,
    load_before=0.5,
    load_after=1.5,
    late_p99_s={"flood": 0.004},
)


def seen(team: str, sent_s: float, first_s: float | None, ended_s: float | None, **more: int) -> Seen:  # fmt: skip
    given = {"input_tokens": 100, "cached_tokens": 0, "output_tokens": 11, "refusals": 0} | more
    return Seen(f"{team}-{sent_s}", team, sent_s, first_s, ended_s, error="", **given)


# Turns by request


def test_teams_take_turns_whatever_the_length_of_their_queues() -> None:
    queues = TurnQueues[str](places=6)
    for number in range(9):
        queues.arrive(BIG, f"big {number}")
    queues.arrive(SMALL, "small 0")
    queues.arrive(SMALL, "small 1")
    order = list(iter(queues.next, None))
    assert order == ["big 0", "small 0", "big 1", "small 1", "big 2", "big 3"]


def test_a_request_waits_until_one_leaves_the_engines() -> None:
    queues = TurnQueues[str](places=1)
    queues.arrive(BIG, "first")
    queues.arrive(BIG, "second")
    assert [queues.next(), queues.next()] == ["first", None]
    queues.ended()
    assert queues.next() == "second"


def test_a_router_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="places is 0"):
        TurnQueues[str](places=0)


# Limits per key


def test_a_key_over_its_limit_waits_for_the_next_window() -> None:
    limits = KeyLimits({SMALL: 100.0, BIG: 100.0}, window_s=60.0)
    limits.count(BIG, 100, 10.0)
    assert not limits.admits(BIG, 59.9)
    assert limits.admits(SMALL, 59.9)
    assert limits.admits(BIG, 60.0)


def test_tokens_count_in_the_window_in_which_an_answer_ends() -> None:
    limits = KeyLimits({BIG: 100.0}, window_s=60.0)
    assert limits.admits(BIG, 59.0)  # it runs over the end of the window
    limits.count(BIG, 500, 61.0)
    assert not limits.admits(BIG, 62.0)


def test_a_refused_client_waits_twice_as_long_up_to_eight_seconds() -> None:
    assert [backoff_s(n, 0.0) for n in (1, 2, 3, 5, 6, 2000)] == [0.5, 1.0, 2.0, 8.0, 8.0, 8.0]
    assert backoff_s(1, 1.0) == 0.375


# Routing


def dispatch(tokens: int, held: dict[int, int]) -> Dispatch:
    most = max(held.values(), default=0)
    longest = ReplicaSet(sum(1 << slot for slot, own in held.items() if own == most and own))
    matched_at = lambda slot: held.get(slot, 0)
    return Dispatch("c", tokens, longest=longest, matched_tokens=most, matched_at=matched_at)


def test_a_long_prefix_weighs_more_than_a_short_queue() -> None:
    policy = WeightedScores(pool_tokens=10_000)
    assert policy.select(dispatch(1000, {1: 900}), BOTH, [0, 1]) == 1
    assert policy.select(dispatch(1000, {1: 600}), BOTH, [0, 1]) == 0


def test_the_shorter_match_of_the_other_engine_counts_too() -> None:
    policy = WeightedScores(pool_tokens=10_000)
    assert policy.select(dispatch(1000, {0: 400, 1: 900}), BOTH, [0, 1]) == 0


def test_an_engine_with_full_memory_loses_to_an_empty_one() -> None:
    policy = WeightedScores(pool_tokens=1000)
    request = dispatch(1000, {0: 900})
    policy.dispatched(request, 0)
    assert policy.select(request, BOTH, [1, 0]) == 1
    policy.finished(request, 0, NOTHING)
    assert policy.select(request, BOTH, [1, 1]) == 0


# Workloads


def test_a_workload_is_the_same_for_all_contenders() -> None:
    for case in CASES.values():
        for crowd in case.crowds:
            assert list(crowd.arrivals(30.0, 1)) == list(crowd.arrivals(30.0, 1))
            twice = [list(islice(crowd.of_worker(3, 1), 4)) for _ in range(2)]
            assert twice[0] == twice[1]


def test_no_two_programs_have_one_name() -> None:
    for case in CASES.values():
        names = [program.id for crowd in case.crowds for program in crowd.arrivals(60.0, 1)]
        for crowd in case.crowds:
            for worker in range(crowd.workers):
                names += [program.id for program in islice(crowd.of_worker(worker, 1), 5)]
        assert max(Counter(names).values()) == 1


def test_half_load_is_half_of_the_capacity_by_the_simulator() -> None:
    most = capacity("half-load").requests_per_s
    rates = {crowd.team: crowd.rate_per_s for crowd in CASES["half-load"].crowds}
    assert sum(rates.values()) / most == pytest.approx(0.5, abs=0.03)
    assert rates[SMALL] / most == pytest.approx(0.4, abs=0.03)
    assert CASES["half-load"].share(SMALL) == 0.2


def test_the_small_team_of_a_flood_asks_for_less_than_its_share() -> None:
    """Even if it sent what the big team sends, at its own rate."""
    [rate] = [crowd.rate_per_s for crowd in CASES["flood"].crowds if crowd.team == SMALL]
    assert rate / capacity("flood").requests_per_s < CASES["flood"].share(SMALL) / 2


# Figures


def test_a_request_without_an_answer_waits_until_the_end() -> None:
    rows = [seen(SMALL, 20.0, None, None), seen(SMALL, 30.0, 31.0, 32.0)]
    found = figures(CASES["flood"], rows, [], 100.0)
    assert (found.ttft_p50_s, found.answered) == (pytest.approx((80.0 + 1.0) / 2), 0.5)


def test_a_failed_answer_counts_as_none_even_if_its_first_token_came() -> None:
    rows = [seen(SMALL, 20.0, 20.5, 21.0)._replace(error="stream")]
    found = figures(CASES["flood"], rows, [], 100.0)
    assert (found.ttft_p50_s, found.answered, found.failures) == (80.0, 0.0, 1)


def test_the_first_and_last_ten_seconds_count_in_no_latency() -> None:
    rows = [seen(SMALL, at, at + 1, at + 2) for at in (9.9, 10.0, 89.9)]
    slow = [seen(SMALL, 90.0, None, None)]
    assert figures(CASES["flood"], rows + slow, [], 100.0).ttft_p95_s == pytest.approx(1.0)
    early = [seen(SMALL, 9.9, None, None)]
    assert figures(CASES["flood"], rows + early, [], 100.0).answered == 1.0


def test_a_share_is_of_what_was_computed() -> None:
    rows = [
        seen(SMALL, 20.0, 21.0, 22.0, input_tokens=300, cached_tokens=200, output_tokens=50),
        seen(BIG, 20.0, 21.0, 22.0, input_tokens=400, cached_tokens=0, output_tokens=100),
    ]
    found = figures(CASES["flood"], rows, [], 100.0)
    assert found.share == pytest.approx(200 / 800)
    assert found.cached == pytest.approx(200 / 700)
    assert found.tokens_per_s == pytest.approx(850 / 90)


def test_the_time_between_tokens_is_the_mean_of_a_request() -> None:
    rows = [seen(SMALL, 20.0, 21.0, 22.0, output_tokens=11)]
    assert figures(CASES["flood"], rows, [], 100.0).gap_p50_s == pytest.approx(0.1)
    assert figures(CASES["flood"], [seen(SMALL, 20.0, None, None)], [], 100.0).gap_p50_s == inf


def test_an_empty_engine_is_idle_capacity_only_while_somebody_waits() -> None:
    rows = [seen(BIG, 20.0, 24.0, 30.0)]
    empty_one = [Sample(at, (0, 5), 0.0) for at in (20.4, 21.0, 23.0, 25.0)]
    assert idle_part(rows, empty_one) == 2 / 8
    assert idle_part(rows, [Sample(21.0, (1, 5), 0.0)]) == 0.0


def test_idle_capacity_sees_requests_that_are_never_answered() -> None:
    rows = [seen(BIG, 20.0, None, None, refusals=9)]
    assert idle_part(rows, [Sample(99.0, (0, 0), 0.0)]) == 1.0


# Who is better


def measure(field: str) -> pages.Measure:
    [found] = [one for one in MEASURES if one.field == field]
    return found


@pytest.mark.parametrize(
    ("field", "better", "as_good"),
    [
        ("ttft_p50_s", 0.34, 0.36),
        ("answered", 1.03, 1.01),
        ("tokens_per_s", 4200.0, 4100.0),
        ("idle", -0.02, 0.0),
        ("worst_minute", 1.0, 0.94),
        ("worst_minute", None, 0.9),
    ],
)
def test_small_differences_do_not_count(field: str, better: float, as_good: float) -> None:
    one = measure(field)
    assert one.better(replace(FIGURES, **{field: better}), FIGURES)
    assert not one.better(FIGURES, replace(FIGURES, **{field: better}))
    assert not one.better(replace(FIGURES, **{field: as_good}), FIGURES)


def test_more_than_what_was_owed_is_not_better_than_all_of_it() -> None:
    whole = replace(FIGURES, worst_minute=1.0)
    assert not measure("worst_minute").better(replace(FIGURES, worst_minute=3.0), whole)


def test_a_latency_that_was_not_measured_is_worse_than_any() -> None:
    none = replace(FIGURES, gap_p95_s=inf)
    assert measure("gap_p95_s").better(FIGURES, none)
    assert not measure("gap_p95_s").better(none, none)


def test_the_page_names_whoever_is_better_than_evenkeel() -> None:
    own = {name: FIGURES for name in pages.CONTENDERS}
    assert "In no figure of this run." in pages.page(FACTS, {"flood": own})
    own["turns"] = replace(FIGURES, ttft_p95_s=0.5)
    own["evenkeel"] = replace(FIGURES, tokens_per_s=3000.0)
    text = pages.page(FACTS, {"flood": own})
    assert "| a flood | small team, TTFT p95 | turns by request | turns by request |" in text
    others = (
        "order of arrival, longest prefix first, limits per key, LiteLLM, turns by request, "
        "turns (8 places)"
    )
    assert f"| a flood | tokens/s, both teams | {others} | – |" in text


def test_the_page_says_that_the_machine_was_too_busy() -> None:
    busy = msgspec.structs.replace(FACTS, late_p99_s={"flood": 0.004, "swarm": 0.06})
    assert "too busy" in pages.page(busy, {})
    assert "too busy" not in pages.page(FACTS, {})


# Raw data


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    rows = [seen(SMALL, 20.0, None, None, refusals=3), seen(BIG, 20.5, 21.25, 22.0)]
    trials = {"flood": {"fcfs": raw.Trial(rows, [Sample(1.0, (3, 0), 0.001)])}}
    raw.write(tmp_path, FACTS, trials)
    assert raw.read(tmp_path) == (FACTS, trials)


def test_samples_before_the_run_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("99.9 1 0 0 0 0.0\n101.5 1 2 3 4 0.01\n")
    assert raw.samples_of(tmp_path / "samples", 100.0) == [Sample(1.5, (3, 7), 0.01)]


def test_the_page_in_the_repository_is_that_of_its_raw_data() -> None:
    facts, trials = raw.read(RESULTS / "versus")
    written = (RESULTS / "versus.md").read_text(encoding="utf-8")
    assert written == pages.page(facts, pages.found_in(trials, facts.seconds))


# Isolation


def test_isolation_costs_the_team_above_its_share_at_half_load() -> None:
    on, off = effect(0.5), effect(None)
    assert on.small_ttft_s > 2 * off.small_ttft_s
    assert on.big_gap_s < off.big_gap_s
