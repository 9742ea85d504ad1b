"""KV events of the real engine: the router's view of its cache is the cached tokens that it reports, to the token."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import httpx
import pytest
from evenkeel_contract.render import kv_events_flag
from evenkeel_contract.routerconfig import CacheSharing, PrefixConfig, PrefixMode, ReplicaConfig
from evenkeel_fairshare.fleet.contract import ReplicaSet
from evenkeel_fairshare.prefix.index import sglang_blocks
from evenkeel_router.app import Router
from evenkeel_router.fleet.member import Member
from evenkeel_router.prefix.kv_follower import SyncState

from tests.sglang.engine import Engine, ask, installed, tokens, unused_port
from tests.sglang.models import PAGE_TOKENS
from tests.sglang.shared import KEPT_BATCHES, STOCK_POOL_TOKENS, SharedEngine
from tests.support.leaks import Leak, leaky
from tests.support.routers import (
    KEY,
    PATIENCE_S,
    QUICK,
    config_for,
    router_of,
    tenancy,
    until,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

_log = logging.getLogger(__name__)
SEED = 5
shared = partial(config_for, tenancy=tenancy(cache_sharing=CacheSharing.SERVICE))
"""A router that finds what the tests send to the engine past it."""


def prompts(rng: random.Random) -> Iterator[list[int]]:
    """Endless: two levels of shared prefixes, of lengths that are no multiples of a page, and a part of their own."""
    roots = [tokens(rng, 200 + 7 * number) for number in range(3)]
    branches = [[*root, *tokens(rng, 90 + number)] for root in roots for number in range(3)]
    while True:
        yield [*rng.choice(roots + branches), *tokens(rng, rng.randrange(1, 70))]


async def send(router: Router, prompt: list[int]) -> list[int]:
    """Serve a prompt; what the engine's cache must hold afterwards: all but the last token."""
    async with httpx.AsyncClient(base_url=router.url, timeout=120) as http:
        body = ask("any", prompt, output_tokens=24)
        key = {"Authorization": f"Bearer {KEY}"}
        answer = (await http.post("/generate", json=body, headers=key)).raise_for_status().json()
    return [*prompt, *answer["output_ids"][:-1]]


async def told(router: Router, path: list[int]) -> None:
    """Wait for the events of a request that was served alone: those of its output come last."""
    follower, member = router.rooms.prefixes.followers["r0"], _member(router)
    assert member.slot is not None
    pages = sglang_blocks(path, page_tokens=router.rooms.settings.config.prefix.page_tokens)
    there = ReplicaSet(1 << member.slot)

    def all_there() -> bool:
        held = router.rooms.replicas.fleet.index.match(pages, there).blocks
        return follower.sync_state is SyncState.IN_SYNC and held == len(pages)

    await until(all_there, f"the events of a request: {follower.reason}")


async def serve(router: Router, some: Iterator[list[int]], count: int) -> None:
    for _ in range(count):
        await told(router, await send(router, next(some)))


def exactly(router: Router, count: int) -> int:
    """That all predictions were exact in name and in fact; the tokens foretold."""
    assert set(router.rooms.totals.predictions) == {"exact"}
    foretold = router.rooms.totals.predictions["exact"]
    assert sum(foretold.error_tokens.counts) == count
    assert foretold.error_tokens.total == 0
    assert foretold.predicted_tokens == foretold.reported_tokens
    return foretold.predicted_tokens


Served = tuple[Engine, ReplicaConfig]


def served(
    start: Callable[..., Engine],
    reports: int,
    *flags: str,
    page_tokens: int = PAGE_TOKENS,
    sglang: str | None = None,
) -> Served:
    """An engine with DLPM that publishes, and how a router is told of it."""
    events, replay = unused_port(), unused_port()
    told = kv_events_flag(host="127.0.0.1", port=events, replay_port=replay)
    engine = start(
        *("--schedule-policy=dlpm", f"--page-size={page_tokens}"),
        *(f"--max-total-tokens={STOCK_POOL_TOKENS}", *flags),
        told.removesuffix("}") + f',"buffer_steps":{KEPT_BATCHES}}}',
        environment={"EVENKEEL_REPORTS_PORT": str(reports)},
        sglang=sglang,
    )
    replica = ReplicaConfig(
        name="r0",
        url=engine.url,
        reports=f"tcp://127.0.0.1:{reports}",
        kv_events=f"tcp://127.0.0.1:{events}",
        kv_replay=f"tcp://127.0.0.1:{replay}",
    )
    return engine, replica


