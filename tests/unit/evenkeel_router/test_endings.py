"""How requests ended: what counts as given up, and counts of a minute."""

from __future__ import annotations

import pytest
from evenkeel_router.api.errors import Outcome
from evenkeel_router.ledger.endings import (
    ANSWERED,
    BEYOND,
    GIVEN_UP,
    MINUTE_S,
    SLOT_S,
    Endings,
    ending_of,
)

GONE = Outcome.CLIENT_GONE


@pytest.mark.parametrize(
    ("outcome", "ttft_s", "duration_s", "silent_s", "beyond", "want"),
    [
        (None, 0.2, 3.0, 0.0, False, ANSWERED),
        (None, None, 3.0, 0.0, False, ANSWERED),
        (None, 0.2, 3.0, 0.0, True, ANSWERED + BEYOND),
        (Outcome.TIMEOUT, None, 60.0, 60.0, True, "timeout"),
        # Without a token: after two seconds it was given up.
        (GONE, None, 0.1, 90.0, False, "client_gone"),
        (GONE, None, 1.999, 90.0, False, "client_gone"),
        (GONE, None, 2.0, 0.0, False, GIVEN_UP),
        (GONE, None, 2.0, 0.0, True, GIVEN_UP + BEYOND),
        # Within an answer: the client has enough of it, unless it had stopped.
        (GONE, 0.2, 30.0, 0.1, False, ANSWERED),
        (GONE, 0.2, 30.0, 4.9, False, ANSWERED),
        (GONE, 0.2, 30.0, 5.0, False, GIVEN_UP),
        (GONE, 27.0, 30.0, 1000.0, False, ANSWERED),
    ],
)
def test_a_request_is_given_up_after_a_wait_without_a_token(
    outcome: Outcome | None,
    ttft_s: float | None,
    duration_s: float,
    silent_s: float,
    beyond: bool,
    want: str,
) -> None:
    found = ending_of(
        outcome, ttft_s=ttft_s, duration_s=duration_s, silent_s=silent_s, beyond=beyond
    )
    assert found == want


def test_endings_count_for_a_minute() -> None:
    endings = Endings()
    for at_s in range(0, 100, 10):
        endings.add(ANSWERED, 1000.0 + at_s)
    endings.add(GIVEN_UP, 1091.0)
    assert endings.counts(1091.0) == {ANSWERED: 7, GIVEN_UP: 1}
    assert endings.counts(1091.0 + MINUTE_S) == {GIVEN_UP: 1, ANSWERED: 1}
    assert endings.counts(1093.0 + MINUTE_S + SLOT_S) == {}


def test_a_flood_takes_no_more_memory_than_a_minute() -> None:
    endings = Endings()
    for n in range(10_000):
        endings.add(ANSWERED, n / 20)
        endings.add(GIVEN_UP, n / 20)
    assert endings.counts(10_000 / 20)[ANSWERED] == pytest.approx(60 * 20, abs=SLOT_S * 20)
    assert len(endings._slots) <= 2 * (MINUTE_S / SLOT_S + 2)
