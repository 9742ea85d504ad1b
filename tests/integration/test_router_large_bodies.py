"""Bodies that would stop the event loop: refused ones cost nothing, large ones are served as small ones are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_router.request.body_worker import MAX_VALUES

from tests.support.router_rooms import is_empty
from tests.support.routers import KEY, MODEL, fleet, sha256, tenancy, until

LIMITED = TenantConfig(
    namespace="ns",
    name="acme",
    clients=(ClientConfig(name="chat"),),
    api_keys=(ApiKeyConfig(name="k", client="chat", sha256=sha256(KEY)),),
    limits=TenantLimits(requests_per_minute=60, tokens_per_minute=600_000, max_concurrent=8),
)
MODEL_MEMBER = f'"model":"{MODEL}"'.encode()
TEXT = "A line, and another one. " * 40_000


def lists(one: bytes, count: int) -> bytes:
    return b"[%b]" % b",".join([one] * count)


HOSTILE = {
    "lists": ("completions", b'"prompt":' + lists(b"[]", MAX_VALUES)),
    "ids": ("completions", b'"prompt":' + lists(b"1", MAX_VALUES)),
    "nested": ("completions", b'"prompt":' + b"[" * 700_000 + b"]" * 700_000),
    "messages": ("chat/completions", b'"messages":' + lists(b'{"role":"","content":""}', 70_000)),
    "parts": ("chat/completions", b'"messages":[{"role":"u","content":%b}]' % lists(b"{}", 70_000)),
    "stop": ("completions", b'"prompt":"x","stop":' + lists(b'""', 2 * MAX_VALUES)),
    "members": ("completions", b'"rid":1,"prompt":"x",' + b",".join(b'"%d":1' % n for n in range(9000))),
    "documents": ("rerank", b'"query":"q","documents":' + lists(b'""', 600_000)),
}  # fmt: skip


async def send(url: str, path: str, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{url}/v1/{path}", content=body, headers={"authorization": f"Bearer {KEY}"}
        )


@pytest.mark.parametrize("shape", sorted(HOSTILE))
async def test_a_body_of_too_much_structure_is_refused_and_charges_nothing(shape: str) -> None:
    path, members = HOSTILE[shape]
    async with fleet(1, tenancy=tenancy(tenants=(LIMITED,))) as (router, _):
        rooms = router.rooms
        answer = await send(router.url, path, b"{%b,%b}" % (MODEL_MEMBER, members))
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert is_empty(rooms)
        assert rooms.intake.admission.running == 0
        assert rooms.intake.body_memory.used_bytes == 0
        assert not rooms.intake.active_requests
        assert rooms.replicas.totals["r0"].requests == 0
        totals = next(rooms.totals.clients())
        assert (totals.requests, totals.input_tokens, totals.output_tokens) == (1, 0, 0)
        # Nor does it use the tenant's limits: a request of all its tokens still enters.
        tenant = rooms.intake.admission._tenants.get("ns/acme")
        assert tenant is None or tenant.running == 0
        assert rooms.replicas.fleet.index.held(0) == 0


async def test_a_large_prompt_is_served_and_found_again() -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": TEXT, "max_tokens": 4, "rid": "x"}
    async with fleet(2) as (router, _):
        bodies = json.dumps(asked).encode(), json.dumps(asked | {"stream": True}).encode()
        for body in bodies:
            answer = await send(router.url, "completions", body)
            assert answer.status_code == 200, answer.text
        fleet_ = router.rooms.replicas.fleet
        await until(lambda: sum(map(fleet_.blocks, fleet_)) >= len(TEXT) // 256, "stored blocks")
        blocks = [fleet_.blocks(member) for member in fleet_]
        # Both went to the replica that has the prefix; the answer's text is in no block.
        assert sorted(blocks) == [0, len(TEXT) // 256]
        assert router.rooms.totals.stripped["rid"] == 2
        await until(lambda: is_empty(router.rooms), "the end of both")


async def test_a_stream_goes_on_while_a_large_body_is_read() -> None:
    """Whether the loop is free, not how long anything takes: events come between the body and its refusal."""
    path, members = HOSTILE["lists"]
    asked = {"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    async with fleet(1) as (router, _), httpx.AsyncClient(timeout=60) as http:
        await router.large_bodies.start()
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{router.url}/v1/completions"
        async with http.stream("POST", url, json=asked, headers=headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            refused = asyncio.create_task(
                send(router.url, path, b"{%b,%b}" % (MODEL_MEMBER, members))
            )
            meanwhile = 0
            while not refused.done():
                await anext(lines)
                meanwhile += 1
            assert meanwhile > 1
            assert (await refused).status_code == 400
