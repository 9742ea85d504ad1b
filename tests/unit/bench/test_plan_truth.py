"""The comparison of plans with what a fleet then did (`bench.plan_truth`)."""

from __future__ import annotations

from evenkeel_laboratory.commands.planning import Plan
from evenkeel_laboratory.experiments.whatif import ClientFigures, RunFigures, verdicts

from bench.plan_truth import rows


def figures(*, tokens_per_s: float, ttft_s: float) -> RunFigures:
    """A run with one client."""
    client = ClientFigures(
        share=0.5, tokens_per_s=tokens_per_s, ttft_p50_s=ttft_s, ttft_p95_s=ttft_s, gpu_s=60.0
    )
    return RunFigures(
        replicas=2,
        window_s=60.0,
        gpu_s=120.0,
        tokens_per_s=tokens_per_s,
        ttft_p50_s=ttft_s,
        verdict="",
        clients={"default/ads/app": client},
    )


def test_a_row_has_the_error_of_the_wait_and_both_effects() -> None:
    before, predicted = (
        figures(tokens_per_s=10, ttft_s=20.0),
        figures(tokens_per_s=20, ttft_s=12.0),
    )
    plan = Plan(
        recorded=before,
        today=before,
        changed=predicted,
        share_error=0.0,
        ttft_error=0.0,
        fit_answers=None,
        fit_error=None,
        profile={},
        not_replayed={},
        verdicts=verdicts(before, before, predicted),
    )
    (near,) = rows("faster", before, plan, figures(tokens_per_s=20, ttft_s=10.0))
    assert near == (
        "| faster | ads | 50.0% | 50.0% | 50.0% | 20.00 | 12.00 | 10.00 | +20% | gains | gains | yes |"
    )
    (wrong,) = rows("faster", before, plan, figures(tokens_per_s=5, ttft_s=40.0))
    assert wrong.endswith("| -70% | gains | loses | no |")
