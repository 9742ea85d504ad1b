"""The verdict on one client."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_fairshare.client_verdict import ClientRecord, judge_client
from evenkeel_fairshare.verdict import Level, Silence

GIVEN = "it was given {} of what it was owed while it waited in the last minute."


@pytest.mark.parametrize(
    ("changes", "level", "want"),
    [
        (
            {"given_over_owed": 0.43, "waiting": 1},
            Level.UNFAIR,
            f"Gets too little: {GIVEN.format('43%')}",
        ),
        ({"given_over_owed": 0.97}, Level.FAIR, f"Gets its share: {GIVEN.format('97%')}"),
        (
            {"given_over_owed": 1.84, "hurts": True},
            Level.UNFAIR,
            f"Takes what others are owed: {GIVEN.format('184%')}",
        ),
        ({"hurts": True}, Level.UNFAIR, "Takes what others are owed."),
        (
            {"given_over_owed": 0.43, "hurts": True},
            Level.UNFAIR,
            f"Gets too little: {GIVEN.format('43%')}",
        ),
        ({"waiting": 1, "oldest_s": 1.9}, Level.FAIR, "Requests have begun to wait."),
        (
            {"waiting": 1, "oldest_s": 1.2, "left": 40, "nobody_answered": True},
            Level.HELD_UP,
            "None of 40 requests of the last minute was answered: the client left within 2 s.",
        ),
        # Others are answered.
        (
            {"left": 2, "given_over_owed": 1.0},
            Level.NOTHING,
            "None of 2 requests of the last minute was answered: the client left within 2 s.",
        ),
        ({"left": 2, "ended": 1}, Level.FAIR, "Gets all that it requests; no request waits."),
        ({"left": 2, "running": 1}, Level.FAIR, "Gets all that it requests; no request waits."),
        (
            {"waiting": 4, "oldest_s": 12.0},
            Level.UNJUDGED,
            "4 requests wait, the oldest for 12 s.",
        ),
        (
            {"failed": 1, "ended": 10},
            Level.HELD_UP,
            "Requests fail: 1 of 10 in the last minute.",
        ),
        (
            {"given_up": 5, "ended": 10, "given_over_owed": 1.0},
            Level.HELD_UP,
            "Requests are given up: 5 of 10 in the last minute.",
        ),
        ({"failed": 1, "ended": 11, "active": False}, Level.NOTHING, "Sends no requests."),
        (
            {"held": 1, "held_s": 2.0, "waiting": 1},
            Level.HELD_UP,
            "Requests wait in the router, because no replica takes them.",
        ),
        (
            {"silence": Silence(seconds=9.0, waiting=3), "waiting": 3},
            Level.HELD_UP,
            "No token for 9 s: 3 requests wait.",
        ),
        ({"active": False, "received": None}, Level.NOTHING, "Sends no requests."),
        ({"received": 0.6}, Level.FAIR, "Uses idle capacity; no request waits."),
        ({"received": 0.2}, Level.FAIR, "Gets all that it requests; no request waits."),
        ({"received": None}, Level.FAIR, "Gets all that it requests; no request waits."),
    ],
)
def test_a_client_is_described_by_what_it_gets(
    changes: dict[str, Any], level: Level, want: str
) -> None:
    given = {"active": True, "received": 0.5, "share": 0.5}
    found = judge_client(ClientRecord(**(given | changes)))
    assert (found.level, found.sentence) == (level, want)
