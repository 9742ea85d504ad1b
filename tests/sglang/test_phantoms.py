"""A request that the engine drops leaves the plug-in's books too, whatever way it goes (docs/design/books).

SGLang takes a waiting request out of its queue without a finish reason, also one that it had retracted before. `test_random_events` has the
scheduler alone; here are whole engines, with clients that leave.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sglang.engine import Engine, Since, ask, tokens
from tests.sglang.shared import SharedEngine
from tests.support.replicas import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

SLOW = pytest.mark.slow
CLIENTS = ("a", "b", "c")
LATER = 80
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


async def answered(http: httpx.AsyncClient, client: str, rng: random.Random) -> bool:
    """Whether a request of the client is answered within a minute."""
    body = ask(client, tokens(rng, 60), output_tokens=4)
    response = await asyncio.wait_for(http.post("/generate", json=body), 60)
    return bool(response.raise_for_status().json()["output_ids"])


async def all_are_served(http: httpx.AsyncClient, rng: random.Random) -> None:
    """Requests of clients that had some before, and of a new one."""
    asks = [answered(http, rng.choice([*CLIENTS, "new"]), rng) for _ in range(LATER)]
    assert all(await asyncio.gather(*asks))


def running(since: Since) -> int:
    return sum(row.running for row in since.rows().values())


def waiting(since: Since) -> int:
    return sum(row.waiting for row in since.rows().values())


async def leave(open_: list[asyncio.Task[Any]]) -> None:
    """The clients close their connections."""
    for one in open_:
        one.cancel()
    await asyncio.gather(*open_, return_exceptions=True)


async def test_what_a_pause_retracts_and_its_client_aborts_runs_no_longer(
    plain: SharedEngine,
) -> None:
    rng, since = random.Random(1), Since(plain.reports_port)
    async with httpx.AsyncClient(base_url=plain.url, timeout=600) as http:
        long = [ask(CLIENTS[i % 3], tokens(rng, 60), output_tokens=400) for i in range(8)]
        open_ = [asyncio.create_task(http.post("/generate", json=body)) for body in long]
        await until(lambda: running(since) == len(long))
        (await http.post("/pause_generation", json={"mode": "retract"})).raise_for_status()
        await leave(open_)
        await until(lambda: running(since) == waiting(since) == 0)
        (await http.post("/continue_generation", json={})).raise_for_status()
        await all_are_served(http, rng)
        await plain.idle(http)
    assert (running(since), waiting(since)) == (0, 0)


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> None:
    (await http.post(path, json=body)).raise_for_status()


async def abort_all(http: httpx.AsyncClient, model: Path) -> None:
    await post(http, "/abort_request", rid="", abort_all=True)


async def pause_in_place(http: httpx.AsyncClient, model: Path) -> None:
    await post(http, "/pause_generation", mode="in_place")
    await post(http, "/abort_request", rid="", abort_all=True)
    await post(http, "/continue_generation")


async def update_weights(http: httpx.AsyncClient, model: Path) -> None:
    """As trainers do: requests are computed again with the new weights."""
    await post(http, "/pause_generation", mode="retract")
    await post(http, "/flush_cache")
    await post(http, "/update_weights_from_disk", model_path=str(model), flush_cache=True)
    await post(http, "/continue_generation")


@SLOW
@pytest.mark.parametrize("event", [abort_all, pause_in_place, update_weights])
async def test_books_are_empty_after_what_ends_or_restarts_all_requests(
    chunked: SharedEngine, event: Callable[[httpx.AsyncClient, Path], Awaitable[None]]
) -> None:
    """One request is a prompt in chunks, some run, some wait for a slot."""
    rng, since = random.Random(3), Since(chunked.reports_port)
    bodies = [ask(CLIENTS[i % 3], tokens(rng, 60), output_tokens=300) for i in range(20)]
    bodies += [ask("long", tokens(rng, 1500), output_tokens=4)]
    async with httpx.AsyncClient(base_url=chunked.url, timeout=600, limits=LIMITS) as http:
        open_ = [asyncio.create_task(http.post("/generate", json=body)) for body in bodies]
        await until(lambda: running(since) > 4)
        await event(http, chunked.model)
        await asyncio.gather(*open_, return_exceptions=True)
        await until(lambda: running(since) == waiting(since) == 0)
        await all_are_served(http, rng)
        await chunked.idle(http)
    assert (running(since), waiting(since)) == (0, 0)


@SLOW
async def test_clients_that_leave_between_retractions_leave_nothing_behind(
    start: Callable[..., Engine], free_port: int
) -> None:
    """The engine retracts requests all the time, and refuses some of them a place in its full queue."""
    engine = start(
        *("--schedule-policy=dlpm", "--max-total-tokens=4096", "--max-running-requests=12"),
        "--max-queued-requests=8",
        environment={"SGLANG_TEST_RETRACT": "1", "EVENKEEL_REPORTS_PORT": str(free_port)},
    )
    rng, since = random.Random(2), Since(free_port)
    refused = 0
    async with httpx.AsyncClient(base_url=engine.url, timeout=600, limits=LIMITS) as http:

        async def one(index: int) -> None:
            nonlocal refused
            await asyncio.sleep(index * 0.02)
            body = ask(rng.choice(CLIENTS), tokens(rng, 60), output_tokens=60)
            answer = http.post("/generate", json=body)
            try:
                refused += (await asyncio.wait_for(answer, rng.uniform(0.1, 2))).status_code == 503
            except TimeoutError:
                pass

        await asyncio.gather(*(one(index) for index in range(400)))
        await until(lambda: running(since) == waiting(since) == 0)
        for _ in range(LATER):
            assert await answered(http, "a", rng), "a client alone waits"
        await engine.idle(http)
    assert "Testing retraction" in engine.log
    assert refused > 0, "the queue was never full"
    assert "was computed although" not in engine.log
