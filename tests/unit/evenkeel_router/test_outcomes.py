"""Outcomes and what clients are told."""

import json

import pytest
from evenkeel_router.api.errors import (
    Outcome,
    Refusal,
    error_body,
    error_event,
    invalid,
    of_status,
)

from tests.support.router_rooms import asked


def test_every_outcome_has_a_status_of_its_own() -> None:
    assert len({one.status for one in Outcome}) == len(Outcome) <= 10


def test_a_status_that_a_replica_answers_has_an_outcome() -> None:
    assert of_status(413) is Outcome.TOO_LARGE
    assert of_status(429) is Outcome.RATE_LIMITED
    assert of_status(422) is Outcome.INVALID_REQUEST


def test_an_error_body_is_openais() -> None:
    refusal = invalid("max_tokens is -1.", code="invalid_value", param="max_tokens")
    want = {
        "message": "max_tokens is -1.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "invalid_value",
    }
    assert json.loads(error_body(refusal)) == {"error": want}
    event = error_event(refusal)
    assert event.endswith(b"}\n\n")
    assert json.loads(event.removeprefix(b"data: ")) == {"error": want | {"status": 400}}


@pytest.mark.parametrize(("given", "want"), [(None, None), (0.0, "1"), (0.2, "1"), (1.2, "2")])
def test_retry_after_is_whole_seconds_rounded_up(given: float | None, want: str | None) -> None:
    refusal = Refusal(Outcome.UNAVAILABLE, "later", code="x", retry_after_s=given)
    assert refusal.retry_after == want


@pytest.mark.parametrize(("complete", "want"), [(True, None), (False, Outcome.CLIENT_GONE)])
async def test_a_client_that_leaves_with_its_last_event_has_all(
    complete: bool, want: Outcome | None
) -> None:
    state, _ = asked()
    state.complete = complete
    state.client_left()
    assert state.outcome is want
