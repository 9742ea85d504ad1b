"""The verdict on a run."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_fairshare.verdict import (
    Level,
    RunRecord,
    Silence,
    judge,
)
from evenkeel_fairshare.window import Taken, WindowShares

FAIR = "Fair: no client had to wait for another."
ONCE = "clients are judged once they have waited for half a minute."
HALF = "every client that waited for half of the last minute was given at least 100% of what it was owed."


@pytest.mark.parametrize(
    ("given_over_owed", "took", "want"),
    [
        ({}, {}, FAIR),
        (
            {"a": 1.2},
            {"a": Taken(0.6, 0.5)},
            "Fair: every client that waited was given at least 100% of what it was owed.",
        ),
        (
            {"a": 1.2, "b": 0.8},
            {"a": Taken(0.6, 0.5)},
            "Fair: every client that waited was given at least 80% of what it was owed.",
        ),
        (
            {"b": 0.43},
            {},
            "Unfair: hurt in the worst minute: b (given 43% of what it was owed while it waited).",
        ),
        (
            {"a": 1.2, "b": 0.43, "c": 0.79, "d": 0.8},
            {"a": Taken(0.97, 0.11), "e": Taken(0.12, 0.1), "f": Taken(0.104, 0.1)},
            (
                "Unfair: in the worst minute a took 97% of the service, owed 11%, e 12%, owed 10%; "
                "hurt: b (given 43% of what it was owed while it waited), c (79%)."
            ),
        ),
        (
            {name: 0.5 for name in "abcdef"},
            {name: Taken(0.2, 0.1) for name in "vwxyz"},
            (
                "Unfair: in the worst minute v took 20% of the service, owed 10%, w 20%, owed 10%, x 20%, owed 10%, and 2 more; "
                "hurt: a (given 50% of what it was owed while it waited), b (50%), c (50%), and 3 more."
            ),
        ),
    ],
)
def test_an_unfair_verdict_names_who_lost_and_who_took(
    given_over_owed: dict[str, float], took: dict[str, Taken], want: str
) -> None:
    found = judge(RunRecord(shares=WindowShares(given_over_owed, took), answered=1))
    assert found.sentence == want
    assert found.level is (Level.UNFAIR if want.startswith("Unfair") else Level.FAIR)


@pytest.mark.parametrize(
    ("parts", "waiting", "oldest_s", "level", "want"),
    [
        ({}, 316, 1.9, Level.FAIR, FAIR),
        ({}, 316, 10.0, Level.UNJUDGED, f"Not judged yet: 316 requests wait, the oldest for 10 s; {ONCE}"),
        ({}, 1, 2.0, Level.UNJUDGED, f"Not judged yet: 1 request waits, the oldest for 2 s; {ONCE}"),
        ({}, 2, 99.0, Level.UNJUDGED, "Not judged yet: 2 requests wait, the oldest for 99 s."),
        # Only the flooder is judged.
        ({"a": 1.2}, 9, 4.9, Level.FAIR, f"Fair: {HALF}"),
        ({"a": 1.2}, 9, 5.0, Level.UNJUDGED, f"Not judged yet: 9 requests wait, the oldest for 5 s; {HALF}"),
    ],
)  # fmt: skip
def test_nothing_is_fair_while_clients_wait_that_are_not_judged(
    parts: dict[str, float], waiting: int, oldest_s: float, level: Level, want: str
) -> None:
    found = judge(
        RunRecord(
            shares=WindowShares(parts),
            minute=True,
            answered=5,
            running=5,
            waiting=700,
            oldest_s=200.0,
            unjudged=waiting,
            unjudged_s=oldest_s,
        )
    )
    assert (found.level, found.sentence) == (level, want)


def test_an_unfair_share_comes_before_clients_that_are_not_judged() -> None:
    record = RunRecord(shares=WindowShares({"a": 0.5}), answered=5, unjudged=3, unjudged_s=9.0)
    assert judge(record).level is Level.UNFAIR


@pytest.mark.parametrize(
    ("idle_s", "want"),
    [
        (0.9, FAIR),
        (
            34.2,
            f"{FAIR} A replica was empty for 34 s while requests waited at another.",
        ),
    ],
)
def test_idle_replicas_are_in_the_verdict(idle_s: float, want: str) -> None:
    record = RunRecord(shares=WindowShares(idle_s=idle_s), answered=1)
    assert judge(record).sentence == want


UP = {"replicas": 2, "routable": 2}
NONE = {"replicas": 2, "routable": 0}
AT_ZERO = {"replicas": 0, "routable": 0, "starts": True}


@pytest.mark.parametrize(
    ("facts", "level", "want"),
    [
        (
            NONE | {"waiting": 12, "oldest_s": 47.0, "held": 12, "held_s": 47.0, "answered": 9},
            Level.OUT,
            "No client is served: none of 2 replicas takes requests; 12 requests wait, the oldest for 47 s.",
        ),
        (
            NONE | {"waiting": 2, "oldest_s": 0.9},
            Level.OUT,
            "No client is served: none of 2 replicas takes requests; 2 requests wait.",
        ),
        (NONE, Level.OUT, "No client is served: none of 2 replicas takes requests."),
        (
            {"replicas": 0, "routable": 0},
            Level.OUT,
            "No client is served: there is no replica.",
        ),
        (
            UP | {"failed": 106, "waiting": 1, "oldest_s": 80.0},
            Level.OUT,
            "No client is served: all 106 requests that ended failed; 1 request waits, the oldest for 80 s.",
        ),
        (
            UP | {"waiting": 106, "oldest_s": 30.0},
            Level.OUT,
            "No client is served: no answer has begun in the last minute; 106 requests wait, the oldest for 30 s.",
        ),
        (
            UP | {"failed": 2, "given_up": 3},
            Level.OUT,
            "No client is served: all 5 requests that ended failed or were given up.",
        ),
        ({"routable": 0}, Level.OUT, "No client is served: no replica takes requests."),
        (
            {"replicas": 1, "routable": 0},
            Level.OUT,
            "No client is served: the only replica takes no requests.",
        ),
        ({"declined": 4}, Level.NOTHING, "Nothing to judge: all 4 requests were refused."),
        (
            UP | {"waiting": 106, "oldest_s": 29.0, "unjudged": 106, "unjudged_s": 29.0},
            Level.UNJUDGED,
            "Not judged: 106 requests wait, the oldest for 29 s.",
        ),
        (
            UP
            | {"waiting": 107, "oldest_s": 99.0, "running": 1, "unjudged": 106, "unjudged_s": 9.0},
            Level.UNJUDGED,
            "Not judged: 106 requests wait, the oldest for 9 s.",
        ),
        (
            UP | {"answered": 90, "failed": 10},
            Level.HELD_UP,
            "Held up: 10 of 100 requests failed.",
        ),
        (UP | {"answered": 98, "failed": 2}, Level.HELD_UP, "Held up: 2 of 100 requests failed."),
        (UP | {"answered": 198, "failed": 2}, Level.HELD_UP, "Held up: 2 of 200 requests failed."),
        (UP | {"answered": 199, "failed": 2}, Level.FAIR, f"{FAIR} 2 of 201 requests failed."),
        (UP | {"answered": 1, "failed": 1}, Level.FAIR, f"{FAIR} 1 of 2 requests failed."),
        (
            UP | {"answered": 2, "failed": 2, "held": 1, "held_s": 2.0},
            Level.HELD_UP,
            "Held up: 2 of 4 requests failed; 1 request waits for a replica, the oldest for 2 s.",
        ),
        (UP | {"answered": 1, "held": 3, "held_s": 1.9}, Level.FAIR, FAIR),
        (
            AT_ZERO | {"waiting": 2, "held": 2, "held_s": 40.0, "oldest_s": 40.0},
            Level.HELD_UP,
            "Held up: 2 requests wait for the first replica, the oldest for 40 s.",
        ),
        (
            AT_ZERO,
            Level.NOTHING,
            "Nothing to judge: no request came, and the first one starts a replica.",
        ),
        (UP, Level.NOTHING, "Nothing to judge: no request came."),
        (UP | {"running": 1}, Level.FAIR, FAIR),
        (UP | {"serves": True}, Level.FAIR, FAIR),
    ],
)
def test_a_verdict_says_first_whether_anybody_is_served(
    facts: dict[str, Any], level: Level, want: str
) -> None:
    found = judge(RunRecord(**facts))
    assert (found.level, found.sentence) == (level, want)


def test_an_outage_is_no_fair_service_and_no_unfair_one() -> None:
    """Where all requests fail, shares mean nothing."""
    shares = WindowShares({"a": 0.1}, {"b": Taken(0.9, 0.5)})
    assert judge(RunRecord(shares=shares, failed=3)).level is Level.OUT
    assert judge(RunRecord(shares=shares, failed=3, answered=397)).level is Level.UNFAIR
    both = judge(RunRecord(shares=shares, failed=3, answered=7))
    assert both.level is Level.HELD_UP
    assert both.sentence == (
        "Held up: 3 of 10 requests failed. "
        "Unfair: in the worst minute b took 90% of the service, owed 50%; "
        "hurt: a (given 10% of what it was owed while it waited)."
    )


MINUTE = UP | {"minute": True}


@pytest.mark.parametrize(
    ("facts", "level", "want"),
    [
        (
            {"answered": 315, "given_up": 52},
            Level.HELD_UP,
            "Held up: 52 of 367 requests of the last minute were given up.",
        ),
        (
            {"answered": 312, "given_up": 52, "failed": 3},
            Level.HELD_UP,
            "Held up: 3 of 367 requests of the last minute failed, and 52 were given up.",
        ),
        (
            {"answered": 500, "given_up": 1},
            Level.FAIR,
            f"{FAIR} 1 of 501 requests of the last minute was given up.",
        ),
        # Clients that leave within two seconds are impatient, and nothing else.
        ({"answered": 300, "left": 200}, Level.FAIR, FAIR),
        (
            {"left": 30},
            Level.OUT,
            "No client is served: none of 30 requests of the last minute was answered; their clients left within 2 s.",
        ),
        (
            {"left": 2, "waiting": 3, "oldest_s": 1.4},
            Level.OUT,
            "No client is served: none of 2 requests of the last minute was answered; their clients left within 2 s; 3 requests wait, the oldest for 1 s.",
        ),
        (
            {"left": 30, "serves": True},
            Level.OUT,
            "No client is served: none of 30 requests of the last minute was answered; their clients left within 2 s.",
        ),
        (
            {"left": 30, "serves": True, "elsewhere": True},
            Level.HELD_UP,
            "Held up: none of 30 requests of the last minute was answered; their clients left within 2 s.",
        ),
        ({"left": 30, "running": 1}, Level.FAIR, FAIR),
        (
            {"left": 30, "others_answered": True},
            Level.NOTHING,
            "Nothing to judge: 30 requests had no answer, because their clients left within 2 s.",
        ),
        (
            {"left": 1, "waiting": 1, "oldest_s": 1.4},
            Level.NOTHING,
            "Nothing to judge: 1 request had no answer, because its client left within 2 s.",
        ),
        (
            {"left": 1},
            Level.NOTHING,
            "Nothing to judge: 1 request had no answer, because its client left within 2 s.",
        ),
    ],
)
def test_requests_that_were_given_up_hold_the_verdict(
    facts: dict[str, Any], level: Level, want: str
) -> None:
    found = judge(RunRecord(**(MINUTE | facts)))
    assert (found.level, found.sentence) == (level, want)


def test_a_flood_that_gives_up_behind_itself_does_not_hold_up_a_fair_fleet() -> None:
    flood = MINUTE | {"answered": 150, "answered_beyond": 50, "given_up_beyond": 150}
    found = judge(RunRecord(**flood))
    assert found.level is Level.FAIR
    assert found.sentence == (
        f"{FAIR} 150 of 300 requests of the last minute were given up, by clients that ask for more than their share."
    )
    # Nobody else is answered: it is no flood, but too small a fleet.
    alone = judge(RunRecord(**(flood | {"answered": 50})))
    assert alone.level is Level.HELD_UP
    assert alone.sentence == "Held up: 150 of 200 requests of the last minute were given up."


@pytest.mark.parametrize(
    ("facts", "level", "want"),
    [
        (
            {"waiting": 23, "silence": Silence(seconds=9.0, replicas=("r0",), waiting=23)},
            Level.HELD_UP,
            "Held up: no token for 9 s: 23 requests wait at replica r0.",
        ),
        (
            {
                "waiting": 6,
                "running": 2,
                "held": 1,
                "silence": Silence(seconds=9.0, replicas=("r0", "r1"), waiting=5, stopped=2),
            },
            Level.HELD_UP,
            "Held up: no token for 9 s: 5 requests wait and 2 answers have stopped at replicas r0, r1.",
        ),
        (
            {
                "waiting": 9,
                "running": 7,
                "silence": Silence(seconds=9.0, replicas=("r0",), waiting=1, stopped=1),
            },
            Level.HELD_UP,
            "Held up: replica r0 gives no token for 9 s: 1 request waits and 1 answer has stopped there.",
        ),
        (
            {"running": 3, "silence": Silence(seconds=9.0, stopped=3)},
            Level.HELD_UP,
            "Held up: no token for 9 s: 3 answers have stopped.",
        ),
        (
            {
                "waiting": 23,
                "silence": Silence(seconds=30.0, fleet_s=30.0, replicas=("r0",), waiting=23),
            },
            Level.OUT,
            "No client is served: no token came for 30 s from replica r0; 23 requests wait.",
        ),
        (
            {"silence": Silence(seconds=30.0, fleet_s=29.9, replicas=("r0",))},
            Level.HELD_UP,
            "Held up: replica r0 gives no token for 30 s: clients leave without an answer there.",
        ),
        # While another replica serves, the service is not out.
        (
            {
                "waiting": 23,
                "running": 1,
                "silence": Silence(seconds=50.0, replicas=("r0",), waiting=23),
            },
            Level.HELD_UP,
            "Held up: replica r0 gives no token for 50 s: 23 requests wait there.",
        ),
        (
            {"was_silent": Silence(seconds=25.0, replicas=("r0",))},
            Level.HELD_UP,
            "Held up: replica r0 gave no token for 25 s of the last minute, while requests waited.",
        ),
        (
            {"was_silent": Silence(seconds=24.0, ended_s=12.0)},
            Level.HELD_UP,
            "Held up: no token came for 24 s of the last minute, until 12 s ago, while requests waited.",
        ),
        (
            {"was_silent": Silence(seconds=25.0)},
            Level.HELD_UP,
            "Held up: no token came for 25 s of the last minute, while requests waited.",
        ),
    ],
)
def test_nothing_is_fair_while_no_token_comes(
    facts: dict[str, Any], level: Level, want: str
) -> None:
    found = judge(RunRecord(**(MINUTE | {"answered": 340} | facts)))
    assert (found.level, found.sentence) == (level, want)


def test_a_tenant_that_takes_what_others_are_owed_is_not_fair() -> None:
    shares = WindowShares({"a/x": 1.3}, {"a/x": Taken(0.85, 0.6)})
    found = judge(RunRecord(shares=shares, minute=True, answered=5, hurts=True))
    assert found.level is Level.UNFAIR
    assert found.sentence == (
        "Unfair: in the last minute a/x took 85% of the service, owed 60%; hurt: clients of other tenants."
    )


@pytest.mark.parametrize(
    ("others", "want"),
    [
        (Taken(0.87, 0.22), "in the last minute other tenants took 87% of the service, owed 22%; hurt:"),
        (Taken(0.0, 0.0), "hurt in the last minute:"),
    ],
)  # fmt: skip
def test_a_tenant_that_is_hurt_learns_what_others_took(others: Taken, want: str) -> None:
    shares = WindowShares({"b": 0.4})
    found = judge(RunRecord(shares=shares, minute=True, answered=5, others_took=others))
    assert found.level is Level.UNFAIR
    assert found.sentence == f"Unfair: {want} b (given 40% of what it was owed while it waited)."


def test_what_a_tenant_gives_up_behind_itself_does_not_hold_its_page_up() -> None:
    flood = MINUTE | {"answered": 23, "answered_beyond": 23, "given_up_beyond": 28}
    found = judge(RunRecord(**flood, others_answered=True))
    assert found.level is Level.FAIR
    assert found.sentence == (
        f"{FAIR} 28 of 51 requests of the last minute were given up, by clients that ask for more than their share."
    )
    none = RunRecord(**(flood | {"answered": 0, "answered_beyond": 0}), others_answered=True)
    assert judge(none).level is Level.FAIR
    assert judge(RunRecord(**flood)).level is Level.HELD_UP
