"""What the console shows of several models together."""

from __future__ import annotations

import pytest
from evenkeel_contract.consolestate import ConsoleState
from evenkeel_contract.figures import Figures
from evenkeel_fairshare.verdict import Level
from evenkeel_router.telemetry.all_models import judge_all, nearest


def state(level: Level, verdict: str) -> ConsoleState:
    return ConsoleState(
        version=1,
        scope="service",
        tenant="",
        namespace="ns",
        service="s",
        model="m",
        time_unix_s=0.0,
        uptime_s=0.0,
        router="r",
        window_s=10.0,
        draining=False,
        verdict=verdict,
        level=level.value,
        fair=level is Level.FAIR,
        total=Figures(),
        clients=(),
    )


FAIR = state(Level.FAIR, "Fair: no client had to wait for another.")
IDLE = state(Level.NOTHING, "Nothing to judge: no request came.")
UNJUDGED = state(Level.UNJUDGED, "Not judged yet: 9 requests wait, the oldest for 9 s.")
UNFAIR = state(Level.UNFAIR, "Unfair: flood took 9%.")
OUT = state(Level.OUT, "No client is served: there is no replica.")


@pytest.mark.parametrize(
    ("states", "level", "sentence"),
    [
        ({"a": IDLE, "b": IDLE}, Level.NOTHING, "Nothing to judge in any of 2 models."),
        ({"a": FAIR, "b": FAIR}, Level.FAIR, "Fair in a, b."),
        ({"a": IDLE, "b": FAIR}, Level.FAIR, "Fair in b; there is nothing to judge in a."),
        (
            {"a": FAIR, "b": UNJUDGED},
            Level.UNJUDGED,
            "b: Not judged yet: 9 requests wait, the oldest for 9 s.",
        ),
        ({"a": FAIR, "b": UNFAIR}, Level.UNFAIR, "b: Unfair: flood took 9%."),
        (
            {"a": UNFAIR, "b": FAIR, "c": OUT, "d": OUT},
            Level.OUT,
            "c: No client is served: there is no replica. Also see d, a.",
        ),
    ],
)
def test_the_worst_model_is_judged_and_named(
    states: dict[str, ConsoleState], level: Level, sentence: str
) -> None:
    found = judge_all(states)
    assert (found.level, found.sentence) == (level, sentence)


def test_samples_of_two_models_are_matched_by_their_times() -> None:
    longest = (0.0, 10.0, 20.0, 30.0, 40.0)
    # A model that was added later, and one whose sampling paused.
    assert nearest((24.0, 34.0, 44.0), longest, 10.0) == [None, None, 0, 1, 2]
    assert nearest((1.0, 39.0), longest, 10.0) == [0, 0, None, 1, 1]
    assert nearest((), longest, 10.0) == [None] * 5
