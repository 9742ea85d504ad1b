"""Which web pages may read answers."""

from __future__ import annotations

import pytest
from evenkeel_router.api.cors import Cors

APP = "https://app.example.com"


@pytest.mark.parametrize(
    ("origins", "origin", "want"),
    [
        ([APP], APP, {"access-control-allow-origin": APP, "vary": "origin"}),
        ([APP], "https://evil.example.com", {"vary": "origin"}),
        ([APP], f"{APP}.evil.com", {"vary": "origin"}),
        ([APP], "null", {"vary": "origin"}),
        ([APP, "*"], "https://other.example.com", {"access-control-allow-origin": "*"}),
    ],
)
def test_an_answer_names_an_allowed_origin_only(
    origins: list[str], origin: str, want: dict[str, str]
) -> None:
    cors = Cors(origins)
    headers = dict(cors.headers(origin))
    exposed = headers.pop("access-control-expose-headers", None)
    assert headers == want
    allowed = "access-control-allow-origin" in want
    assert (exposed is not None) is allowed
    preflight = dict(cors.preflight(origin))
    assert ("access-control-allow-headers" in preflight) is allowed
    assert "access-control-allow-credentials" not in preflight
