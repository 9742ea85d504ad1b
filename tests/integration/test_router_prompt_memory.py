"""How often a prompt is in a router's memory: once while its request waits for the answer, and not at all afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import CoroutineType

import httpx
from evenkeel_contract.routerconfig import CacheSharing
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from msgspec import Struct

from tests.support.nasty import Asked, nasty
from tests.support.routers import MODEL, QUICK, config_for, router_of, tenancy, until

PROMPT = "once upon a time " * 200
_FOLLOWED = (tuple, list, dict)


def held_by_the_router() -> Iterator[bytes | str]:
    """Each object in memory with the prompt that the coroutines of the router lead to."""
    ours = [
        one
        for one in gc.get_objects()
        if isinstance(one, CoroutineType) and "evenkeel_router" in one.cr_code.co_filename
    ]
    seen = {id(one) for one in ours}
    while ours:
        for one in led_to(ours.pop()):
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, bytes | str):
                if len(one) > len(PROMPT) and PROMPT in (
                    one if isinstance(one, str) else one.decode("latin-1")
                ):
                    yield one
            elif isinstance(one, _FOLLOWED) or type(one).__module__.startswith("evenkeel_router"):
                ours.append(one)


def led_to(one: object) -> list[object]:
    """What an object refers to; the collector does not know it of every record."""
    if isinstance(one, Struct):
        return [getattr(one, name) for name in one.__struct_fields__]
    return gc.get_referents(one)


async def test_a_prompt_is_in_memory_once_while_its_request_waits() -> None:
    go_on = asyncio.Event()
    without_salt = tenancy(cache_sharing=CacheSharing.SERVICE)  # the body is sent as it is

    async def behave(asked: Asked) -> None:
        asked.body = b""
        await go_on.wait()
        await asked.whole_stream()

    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0"), tenancy=without_salt), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url, timeout=None) as client,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
        task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: bool(replica.asked), "the request is sent")
        copies = list(held_by_the_router())
        go_on.set()
        assert (await task).status_code == 200
    assert len(copies) == 1
    assert isinstance(copies[0], bytes)


async def test_connections_without_a_request_keep_nothing_of_their_last_ones() -> None:
    async def behave(asked: Asked) -> None:
        await asked.whole_stream()

    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0")), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url, timeout=None) as client,
    ):
        gc.collect()
        others = in_memory()  # such as those in the traceback of a test that failed
        gc.disable()  # a cycle would be memory, too, until the collector came
        try:
            for prompt in ("a", "b"):
                body = {"model": MODEL, "prompt": prompt, "stream": True}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
            # Attempts are kept until the next look at the times of their first tokens.
            await until(
                lambda: len(in_memory()) == len(others), "nothing of the requests is in memory"
            )
        finally:
            gc.enable()


def in_memory() -> list[object]:
    kinds = (RequestState, AdmittedRequest, Attempt)
    return [one for one in gc.get_objects() if isinstance(one, kinds)]
