"""`evenkeel why` against a live router: it, the console and the log say the same of one request."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx
import pytest
from evenkeel_cli.main import build
from evenkeel_contract.consolestate import REQUESTS_PATH
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import running_server
from typer.testing import CliRunner

from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    replica_of,
    routable,
    sha256,
    simulated,
    until,
)

TOKEN = "right"


async def why(*arguments: str) -> tuple[int, str]:
    ran = await asyncio.to_thread(
        CliRunner().invoke, build(["why"]), ["why", *arguments], env={"COLUMNS": "400"}
    )
    return ran.exit_code, ran.output


async def asked(router: Router, request_id: str, **headers: str) -> None:
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        body = {"model": MODEL, "prompt": "x" * 900, "max_tokens": 8, "stream": True}
        answer = await client.post(
            "/v1/completions", json=body, headers={"x-request-id": request_id, **headers}
        )
    assert answer.status_code == 200


async def test_the_command_the_console_and_the_log_agree() -> None:
    log = io.StringIO()
    async with running_server(simulated()) as server:
        config = config_for(replica_of(server), admin_token_sha256=sha256(TOKEN))
        async with running(config, timing=QUICK, log_output=log) as router:
            await routable(router, 1)
            await asked(router, "mine", Authorization=f"Bearer {KEY}")
            await asked(router, "theirs")
            await until(lambda: len(log.getvalue().splitlines()) == 2, "both lines of the log")
            admin = f"http://127.0.0.1:{router.admin_port}"
            code, output = await why("mine", "--url", admin, "--token", TOKEN, "--json")
            assert code == 0, output
            state: dict[str, Any] = json.loads(output)
            async with httpx.AsyncClient() as client:
                shown = await client.get(
                    f"{admin}{REQUESTS_PATH}",
                    params={"id": "mine"},
                    headers={"Authorization": f"Bearer {TOKEN}"},
                )
            words = await why("mine", "--url", admin, "--token", TOKEN)
            own = await why("mine", "--url", router.url, "--token", KEY)
            hidden = await why("theirs", "--url", router.url, "--token", KEY)
            refused = await why("mine", "--url", admin, "--token", "wrong")
    assert shown.json() == state
    logged = next(
        line
        for line in map(json.loads, log.getvalue().splitlines())
        if line["request_id"] == "mine"
    )
    (one,) = state["requests"]
    for name in ("ttft_s", "engine_s", "duration_s", "input_tokens", "output_tokens", "replica"):
        assert one[name] == logged[name], name
    assert one["client"] == logged["client"] == "ns/acme/chat"
    assert words[0] == 0
    for sentence in state["words"]:
        assert sentence in words[1]
    assert own[0] == 0 and "at its replica: its queue" in own[1] and "r0" not in own[1]
    assert hidden[0] == 1 and "this router keeps no request theirs" in hidden[1]
    assert refused[0] == 1 and "set --token or EVENKEEL_ADMIN_TOKEN" in refused[1]


@pytest.mark.parametrize(
    ("url", "code", "want"),
    [("http://127.0.0.1:1", 1, "set --url"), ("http://a:99999", 2, "is not an address")],
)
async def test_without_a_router_the_command_says_what_to_set(
    url: str, code: int, want: str
) -> None:
    found, output = await why("x", "--url", url)
    assert (found, want in output) == (code, True), output
