"""Requests without generated text belong to their clients too: SGLang drops their routing key (R1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.sglang.engine import Engine, clients_of
from tests.sglang.shared import QUANTA, size

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


async def test_embeddings_are_charged_to_their_clients(
    start: Callable[..., Engine], free_port: int
) -> None:
    engine = start(
        *("--schedule-policy=dlpm", "--is-embedding", *size(4096, 16)),
        environment=QUANTA | {"EVENKEEL_REPORTS_PORT": str(free_port)},
    )
    inputs = {"a": "one two three", "b": ["four five", "six seven", "eight"]}
    async with httpx.AsyncClient(base_url=engine.url, timeout=120) as http:
        for client, texts in inputs.items():
            answer = await http.post(
                "/v1/embeddings",
                json={"model": "tiny", "input": texts},
                headers={"x-smg-routing-key": f"ek1;ns/t/{client};w=1,1"},
            )
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["data"]) == (1 if isinstance(texts, str) else len(texts))
        # Where SGLang reads no header, the key is in the body, and other engines ignore it.
        key = {"routing_key": "ek1;ns/t/c;w=1,1"}
        answer = await http.post("/classify", json={"text": ["nine", "ten"]} | key)
        assert [one["meta_info"]["prompt_tokens"] > 0 for one in answer.json()] == [True, True]
        await engine.idle(http)
    rows = await asyncio.to_thread(clients_of, free_port)
    rows.pop("-/-/unknown", None)  # SGLang's own request after its start
    assert {name: row.requests for name, row in rows.items()} == {
        "ns/t/a": 1,
        "ns/t/b": 3,
        "ns/t/c": 2,
    }
    assert all(row.service > 0 and row.running == 0 for row in rows.values())
