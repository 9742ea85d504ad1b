"""What a recording says of the requests that a fleet served."""

from __future__ import annotations

from evenkeel_contract.recording import RequestLine
from evenkeel_laboratory.experiments.whatif import (
    RunFigures,
    Served,
    figures,
    of_requests,
    verdicts,
)


def test_cached_tokens_of_a_recorded_request_are_no_service() -> None:
    line = RequestLine(
        arrival_s=1.0, client="ns/t/a", api="/v1/completions", duration_s=5.0, ttft_s=2.0,
        input_tokens=100, cached_tokens=60, output_tokens=7,
    )  # fmt: skip
    assert of_requests([line]) == [
        Served(
            client="ns/t/a", arrival_s=1.0, first_token_s=3.0, end_s=6.0,
            extend_tokens=40, output_tokens=7,
        )
    ]  # fmt: skip


def run(*, ttft_s: list[float]) -> RunFigures:
    """Requests of one client, which wait so long."""
    served = [
        Served(client="a", arrival_s=9.0 * n, first_token_s=9.0 * n + wait_s, end_s=9.0 * n + 60.0, extend_tokens=10, output_tokens=10)
        for n, wait_s in enumerate(ttft_s)
    ]  # fmt: skip
    return figures(served, replicas=1, window_s=600.0, verdict="")


def test_a_client_whose_long_waits_end_gains_though_its_median_grows() -> None:
    before, after = run(ttft_s=[0.07] * 18 + [30.0] * 2), run(ttft_s=[0.1] * 20)
    (found,) = verdicts(before, before, after)
    assert found.effect == "gains"
    assert "median TTFT 0.07 → 0.10 s, p95 30.00 → 0.10 s." in found.sentence
    (found,) = verdicts(after, after, before)
    assert found.effect == "loses"


def test_a_median_counts_where_the_longest_waits_are_the_same() -> None:
    before, after = run(ttft_s=[2.0] * 18 + [30.0] * 2), run(ttft_s=[1.0] * 18 + [30.0] * 2)
    (found,) = verdicts(before, before, after)
    assert found.effect == "gains"


def test_long_waits_that_differ_by_the_error_of_the_model_say_nothing() -> None:
    recorded, before, after = run(ttft_s=[2.0]), run(ttft_s=[3.0]), run(ttft_s=[2.5])
    (found,) = verdicts(recorded, before, after)
    assert (found.effect, "no difference within the error" in found.sentence) == ("keeps", True)
