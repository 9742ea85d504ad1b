"""The verdict on fairness."""

from __future__ import annotations

import pytest
from evenkeel_cli.verdict import verdict


@pytest.mark.parametrize(
    ("given_over_owed", "want"),
    [
        ({}, "Fair: no client had to wait for another."),
        ({"a": 1.2}, "Fair: every client that waited was given at least 100% of what it was owed."),
        (
            {"a": 1.2, "b": 0.8},
            "Fair: every client that waited was given at least 80% of what it was owed.",
        ),
        (
            {"a": 1.2, "b": 0.43},
            "Unfair: b was given 43% of what it was owed while it waited.",
        ),
    ],
)
def test_the_least_served_client_decides(given_over_owed: dict[str, float], want: str) -> None:
    assert verdict(given_over_owed) == want
