"""What one client may cost another whose requests run: the closed loops of `bench/workloads/isolation/` (design R13)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from evenkeel_fairshare.replica.registry import make_policy
from evenkeel_simulator.engine.admission import HistoryAdmission
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES

from bench.closed_loop import LoopFigures, read_loop, run_closed_loop, total_service_per_s
from tests.unit.evenkeel_simulator.engine_support import make_request

FOLDER = Path(__file__).parents[3] / "bench/workloads/isolation"
WARMUP_S, END_S = 15.0, 75.0
DEFAULT = 0.5


@cache
def play(
    name: str,
    isolation: float | None,
    max_running: int = 4096,
    admission: AdmissionRule = AdmissionRule.SGLANG,
) -> dict[str, LoopFigures]:
    spec = read_loop(FOLDER / f"{name}.yaml")
    config = EngineConfig(isolation=isolation, max_running=max_running, admission=admission)
    engine = Engine(config, make_policy("DLPM"), PROFILES[spec.profile])
    return run_closed_loop(engine, spec.clients, until_s=END_S)


def rate(figures: dict[str, LoopFigures]) -> float:
    return figures["measured"].rate_per_s(WARMUP_S, END_S)


def service(figures: dict[str, LoopFigures]) -> float:
    return total_service_per_s(figures.values(), WARMUP_S, END_S)


def longest_chunk_s(name: str) -> float:
    """Seconds of a full prefill at the end of the longest prompt."""
    spec = read_loop(FOLDER / f"{name}.yaml")
    profile, tokens = PROFILES[spec.profile], EngineConfig().prefill_tokens
    context_tokens = max(client.input_tokens for client in spec.clients)
    token_ms = profile.prefill_token_ms + profile.prefill_attention_ms * context_tokens
    return (profile.prefill_ms + tokens * token_ms) / 1000


@pytest.mark.parametrize("attack", ["prompts-3000", "prompts-20000", "prompts-1000"])
def test_prompts_of_others_leave_a_client_that_decodes_its_share(attack: str) -> None:
    alone, today, now = play("alone", None), play(attack, None), play(attack, DEFAULT)
    assert rate(today) == 0.0, "the attack works without the division of engine time"
    assert rate(now) >= 1.6
    measured, before = now["measured"], alone["measured"]
    assert measured.mean_gap_s(WARMUP_S) <= 2.2 * before.mean_gap_s(WARMUP_S)
    assert measured.p99_gap_s(WARMUP_S) <= before.p99_gap_s(WARMUP_S) + longest_chunk_s(attack)


def test_the_default_costs_an_honest_flood_at_most_3_percent() -> None:
    assert service(play("honest-flood", DEFAULT)) >= 0.97 * service(play("honest-flood", None))


def test_isolation_costs_about_as_much_service_as_a_smaller_batch() -> None:
    def measured(figures: dict[str, LoopFigures]) -> float:
        return figures["measured"].service_per_s(WARMUP_S, END_S)

    base, default, strict = (play("honest-flood", isolation) for isolation in (0.0, DEFAULT, 1.0))
    assert measured(base) < measured(default) < measured(strict)
    assert service(base) > service(default) > service(strict)
    larger, smaller = play("honest-flood", None, 64), play("honest-flood", None, 32)
    assert measured(larger) < measured(strict) < measured(smaller)
    # Total service is linear in the measured's: a step has a fixed time and a time per request.
    slope = (service(larger) - service(smaller)) / (measured(smaller) - measured(larger))
    line = service(larger) - slope * (measured(strict) - measured(larger))
    assert service(strict) >= 0.98 * line


def test_a_client_that_used_an_idle_engine_soon_gets_a_quarter_of_its_share() -> None:
    """R15. It had used 100,000 weighted tokens while no other client was there."""
    spec = read_loop(FOLDER / "rejoin.yaml")
    engine = Engine(EngineConfig(), make_policy("DLPM"), PROFILES[spec.profile])
    played = run_closed_loop(engine, spec.clients, until_s=104.0)
    assert played["old"].service_per_s(0.0, 60.0) * 60.0 > 100_000
    for from_s in range(80, 104, 2):
        total = total_service_per_s(played.values(), from_s, from_s + 2)
        for client in ("old", "measured"):
            assert played[client].service_per_s(from_s, from_s + 2) >= total / 2 / 4


def test_a_client_that_overstates_its_output_keeps_no_others_out() -> None:
    """R14: the same flood with `max_output_tokens` 4096 and 128 used."""
    honest, lying = play("honest-flood", None), play("lying-flood", None)
    by_history = play("lying-flood", None, admission=AdmissionRule.HISTORY)
    assert service(lying) < 0.8 * service(honest), "the lie works without reservations by history"
    assert service(by_history) >= 0.95 * service(honest)


@pytest.mark.parametrize(("output", "in_all"), [(60, 100), (100, 1000)])
def test_a_retracted_request_counts_with_its_output_within_a_pass(output: int, in_all: int) -> None:
    """As SGLang's `_commit_prefill_admission`: it reserves the limit, which the plug-in lowers to what is expected in all."""
    rule = HistoryAdmission()
    ended, retracted = (make_request(name, tail=10, output=100, max_output=1000) for name in "er")
    ended.output_tokens, retracted.output_tokens = 100, output
    rule.finished(ended)
    rule.begin((), 0)
    rule.admit(retracted)
    newcomer = make_request("n", tail=10, output=100)
    need = (in_all + rule.MARGIN_TOKENS) + (10 + 100 + rule.MARGIN_TOKENS)
    assert not rule.missing(newcomer, 10, need + 1)
    assert rule.missing(newcomer, 10, need)


def test_beyond_its_history_a_request_counts_with_all_that_it_may_produce() -> None:
    rule = HistoryAdmission()
    ended, running = (make_request(name, tail=10, output=100, max_output=1000) for name in "er")
    ended.output_tokens = 100
    for tokens, want in ((0, 1000), (99, 901), (100, 900), (400, 600)):
        running.output_tokens = tokens
        rule.begin([running], running.reserved_tokens)
        assert not rule.missing(make_request("n", tail=10, output=1), 10, 12 + int(0.7 * want) + 1)
        assert rule.missing(make_request("n", tail=10, output=1), 10, 12 + int(0.7 * want) - 1)
    rule.finished(ended)
    for tokens, want in ((0, 100), (99, 1), (100, 900), (400, 600)):
        running.output_tokens = tokens
        rule.begin([running], running.reserved_tokens)
        assert not rule.missing(make_request("n", tail=10, output=1), 10, 12 + int(0.7 * want) + 2)
        assert rule.missing(make_request("n", tail=10, output=1), 10, 12 + int(0.7 * want) - 1)
