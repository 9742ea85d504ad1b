"""`evenkeel why`: what it says where the router does not explain a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from evenkeel_cli.main import build
from typer.testing import CliRunner

NOTHING_KEPT = '{"version": 1, "router": "r", "kept": 300, "requests": []}'


@pytest.mark.parametrize(
    ("status", "body", "want"),
    [
        (401, "", "set --token or EVENKEEL_ADMIN_TOKEN"),
        (403, "", "set --token or EVENKEEL_ADMIN_TOKEN"),
        (404, "no such page", "this is not a router that explains requests; set --url"),
        (200, NOTHING_KEPT, "keeps no request mine. It keeps the last 300 of each tenant"),
    ],
)
def test_why_names_the_remedy(
    status: int, body: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(url: httpx.URL, **given: Any) -> httpx.Response:
        assert (given["params"], given["headers"]) == (
            {"id": "mine"},
            {"Authorization": "Bearer t"},
        )
        return httpx.Response(status, text=body)

    monkeypatch.setattr(httpx, "get", answered)
    ran = CliRunner().invoke(
        build(["why"]),
        ["why", "mine", "--url", "http://r:1", "--token", "t"],
        env={"COLUMNS": "400"},
    )
    assert ran.exit_code == 1
    assert want in ran.stderr
