"""Which of the replicas' ways to make tokens is followed."""

import pytest
from evenkeel_router.prefix.tokenised import most_reported


@pytest.mark.parametrize(
    ("told", "current", "want"),
    [
        ({}, "", ""),
        ({}, "a", ""),
        ({"r0": "b", "r1": "a"}, "", "a"),
        ({"r0": "b", "r1": "a"}, "b", "b"),
        ({"r0": "a", "r1": "b", "r2": "b"}, "a", "b"),
        ({"r0": "a", "r1": "b", "r2": "b"}, "c", "b"),
    ],
)
def test_most_replicas_are_followed_and_of_equals_the_current_way(
    told: dict[str, str], current: str, want: str
) -> None:
    assert most_reported(told, current) == want
