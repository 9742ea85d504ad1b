"""What a recording says of the requests that a fleet served."""

from __future__ import annotations

from evenkeel_contract.recording import RequestLine
from evenkeel_laboratory.experiments.whatif import Served, of_requests


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
