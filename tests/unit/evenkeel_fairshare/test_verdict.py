"""The verdict on fairness."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_fairshare.verdict import client_in_words, verdict


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


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        (
            {"given_over_owed": 0.43, "waits": True},
            "Gets too little: it was given 43% of what it was owed while it waited.",
        ),
        (
            {"given_over_owed": 0.97},
            "Gets its share: it was given 97% of what it was owed while it waited.",
        ),
        ({"waits": True}, "Requests have begun to wait."),
        ({"active": False, "received": None}, "Sends no requests."),
        ({"received": 0.6}, "Uses idle capacity; no request waits."),
        ({"received": 0.2}, "Gets all that it requests; no request waits."),
        ({"received": None}, "Gets all that it requests; no request waits."),
    ],
)
def test_a_client_is_described_by_what_it_gets(changes: dict[str, Any], want: str) -> None:
    given = {"given_over_owed": None, "waits": False, "active": True, "received": 0.5, "share": 0.5}
    assert client_in_words(**(given | changes)) == want