def prefix_config(page_tokens: int = PAGE_TOKENS) -> PrefixConfig:
    return PrefixConfig(
        mode=PrefixMode.TOKENS, tokenizer=str(installed() / "model"), page_tokens=page_tokens
    )


async def test_the_real_engines_cache_is_seen_exactly(stock: SharedEngine) -> None:
    running, replica, prefix = stock, stock.replica, prefix_config()
    some = prompts(random.Random(SEED))
    async with leaky(replica.kv_events or "") as leak:
        config = shared(replace(replica, kv_events=leak.address), prefix=prefix)
        async with router_of(config) as router:
            await until(lambda: "r0" in router.rooms.prefixes.followers, "it to be followed")
            follower = router.rooms.prefixes.followers["r0"]
            await until(lambda: follower.sync_state is SyncState.IN_SYNC, "sync")

            # Under eviction.
            await serve(router, some, 40)
            foretold = exactly(router, 40)
            assert follower.counts.removed > 0, "the pool was meant to be too small"

            # With losses: of every batch some time or other.
            await _lose(router, leak, some, 12)
            exactly(router, 52)
            assert leak.lost and not follower.counts.overruns

            # From the beginning, late.
            async with router_of(shared(replica, prefix=prefix)) as late:
                await until(lambda: "r0" in late.rooms.prefixes.followers, "it to be followed")
                second = late.rooms.prefixes.followers["r0"]
                await until(lambda: second.sequence >= follower.sequence, "its replay")
                await serve(late, some, 5)
                exactly(late, 5)

            # Once the cache is empty.
            async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
                await running.idle(http)
                (await http.post("/flush_cache")).raise_for_status()
            await until(
                lambda: router.rooms.replicas.fleet.blocks(_member(router)) == 0, "a cleared cache"
            )
            await serve(router, some, 5)
            exactly(router, 57)
    counts = follower.counts
    _log.info(
        "%d cached tokens of 40 requests foretold, all right; in all %d batches, %d pages stored, %d removed, "
        "%d batches lost, %d gaps",
        *(foretold, counts.batches, counts.stored, counts.removed, leak.lost, counts.gaps),
    )


def _member(router: Router) -> Member:
    member = router.rooms.replicas.fleet.member("r0")
    assert member is not None
    return member


async def _lose(router: Router, leak: Leak, some: Iterator[list[int]], count: int) -> None:
    for number in range(count):
        leak.loses = number % 3 != 2  # two requests of three are never heard of live
        await serve(router, some, 1)
    leak.loses = False


