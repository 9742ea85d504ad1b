"""KV events, the router before simulated replicas: what it foretells is what they find, through loss and restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.kvevents import BlockStored
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
)
from evenkeel_router.app import Router, running
from evenkeel_router.prefix.kv_follower import Follower, SyncState
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.leaks import leaky
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    replica_of,
    routable,
    simulated,
    until,
)

TOKENS = PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=SIMULATOR_TOKENIZER)
WORDS = "the sea ran out and the sky was red "


def publishing(**changes: Any) -> Any:
    """A replica whose cache holds a handful of prompts."""
    return simulated(**({"kv_events_port": 0, "kv_tokens": 600} | changes))


@asynccontextmanager
async def router_for(*replicas: ReplicaConfig) -> AsyncIterator[Router]:
    async with running(config_for(*replicas, prefix=TOKENS), timing=QUICK) as router:
        await routable(router, len(replicas))
        await until(
            lambda: len(router.rooms.prefixes.followers) == len(replicas), "all to be followed"
        )
        yield router


@asynccontextmanager
async def fleet(
    count: int = 1, **changes: Any
) -> AsyncIterator[tuple[Router, list[RunningServer]]]:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(publishing(**changes)))
            for _ in range(count)
        ]
        named = [replica_of(server, f"r{i}") for i, server in enumerate(servers)]
        yield await stack.enter_async_context(router_for(*named)), servers


def follower_of(router: Router, name: str = "r0") -> Follower:
    return router.rooms.prefixes.followers[name]


def published(server: RunningServer) -> int:
    assert server.replica.publisher is not None
    return server.replica.publisher.published


async def in_sync(router: Router, *servers: RunningServer) -> None:
    """Wait until the router has applied all that was published, and claims no less."""

    def all_applied() -> bool:
        return all(
            follower.sync_state is SyncState.IN_SYNC and follower.sequence == published(server)
            for server, follower in zip(
                servers, map(router.rooms.prefixes.followers.__getitem__, names), strict=True
            )
        )

    names = [f"r{number}" for number in range(len(servers))]
    await until(
        lambda: router.rooms.prefixes.followers.keys() >= set(names) and all_applied(), "sync"
    )


async def complete(router: Router, prompt: str) -> int:
    """The tokens that the replica found cached."""
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        response = await client.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": prompt, "max_tokens": 4},
            headers={"Authorization": f"Bearer {KEY}"},
        )
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def held(router: Router, name: str = "r0") -> int:
    member = router.rooms.replicas.fleet.member(name)
    assert member is not None
    return router.rooms.replicas.fleet.blocks(member)


def pages_of(server: RunningServer) -> int:
    """In its cache; namespaces are nodes without tokens."""
    cache = server.replica.engine.memory.cache
    return cache.nodes - sum(not segment.tokens for segment in cache.root.children)


async def test_predictions_equal_what_replicas_find_under_eviction() -> None:
    async with fleet(2) as (router, servers):
        await in_sync(router, *servers)
        for number in range(40):
            await complete(router, f"{number % 9} {WORDS * (3 + number % 7)}")
            await in_sync(router, *servers)
            for at, server in enumerate(servers):
                assert held(router, f"r{at}") == pages_of(server)
        foretold = router.rooms.totals.predictions["exact"]
        assert foretold.error_tokens.total == 0
        assert foretold.predicted_tokens == foretold.reported_tokens > 0
        assert "estimated" not in router.rooms.totals.predictions
        evicted = sum(
            follower.counts.removed for follower in router.rooms.prefixes.followers.values()
        )
        assert evicted, "the pools were meant to be too small"


async def test_a_router_that_comes_late_catches_up_by_replay() -> None:
    async with fleet(1) as (first, servers):
        for number in range(8):
            await complete(first, f"{number} {WORDS * 5}")
        await in_sync(first, *servers)
        async with router_for(replica_of(servers[0])) as late:
            await in_sync(late, *servers)
            assert held(late) == held(first) > 0
            assert follower_of(late).counts.gaps == 0
            foretold = await complete(late, f"7 {WORDS * 5}")
            assert late.rooms.totals.predictions["exact"].predicted_tokens == foretold > 0


async def test_a_late_router_gets_the_content_of_the_cache() -> None:
    async with fleet(1, kv_kept_batches=2) as (first, servers):
        for number in range(24):
            await complete(first, f"{number} {WORDS * 4}")
        await in_sync(first, *servers)
        assert follower_of(first).counts.removed, "the pool was meant to be too small"
        async with router_for(replica_of(servers[0])) as late:
            await in_sync(late, *servers)
            counts = follower_of(late).counts
            assert (counts.takeovers, counts.restarts) == (1, 0)
            assert held(late) == held(first) == pages_of(servers[0])
            for number in range(18, 30):
                await complete(late, f"{number} {WORDS * 4}")
                await in_sync(late, *servers)
            foretold = late.rooms.totals.predictions["exact"]
            assert foretold.predicted_tokens == foretold.reported_tokens > 0
            assert foretold.error_tokens.total == 0


async def test_more_lost_batches_than_are_kept_are_recovered_too() -> None:
    async with (
        running_server(publishing(kv_kept_batches=2)) as server,
        leaky(server.kv_events or "") as leak,
    ):
        replica = replace(replica_of(server), kv_events=leak.address)
        patient = replace(QUICK, kv_check_interval_s=3600.0)
        async with running(config_for(replica, prefix=TOKENS), timing=patient) as router:
            await routable(router, 1)
            await until(lambda: bool(router.rooms.prefixes.followers), "it to be followed")
            follower = follower_of(router)
            await complete(router, f"0 {WORDS * 3}")
            await in_sync(router, server)
            leak.loses = True
            while leak.lost < 5:
                await complete(router, f"{published(server)} {WORDS * 3}")
            leak.loses = False
            while not follower.counts.takeovers:
                await complete(router, f"{published(server)} {WORDS * 3}")
            await in_sync(router, server)
            assert follower.counts.gaps and follower.counts.overruns
            assert held(router) == pages_of(server)


async def test_a_router_without_the_content_is_partial_until_the_cache_is_empty() -> None:
    async with fleet(1, kv_kept_batches=2) as (first, servers):
        for number in range(6):
            await complete(first, f"{number} {WORDS * 4}")
        await in_sync(first, *servers)
        async with router_for(replica_of(servers[0], reports=None)) as late:
            follower = follower_of(late)
            await until(lambda: follower.sync_state is SyncState.PARTIAL, "what it can know")
            kept_from = published(servers[0]) - 2
            why = (
                f"its batches before number {kept_from} are not kept any more, "
                "and it does not report the pages that it holds: it sends no reports"
            )
            await until(lambda: follower.reason == why, "its words")
            await complete(late, f"9 {WORDS}")
            assert set(late.rooms.totals.predictions) == {"estimated"}
            async with httpx.AsyncClient() as plain:
                admin = f"http://127.0.0.1:{late.admin_port}/v1/state"
                (shown,) = decode_state((await plain.get(admin)).content).replicas
                probe = f"http://127.0.0.1:{late.probe_port}/metrics"
                page = (await plain.get(probe)).text
                assert (await plain.post(f"{servers[0].url}/flush_cache")).status_code == 200
            assert (shown.kv_state, shown.kv_reason) == ("Partial", why)
            labels = f'model_name="{MODEL}",replica="r0"'
            assert f"evenkeel_router_replica_kv_in_sync{{{labels}}} 0.0" in page
            await in_sync(late, *servers)
            assert await complete(late, f"9 {WORDS}") == 0
            assert late.rooms.totals.predictions["exact"].error_tokens.total == 0


async def test_a_replica_that_was_restarted_is_known_from_the_beginning() -> None:
    async with AsyncExitStack() as stack:
        async with running_server(publishing()) as server:
            router = await stack.enter_async_context(router_for(replica_of(server)))
            for number in range(4):
                await complete(router, f"{number} {WORDS * 5}")
            await in_sync(router, server)
            member = router.rooms.replicas.fleet.member("r0")
            assert member is not None
            assert member.lives == 1
            ports = [int(address.rsplit(":", 1)[1]) for address in _addresses(server)]
        names = ("port", "reports_port", "kv_events_port", "kv_replay_port")
        again = publishing(**dict(zip(names, ports, strict=True)))
        second = await stack.enter_async_context(running_server(again))
        await until(lambda: member.lives == 2, "its next life")
        await routable(router, 1)
        await in_sync(router, second)
        for _ in range(2):
            await complete(router, f"3 {WORDS * 5}")
            await in_sync(router, second)
        foretold = router.rooms.totals.predictions["exact"]
        assert foretold.predicted_tokens == foretold.reported_tokens
        assert held(router) == pages_of(second)


async def test_events_reveal_a_restart_before_other_signals() -> None:
    async with AsyncExitStack() as stack:
        async with running_server(publishing()) as server:
            silent = replica_of(server, reports=None)
            seldom = replace(QUICK, probe_interval_s=3600.0)
            config = config_for(silent, prefix=TOKENS)
            router = await stack.enter_async_context(running(config, timing=seldom))
            await routable(router, 1)
            await until(lambda: bool(router.rooms.prefixes.followers), "it to be followed")
            for number in range(4):
                await complete(router, f"{number} {WORDS * 5}")
            await in_sync(router, server)
            ports = [int(address.rsplit(":", 1)[1]) for address in _addresses(server)]
        names = ("port", "reports_port", "kv_events_port", "kv_replay_port")
        again = publishing(**dict(zip(names, ports, strict=True)))
        second = await stack.enter_async_context(running_server(again))
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        await until(lambda: member.lives == 2, "its next life")
        await in_sync(router, second)
        assert held(router) == pages_of(second) == 0


def _addresses(server: RunningServer) -> list[str]:
    return [
        server.url,
        server.reports or "",
        server.kv_events or "",
        server.kv_replay or "",
    ]


async def test_batches_that_were_lost_are_replayed() -> None:
    async with (
        running_server(publishing()) as server,
        leaky(server.kv_events or "") as leak,
    ):
        replica = replace(replica_of(server), kv_events=leak.address)
        patient = replace(QUICK, kv_check_interval_s=3600.0)
        async with running(config_for(replica, prefix=TOKENS), timing=patient) as router:
            await routable(router, 1)
            # Both subscriptions take a moment to arrive: until a batch came live, replays fill the gaps.
            await until(lambda: bool(router.rooms.prefixes.followers), "it to be followed")
            follower = follower_of(router)
            while not leak.lost:
                leak.loses = follower.sync_state is SyncState.IN_SYNC and follower.sequence > 0
                await complete(router, f"{published(server)} {WORDS * 3}")
            assert follower.sequence < published(server)
            gaps = follower.counts.gaps
            leak.loses = False
            while follower.counts.gaps == gaps:
                await complete(router, f"{published(server)} {WORDS * 3}")
            await in_sync(router, server)
            assert held(router) == pages_of(server)


async def test_the_last_batch_is_not_missed_though_none_follows() -> None:
    async with (
        running_server(publishing()) as server,
        leaky(server.kv_events or "") as leak,
        router_for(replace(replica_of(server), kv_events=leak.address)) as router,
    ):
        leak.loses = True
        for number in range(3):
            await complete(router, f"{number} {WORDS * 4}")
            await in_sync(router, server)
        assert follower_of(router).counts.gaps == 0
        assert held(router) == pages_of(server) > 0


async def test_an_index_without_room_for_all_says_so() -> None:
    async with running_server(publishing(kv_tokens=5000)) as server:
        small = replace(TOKENS, max_blocks=40)
        config = config_for(replica_of(server), prefix=small)
        async with running(config, timing=QUICK) as router:
            await routable(router, 1)
            await until(lambda: "r0" in router.rooms.prefixes.followers, "it to be followed")
            follower = follower_of(router)
            for number in range(6):
                await complete(router, f"{number} {WORDS * 8}")
            await until(lambda: follower.sync_state is SyncState.PARTIAL, "what it cannot know")
            assert follower.reason.endswith("prefix.maxBlocks is too small")
            async with httpx.AsyncClient() as plain:
                assert (await plain.post(f"{server.url}/flush_cache")).status_code == 200
            await in_sync(router, server)


async def test_more_batches_than_a_replay_can_send_in_one_go() -> None:
    """Sockets drop what is read too slowly, the end of a replay included: it is asked for in several goes."""
    async with running_server(publishing(kv_tokens=100_000)) as server:
        publisher = server.replica.publisher
        assert publisher is not None
        await complete_at(server, "a prompt")
        tokens = list(range(100_000, 108_000))
        for number in range(2500):  # as large as those of SGLang's prefills
            blocks = list(range(500 * (number % 100), 500 * (number % 100 + 1)))
            event = BlockStored(blocks, None, tokens, 16, None)
            await publisher.publish([event], timestamp=float(number))
        async with router_for(replica_of(server)) as router:
            await in_sync(router, server)
            counts = follower_of(router).counts
            assert counts.batches == published(server)
            assert counts.overruns == counts.restarts == 0


async def complete_at(server: RunningServer, prompt: str) -> None:
    """Past the router."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
        (await client.post(f"{server.url}/v1/completions", json=body)).raise_for_status()


async def test_a_replica_without_kv_events_is_estimated_and_the_state_says_why() -> None:
    async with (
        running_server(simulated()) as server,
        running(config_for(replica_of(server), prefix=TOKENS), timing=QUICK) as router,
    ):
        await routable(router, 1)
        for _ in range(2):
            await complete(router, WORDS * 5)
        assert set(router.rooms.totals.predictions) == {"estimated"}
        async with httpx.AsyncClient() as plain:
            state = await plain.get(f"http://127.0.0.1:{router.admin_port}/v1/state")
        (shown,) = decode_state(state.content).replicas
        assert (shown.kv_state, shown.kv_reason) == ("", "it publishes no KV events")
