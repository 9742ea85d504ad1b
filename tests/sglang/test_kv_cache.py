"""SGLang's own cache and publisher, without an engine: what a router follows is what the cache finds, to the token."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from evenkeel_contract.routerconfig import PrefixConfig, PrefixMode, ReplicaConfig
from evenkeel_fairshare.prefix.index import sglang_blocks
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.member import Member
from evenkeel_router.prefix.kv_events import KvEvents
from evenkeel_router.prefix.kv_follower import Follower, SyncState
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.telemetry.rooms import Rooms

from tests.sglang.engine import environment_of, installed
from tests.support.fakes import FakeProber
from tests.support.leaks import leaky
from tests.support.routers import QUICK, config_for, until
from tests.support.sockets import socket_folder

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(300)]

PAGE_TOKENS = 16
VERSIONS = ("", "0.5.21")
START_S = 120.0


class Cache:
    """The child process."""

    def __init__(self, process: asyncio.subprocess.Process, sockets: str) -> None:
        self._process = process
        self.replica = ReplicaConfig(
            name="r0",
            url="http://127.0.0.1:1",
            kv_events=f"ipc://{sockets}/events",
            kv_replay=f"ipc://{sockets}/replay",
        )

    async def answer(self) -> int:
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            while not (line := await self._process.stdout.readline()).startswith(b"answer "):
                assert line, "it ended"
        return int(line.split()[1])

    async def do(self, what: str, given: list[int] | int = 0) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, given]).encode() + b"\n")
        return await self.answer()


@asynccontextmanager
async def cache(folder: Path, version: str, *, kept: int = 1000) -> AsyncIterator[Cache]:
    with socket_folder() as sockets:
        process = await asyncio.create_subprocess_exec(
            installed() / "bin/python",
            Path(__file__).with_name("cache_alone.py"),
            *(f"ipc://{sockets}/events", f"ipc://{sockets}/replay", str(PAGE_TOKENS), str(kept)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment_of({"HOME": str(folder)}, sglang=version or None),
        )
        child = Cache(process, sockets)
        try:
            await child.answer()  # it is ready
            yield child
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def following(replica: ReplicaConfig) -> AsyncIterator[tuple[Rooms, Member]]:
    """The router's own follower, for a replica that is taken for ready."""
    prefix = PrefixConfig(mode=PrefixMode.TOKENS, page_tokens=PAGE_TOKENS)
    rooms = Rooms.make(config_for(replica, prefix=prefix), timing=QUICK)
    rooms.replicas.configured["r0"] = replica
    member = rooms.replicas.fleet.add("r0")
    rooms.replicas.fleet.ready(member)
    async with Tokenisation(prefix, rooms.prefixes.untokenised) as tokenising:
        health_monitor = HealthMonitor(
            rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber()
        )
        task = asyncio.create_task(
            KvEvents(
                rooms.settings,
                rooms.replicas,
                rooms.prefixes,
                health_monitor=health_monitor,
                tokenising=tokenising,
            ).run()
        )
        try:
            await until(lambda: "r0" in rooms.prefixes.followers, "it to be followed")
            yield rooms, member
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def foreseen(rooms: Rooms, prompt: list[int]) -> int:
    """The tokens that the cache must find of a prompt."""
    pages = sglang_blocks(prompt[:-1], page_tokens=PAGE_TOKENS)
    return (
        rooms.replicas.fleet.index.match(pages, rooms.replicas.fleet.routable).blocks * PAGE_TOKENS
    )


def grow(rng: random.Random, prompts: list[list[int]]) -> list[int]:
    """A prompt that shares any beginning with an earlier one."""
    stem = rng.choice(prompts) if prompts and rng.random() < 0.8 else []
    made = stem[: rng.randrange(len(stem) + 1)] + [
        rng.randrange(1000) for _ in range(rng.randrange(1, 90))
    ]
    prompts.append(made)
    return made


async def applied(follower: Follower, published: int) -> None:
    await until(
        lambda: follower.sync_state is SyncState.IN_SYNC and follower.sequence == published,
        f"{published} batches",
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_followed_is_what_sglangs_cache_finds(version: str, tmp_path: Path) -> None:
    rng, prompts = random.Random(7), list[list[int]]()
    async with (
        cache(tmp_path, version) as real,
        leaky(real.replica.kv_events or "") as leak,
    ):
        told = ReplicaConfig(
            name="r0",
            url=real.replica.url,
            kv_events=leak.address,
            kv_replay=real.replica.kv_replay,
        )
        async with following(told) as (rooms, _):
            hits = 0
            for step in range(60):
                leak.loses = step % 4 == 3
                for _ in range(rng.randrange(1, 4)):
                    await real.do("insert", grow(rng, prompts))
                if rng.random() < 0.4:
                    await real.do("evict", rng.randrange(400))
                if step == 30:
                    await real.do("reset")
                await applied(rooms.prefixes.followers["r0"], await real.do("publish"))
                for prompt in rng.choices(prompts, k=6):
                    found = await real.do("match", prompt)
                    assert foreseen(rooms, prompt) == found
                    hits += found > 0
            counts = rooms.prefixes.followers["r0"].counts
            assert counts.removed > 50 and leak.lost and hits > 50
            assert not counts.restarts and not counts.overruns and not counts.unreadable


@pytest.mark.parametrize("version", VERSIONS)
async def test_who_comes_too_late_foresees_no_more_than_there_is(
    version: str, tmp_path: Path
) -> None:
    rng, prompts = random.Random(8), list[list[int]]()
    async with cache(tmp_path, version, kept=5) as real:
        for _ in range(12):
            await real.do("insert", grow(rng, prompts))
            await real.do("evict", rng.randrange(60))
            published = await real.do("publish")
        async with following(real.replica) as (rooms, _):
            follower = rooms.prefixes.followers["r0"]
            await until(lambda: follower.sequence == published, "its replay")
            await until(lambda: follower.sync_state is SyncState.PARTIAL, "its state")
            assert follower.reason.startswith("its batches before number 7 are not kept any more")
            for prompt in prompts:
                assert foreseen(rooms, prompt) <= await real.do("match", prompt)
            await real.do("reset")
            for prompt in prompts[:3]:
                await real.do("insert", prompt)
            await applied(follower, await real.do("publish"))
            for prompt in prompts:
                assert foreseen(rooms, prompt) == await real.do("match", prompt)