async def alone(engine: Engine, prompt: list[int]) -> None:
    """Serve a prompt past all routers, and wait until the engine has told of it."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=120) as http:
        (await http.post("/generate", json=ask("any", prompt, output_tokens=24))).raise_for_status()
        await engine.idle(http)


class Tally:
    """What was foretold and reported since."""

    def __init__(self, router: Router) -> None:
        self._accounts = router.rooms.totals
        self._before = self._now()

    def _now(self) -> tuple[int, int, int, float]:
        found = self._accounts.predictions.get("exact")
        if found is None:
            return 0, 0, 0, 0.0
        errors = found.error_tokens
        return sum(errors.counts), found.predicted_tokens, found.reported_tokens, errors.total

    def exact(self, count: int) -> int:
        """That so many predictions were made, all of them exact in name and right; the tokens foretold."""
        requests, predicted, reported, error = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        assert requests == count
        assert (error, predicted) == (0, reported)
        return int(predicted)


async def test_lost_batches_are_replayed_and_missing_ones_replaced_by_pages(
    templated: SharedEngine,
) -> None:
    replica = replace(templated.replica, reports=templated.reports)
    await replay_and_replace(templated, replica, PAGE_TOKENS)


@pytest.mark.slow
async def test_an_older_versions_batches_are_replayed_and_replaced_too(
    start: Callable[..., Engine], free_port: int
) -> None:
    """Its CPU engine has pages of one token only: a kernel gives out larger ones."""
    running, replica = served(start, free_port, page_tokens=1, sglang="0.5.21")
    await replay_and_replace(running, replica, 1)


async def replay_and_replace(running: Engine, replica: ReplicaConfig, page_tokens: int) -> None:
    """Gaps are the only sign of a loss here: nobody looks whether silence hides one."""
    some = prompts(random.Random(SEED))
    patient = replace(QUICK, kv_check_interval_s=3600.0)
    for _ in range(20):
        await alone(running, next(some))
    async with leaky(replica.kv_events or "") as leak:
        config = shared(replace(replica, kv_events=leak.address), prefix=prefix_config(page_tokens))
        async with router_of(config, timing=patient) as router:
            # Too late for a replay.
            await until(lambda: "r0" in router.rooms.prefixes.followers, "it to be followed")
            follower = router.rooms.prefixes.followers["r0"]
            counts = follower.counts
            await until(
                lambda: follower.sync_state is SyncState.IN_SYNC, "what it holds to be told"
            )
            assert counts.takeovers == 1
            assert follower.sequence > KEPT_BATCHES
            tally = Tally(router)
            await serve(router, some, 20)
            late = tally.exact(20)

            # Gaps that a replay fills.
            gaps, replays = counts.gaps, counts.replays
            for _ in range(5):
                await _miss(router, running, leak, some, 1)
            assert counts.gaps >= gaps + 5
            assert counts.replays >= replays + 5
            assert counts.takeovers == 1
            tally = Tally(router)
            await serve(router, some, 10)
            replayed = tally.exact(10)

            # One that no replay fills.
            await _miss(router, running, leak, some, KEPT_BATCHES)
            assert (counts.takeovers, counts.restarts, counts.unreadable) == (2, 0, 0)
            tally = Tally(router)
            await serve(router, some, 10)
            told = tally.exact(10)
    _log.info(
        "%d cached tokens of 20 requests foretold by a late router, %d of 10 after gaps, %d of 10 after "
        "what was not kept, all right; %s",
        *(late, replayed, told, counts),
    )


async def _miss(
    router: Router, engine: Engine, leak: Leak, some: Iterator[list[int]], count: int
) -> None:
    """The router hears nothing of `count` requests until another one is served."""
    leak.loses, lost = True, leak.lost
    for _ in range(count):
        await send(router, next(some))
    async with httpx.AsyncClient(base_url=engine.url, timeout=PATIENCE_S) as http:
        await engine.idle(http)
    await until(lambda: leak.lost >= lost + count, "its events to be lost")
    leak.loses = False
    await serve(router, some, 1)


@pytest.mark.slow
async def test_routers_that_come_in_the_middle_of_a_load_are_exact(
    start: Callable[..., Engine], free_port: int
) -> None:
    running, replica = served(start, free_port, "--max-running-requests=8")
    some, enough, done = prompts(random.Random(SEED)), asyncio.Event(), 0

    async def load(http: httpx.AsyncClient) -> None:
        nonlocal done
        while not enough.is_set():
            body = ask("any", next(some), output_tokens=8)
            (await http.post("/generate", json=body)).raise_for_status()
            done += 1

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=120))
        clients = [asyncio.create_task(load(http)) for _ in range(12)]
        stack.callback(enough.set)
        await until(lambda: done > 3 * KEPT_BATCHES, "more batches than are kept")
        config = shared(replica, prefix=prefix_config())
        routers = []
        for _ in range(5):
            routers.append(await stack.enter_async_context(router_of(config)))
            await until(partial(_was_told, routers[-1]), "what it holds to be told")
        under_load = done
        enough.set()
        await asyncio.gather(*clients)
        await running.idle(http)
        for router in routers:
            await until(partial(_in_sync, router), "sync")
            tally = Tally(router)
            await serve(router, some, 5)
            tally.exact(5)
        counts = [router.rooms.prefixes.followers["r0"].counts for router in routers]
    assert all(one.restarts == one.unreadable == 0 for one in counts)
    _log.info("%d requests before the load ended; of each router: %s", under_load, counts)


def _was_told(router: Router) -> bool:
    follower = router.rooms.prefixes.followers.get("r0")
    return follower is not None and follower.counts.takeovers > 0


def _in_sync(router: Router) -> bool:
    return router.rooms.prefixes.followers["r0"].sync_state is SyncState.IN_SYNC
