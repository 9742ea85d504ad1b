"""The verdict on fairness."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_fairshare.verdict import client_in_words, verdict
from evenkeel_fairshare.window import WindowShares


@pytest.mark.parametrize(
    ("given_over_owed", "took", "want"),
    [
        ({}, {}, "Fair: no client had to wait for another."),
        (
            {"a": 1.2},
            {"a": 1.2},
            "Fair: every client that waited was given at least 100% of what it was owed.",
        ),
        (
            {"a": 1.2, "b": 0.8},
            {"a": 1.2},
            "Fair: every client that waited was given at least 80% of what it was owed.",
        ),
        ({"b": 0.43}, {}, "Unfair: b was given 43% of what it was owed while it waited."),
        (
            {"a": 1.2, "b": 0.43, "c": 0.79, "d": 0.8},
            {"a": 1.2, "e": 1.1},
            "Unfair: b was given 43% of what it was owed while it waited, c 79%. Given more than owed: a 120%, e 110%.",
        ),
        (
            {name: 0.5 for name in "abcdef"},
            {name: 1.5 for name in "vwxyz"},
            (
                "Unfair: a was given 50% of what it was owed while it waited, b 50%, c 50%, d 50%, and 2 more. "
                "Given more than owed: v 150%, w 150%, x 150%, and 2 more."
            ),
        ),
    ],
)
def test_an_unfair_verdict_names_who_lost_and_who_took(
    given_over_owed: dict[str, float], took: dict[str, float], want: str
) -> None:
    assert verdict(WindowShares(given_over_owed, took)) == want


@pytest.mark.parametrize(
    ("idle_s", "want"),
    [
        (0.9, "Fair: no client had to wait for another."),
        (
            34.2,
            "Fair: no client had to wait for another. A replica was empty for 34 s while requests waited at another.",
        ),
    ],
)
def test_idle_replicas_are_in_the_verdict(idle_s: float, want: str) -> None:
    assert verdict(WindowShares(idle_s=idle_s)) == want


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
