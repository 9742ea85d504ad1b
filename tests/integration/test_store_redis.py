"""Ledgers in a real Redis: all routers', through its restart, its absence, its silence and its limits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from evenkeel_contract.ledgerwire import frame
from evenkeel_router.ledger.stores.contract import StoreError
from evenkeel_router.ledger.stores.redis import RedisStore
from redis.asyncio import Redis

from tests.support.ledger_worlds import content, full_ledger, ledger, merged, whole
from tests.support.redisserver import RedisServer, needs_redis, redis_server

pytestmark = needs_redis
LEDGERS = "evenkeel:ns/svc:ledgers"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def store(
    server: RedisServer, clock: Clock | None = None, *, url: str = "", timeout_s: float = 10.0
) -> AsyncIterator[RedisStore]:
    opened = RedisStore(
        url or server.url, service="ns/svc", clock=clock or Clock(), gone_after_s=60,
        answer_timeout_s=timeout_s,
    )  # fmt: skip
    try:
        yield opened
    finally:
        await opened.close()


async def routers(kept: RedisStore) -> set[str]:
    """Whose ledgers a router finds."""
    return {part.router for part in await kept.load()}


async def fields(server: RedisServer) -> set[str]:
    """Whose ledgers there are."""
    client = Redis.from_url(server.url, decode_responses=True)
    try:
        found = await client.hkeys(LEDGERS)
    finally:
        await client.aclose()
    ledgers = {name.removeprefix("ledger:") for name in found if name.startswith("ledger:")}
    assert {f"{part}:{name}" for name in ledgers for part in ("ledger", "beat")} == set(found)
    return ledgers


async def test_every_router_finds_what_all_of_them_saved(tmp_path: Path):
    async with redis_server(tmp_path) as server, store(server) as one, store(server) as other:
        assert await one.load() == []
        await one.save(whole(full_ledger("router-1")))
        await other.save(whole(ledger("router-2")))
        found = merged(ledger("router-3"), await other.load())
        assert content(found) | {"adopted": 0} == content(full_ledger()) | {"adopted": 0}
        assert await fields(server) == {"router-1", "router-2"}


@pytest.mark.parametrize("append", [True, False], ids=["with a log", "with nothing kept"])
async def test_a_restarted_server_has_every_router_s_ledger_after_its_next_save(
    tmp_path: Path, append: bool
):
    async with redis_server(tmp_path, append=append) as server, store(server) as kept:
        await kept.save(whole(full_ledger()))
        await server.kill()
        with pytest.raises(StoreError, match="Redis"):
            await kept.save(whole(full_ledger()))
        with pytest.raises(StoreError, match="Redis"):
            await kept.load()
        await server.start()
        assert await routers(kept) == ({"router-1"} if append else set())
        await kept.save(whole(full_ledger()))
        assert await routers(kept) == {"router-1"}


async def test_a_server_that_is_silent_is_away_and_comes_back(tmp_path: Path):
    async with redis_server(tmp_path) as server, store(server, timeout_s=0.2) as kept:
        await kept.save(whole(full_ledger()))
        server.send(signal.SIGSTOP)
        with pytest.raises(StoreError):
            await kept.save(whole(full_ledger()))
        server.send(signal.SIGCONT)
        async with store(server) as patient:
            assert await routers(patient) == {"router-1"}


async def test_the_ledger_of_a_router_that_is_gone_is_taken_over_and_deleted(tmp_path: Path):
    clock = Clock()
    async with redis_server(tmp_path) as server, store(server, clock) as kept:
        async with store(server) as gone:
            await gone.save(whole(full_ledger("gone")))
        own = merged(ledger("router-2"), await kept.load())
        await kept.save(whole(own))
        clock.now_s = 59.0
        await kept.save(whole(own))
        assert await fields(server) == {"gone", "router-2"}
        clock.now_s = 61.0
        await kept.save(whole(own))
        assert await fields(server) == {"router-2"}
        found = merged(ledger("router-3"), await kept.load())
        assert (
            content(found)["replica accounts"] == content(full_ledger("gone"))["replica accounts"]
        )


async def test_the_ledger_of_a_router_that_saves_stays(tmp_path: Path):
    clock = Clock()
    async with (
        redis_server(tmp_path) as server,
        store(server, clock) as one,
        store(server, clock) as two,
    ):
        for second in range(0, 200, 10):
            clock.now_s = float(second)
            await one.save(whole(ledger("one")))
            await two.save(whole(ledger("two")))
            await one.load()
        assert await fields(server) == {"one", "two"}


async def test_an_entry_that_was_not_merged_is_never_deleted(tmp_path: Path):
    clock = Clock()
    async with redis_server(tmp_path) as server, store(server, clock) as kept:
        assert await kept.load() == []
        async with store(server) as late:
            await late.save(whole(full_ledger("late")))
        for second in (0.0, 100.0, 200.0):
            clock.now_s = second
            await kept.save(whole(ledger("router-2")))
        assert await fields(server) == {"late", "router-2"}
        await kept.load()
        await kept.save(whole(ledger("router-2")))
        assert await fields(server) == {"router-2"}


async def test_a_router_that_was_taken_for_gone_comes_back_with_its_next_save(tmp_path: Path):
    clock = Clock()
    async with redis_server(tmp_path) as server, store(server, clock) as kept:
        async with store(server) as stopped:
            await stopped.save(whole(full_ledger("stopped")))
            await kept.load()
            for second in (0.0, 100.0):
                clock.now_s = second
                await kept.save(whole(ledger("router-2")))
            assert await fields(server) == {"router-2"}
            await stopped.save(whole(full_ledger("stopped")))
        for second in (200.0, 300.0):
            clock.now_s = second
            await kept.save(whole(ledger("router-2")))
        assert await fields(server) == {"stopped", "router-2"}


async def test_a_server_without_memory_refuses_and_is_used_again_when_it_has_some(tmp_path: Path):
    async with redis_server(tmp_path) as server, store(server) as kept:
        client = Redis.from_url(server.url)
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", "1")
        with pytest.raises(StoreError, match="used memory > 'maxmemory'"):
            await kept.save(whole(full_ledger()))
        await client.config_set("maxmemory", "0")
        await client.aclose()
        await kept.save(whole(full_ledger()))
        assert await routers(kept) == {"router-1"}


async def test_what_is_no_ledger_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with redis_server(tmp_path) as server, store(server) as kept:
        client = Redis.from_url(server.url)
        await client.hset(
            LEDGERS,
            mapping={"ledger:a": b"cut", "ledger:b": frame(b"\x02"), "ledger:c": frame(b"\x01")},
        )
        await kept.save(whole(full_ledger()))
        assert await routers(kept) == {"router-1"}
        assert caplog.text.count("is ignored") == 3
        await client.delete(LEDGERS)
        await client.set(LEDGERS, "something else")
        for call in (kept.load(), kept.save(whole(full_ledger()))):
            with pytest.raises(StoreError, match="WRONGTYPE"):
                await call
        await client.aclose()


async def test_a_wrong_password_is_a_fault_that_does_not_tell_it(tmp_path: Path):
    async with redis_server(tmp_path) as server:
        await server.kill()
        await server.start("--requirepass", "correct")
        async with store(server, url=f"unix://:secret-sk@{server.socket}") as kept:
            with pytest.raises(StoreError) as fault:
                await kept.load()
            assert "secret-sk" not in str(fault.value)
        async with store(server, url=f"unix://:correct@{server.socket}") as kept:
            assert await kept.load() == []


async def test_ledgers_of_two_services_in_one_server_do_not_mix(tmp_path: Path):
    async with redis_server(tmp_path) as server, store(server) as kept:
        await kept.save(whole(full_ledger()))
        other = RedisStore(server.url, service="ns/other", clock=Clock())
        assert await other.load() == []
        await other.close()


async def test_many_routers_at_once_lose_nothing(tmp_path: Path):
    async with redis_server(tmp_path) as server, store(server) as kept:
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(kept.save(whole(full_ledger(f"router-{number}"))))
        assert len(await routers(kept)) == 20
