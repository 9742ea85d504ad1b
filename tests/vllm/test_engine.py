"""What a router reads of a real vLLM, and what it lets through to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio
from evenkeel_contract.kvevents import END_OF_REPLAY, PageHash, read_replay, replay_question
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import (
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    SchedulingConfig,
)
from evenkeel_contract.vllm import CPU_PAGE_TOKENS
from evenkeel_fairshare.fleet.contract import ReplicaSet
from evenkeel_fairshare.prefix.index import vllm_blocks
from evenkeel_router.api.claims import Claims
from evenkeel_router.app import Router
from evenkeel_router.gate.engine_load import read_load
from evenkeel_router.prefix.kv_follower import Follower, SyncState

from tests.support.routers import KEY, MODEL, config_for, router_of, until
from tests.vllm.conftest import Engines

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

IDENTITY_HEADERS = {"X-Session-ID": "forged", "X-Vllm-Priority": "-5"}
IDENTITY_FIELDS = {
    "session_id": "forged",
    "priority": -5,
    "vllm_xargs": {"kv_cache_report_mode": "full"},
}


def ask(prompt: list[int] | str, *, output_tokens: int = 8, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }


@asynccontextmanager
async def client(router: Router) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=router.url, headers=headers, timeout=120) as http:
        yield http


async def published(replica: ReplicaConfig) -> list[dict[str, Any]]:
    """All events of the engine so far, with all fields."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(replica.kv_replay or "")
        await socket.send_multipart(replay_question(0))
        events = []
        while True:
            assert await socket.poll(10_000), "no replay"
            batch = read_replay(await socket.recv_multipart())
            if batch.sequence == END_OF_REPLAY:
                return events
            events += msgspec.msgpack.decode(batch.payload)[1]


async def test_a_tenants_own_identity_values_do_not_reach_the_engine(engines: Engines) -> None:
    replica = engines.start()
    prompt = list(range(2, 100))
    async with httpx.AsyncClient(base_url=replica.url, timeout=120) as http:
        body = ask([7, *prompt], **IDENTITY_FIELDS)
        for _ in range(2):
            (await http.post("/v1/completions", json=body)).raise_for_status()
    direct = await published(replica)
    stored = [event for event in direct if event["type"] == "BlockStored"]
    assert {event["session_id"] for event in stored} == {"forged"}, "what is guarded against"
    reported = [key for event in stored for key in event["block_hashes"]]
    assert len(reported) > len(set(reported)), "reuse is reported again in this mode"
    async with router_of(config_for(replica)) as router, client(router) as http:
        for _ in range(2):
            answer = await http.post(
                "/v1/completions", json=ask(prompt, **IDENTITY_FIELDS), headers=IDENTITY_HEADERS
            )
            answer.raise_for_status()
        assert sum(router.rooms.totals.stripped.values()) >= 2 * len(IDENTITY_FIELDS)
    stored = [event for event in await published(replica) if event["type"] == "BlockStored"]
    routed = stored[len([event for event in direct if event["type"] == "BlockStored"]) :]
    assert routed
    assert {event.get("session_id") for event in routed}.isdisjoint({"forged"})
    reported = [key for event in routed for key in event["block_hashes"]]
    assert len(reported) == len(set(reported))


async def test_usage_metrics_health_and_start_time_are_read_without_a_plug_in(
    engines: Engines,
) -> None:
    replica = engines.start()
    config = config_for(replica, scheduling=SchedulingConfig(queue=QueueOwner.AUTO))
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    async with router_of(config) as router, client(router) as http:
        usages = []
        for _ in range(2):
            answer = (await http.post("/v1/completions", json=ask(prompt))).raise_for_status()
            usages.append(answer.json()["usage"])
        chat = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 8}
        for _ in range(2):
            answer = (await http.post("/v1/chat/completions", json=chat)).raise_for_status()
            usages.append(answer.json()["usage"])
        gate = router.rooms.gates.gate("r0")
        assert gate is not None, "the router orders the queue"
        await until(lambda: gate.engine.load is not None, "the engine's own figures")
        (account,) = router.rooms.totals.clients()
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] or 0 for usage in usages)
        assert cached > 2 * CPU_PAGE_TOKENS
        assert account.cached_tokens == cached
    async with aiohttp.ClientSession() as session, session.get(replica.url + "/metrics") as page:
        load = read_load(await page.read())
    assert load is not None and load.waiting == 0


def prompts(rng: random.Random) -> list[int]:
    """A shared beginning of one of three kinds, and a part of its own."""
    kind = rng.randrange(3)
    beginning = random.Random(kind)
    shared = [beginning.randrange(2, 1000) for _ in range(200 + 7 * kind)]
    return [*shared, *(rng.randrange(2, 1000) for _ in range(rng.randrange(30, 200)))]


async def test_the_view_of_the_cache_is_exact_with_unsigned_hashes_and_copies(
    engines: Engines,
) -> None:
    replica = engines.start("--num-gpu-blocks-override=64", "--max-model-len=1024")
    model = str(engines.environment / "model")
    prefix = PrefixConfig(
        mode=PrefixMode.TOKENS,
        tokenizer=model,
        page_tokens=CPU_PAGE_TOKENS,
        page_hash=PageHash.VLLM,
    )
    rng = random.Random(5)
    async with router_of(config_for(replica, prefix=prefix)) as router, client(router) as http:
        await until(lambda: "r0" in router.rooms.prefixes.followers, "it to be followed")
        follower = router.rooms.prefixes.followers["r0"]
        for _ in range(12):  # equal prompts at once: each computes blocks of its own
            body = ask(prompts(rng))
            answers = await asyncio.gather(
                *(http.post("/v1/completions", json=body) for _ in range(4))
            )
            assert {answer.status_code for answer in answers} == {200}
        copies = [
            key
            for event in await published(replica)
            if event["type"] == "BlockStored"
            for key in event["block_hashes"]
        ]
        assert len(copies) > len(set(copies)), "copies were meant to be made"
        assert max(copies) >= 2**63, "hashes are unsigned"
        assert follower.counts.removed > 0, "the cache was meant to be too small"
        await _follows(follower, replica)
        foretold = 0
        for _ in range(20):
            prompt = prompts(rng)
            expected = _expected(router, prompt)
            answer = await http.post("/v1/completions", json=ask(prompt))
            usage = answer.raise_for_status().json()["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] or 0) == expected
            foretold += expected
            await _follows(follower, replica)
        assert foretold > 1000
        assert follower.counts.unreadable == follower.counts.restarts == 0


def _expected(router: Router, prompt: list[int]) -> int:
    """Cached tokens of a prompt by the router's view. vLLM computes the last token again."""
    member = router.rooms.replicas.fleet.member("r0")
    assert member is not None and member.slot is not None
    identity = router.rooms.intake.directory.identify(Claims([f"Bearer {KEY}"], (), (), ""))
    assert identity.cache_salt, "tenants share no cache by default"
    pages = vllm_blocks(prompt[:-1], page_tokens=CPU_PAGE_TOKENS, cache_salt=identity.cache_salt)
    match = router.rooms.replicas.fleet.index.match(pages, ReplicaSet(1 << member.slot))
    return match.blocks * CPU_PAGE_TOKENS


async def _follows(follower: Follower, replica: ReplicaConfig) -> None:
    """Wait until the router has applied all that the engine published."""
    stored = len(await published(replica))

    def is_current() -> bool:
        counts = follower.counts
        return follower.sync_state is SyncState.IN_SYNC and counts.stored + counts.removed >= stored

    await until(is_current, f"all events: {follower.reason}")
