"""What vLLM serves, through the router: scoring without an output, bodies as vLLM takes them, and its own errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.routers import KEY, MODEL, config_for, router_of
from tests.vllm.conftest import Engines

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LONG = "x " * 40_000
TOO_LONG = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": [7] * 5000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}),
]
BODIES: list[dict[str, Any]] = [
    {"prompt": "Hi", "max_tokens": "3", "stream": "false"},
    {"prompt": "Hi", "max_tokens": 3.0, "n": 1.0},
    {"prompt": [[5, 6], [7, 8]], "max_tokens": 3, "bootstrap_host": "x", "odd": 1},
    {"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 1},
]


async def test_the_router_takes_what_vllm_takes_and_keeps_its_overflow(engines: Engines) -> None:
    replica = engines.start()
    async with (
        router_of(config_for(replica)) as router,
        httpx.AsyncClient(base_url=router.url, headers={"x-api-key": KEY}, timeout=120) as http,
        httpx.AsyncClient(base_url=replica.url, timeout=120) as direct,
    ):
        for body in BODIES:
            for model in ({}, {"model": MODEL}):
                want = await direct.post("/v1/completions", json=body | model)
                got = await http.post("/v1/completions", json=body | model)
                assert (got.status_code, want.status_code) == (200, 200), (body, got.text)
                assert got.json()["usage"] == want.json()["usage"]
        parts = {"messages": [{"role": "user", "content": ["Hi", {"type": "text", "text": "a"}]}]}
        got = await http.post("/v1/chat/completions", json=parts | {"max_tokens": 1})
        assert got.status_code == 200, got.text
        assert router.rooms.totals.stripped == {"bootstrap_host": 2, "other": 2}
        for path, body in TOO_LONG:
            for stream in (False, True):
                got = await http.post(path, json=body | {"model": MODEL, "stream": stream})
                assert got.status_code == 400, (path, got.text[:300])
                error = json.loads(got.text)["error"]
                assert error["code"] == "context_length_exceeded", error["message"]
                starts = error["message"].startswith("prompt is too long: ")
                assert starts is (path == "/v1/messages")
