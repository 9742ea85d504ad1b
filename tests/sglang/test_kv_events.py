"""KV events of the real engine: the router's view of its cache is the cached tokens that it reports, to the token."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx
import pytest
from evenkeel_contract.enginecommand import kv_events_flag
from evenkeel_contract.routerconfig import PrefixConfig, PrefixMode, ReplicaConfig
from evenkeel_fairshare.fleet.contract import ReplicaSet
from evenkeel_fairshare.prefix.blocks import sglang_blocks
from evenkeel_router.app import Router
from evenkeel_router.core.candidates import Member
from evenkeel_router.core.following import Standing

from tests.sglang.engine import Engine, ask, engine_environment, tokens, unused_port
from tests.support.leaks import Leak, leaky
from tests.support.routers import KEY, PATIENCE_S, config_for, router_of, until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

_log = logging.getLogger(__name__)
PAGE_TOKENS = 16
POOL_TOKENS = 2048  # a handful of the prompts below
SEED = 5


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
    follower, member = router.state.following["r0"], _member(router)
    assert member.slot is not None
    pages = sglang_blocks(path, page_tokens=PAGE_TOKENS)
    there = ReplicaSet(1 << member.slot)

    def all_there() -> bool:
        held = router.state.fleet.index.match(pages, there).blocks
        return follower.standing is Standing.IN_SYNC and held == len(pages)

    await until(all_there, f"the events of a request: {follower.reason}")


async def serve(router: Router, some: Iterator[list[int]], count: int) -> None:
    for _ in range(count):
        await told(router, await send(router, next(some)))


def exactly(router: Router, count: int) -> int:
    """That all predictions were exact in name and in fact; the tokens foretold."""
    assert set(router.state.accounts.predictions) == {"exact"}
    foretold = router.state.accounts.predictions["exact"]
    assert sum(foretold.error_tokens.counts) == count
    assert foretold.error_tokens.total == 0
    assert foretold.predicted_tokens == foretold.reported_tokens
    return foretold.predicted_tokens


@pytest.fixture
def engine(start: Callable[..., Engine], free_port: int) -> tuple[Engine, ReplicaConfig]:
    ports = [free_port, unused_port()]
    flag = kv_events_flag(host="127.0.0.1", port=ports[0], replay_port=ports[1])
    engine = start(
        *("--page-size", str(PAGE_TOKENS), "--max-total-tokens", str(POOL_TOKENS), flag),
    )
    addresses = [f"tcp://127.0.0.1:{port}" for port in ports]
    replica = ReplicaConfig(
        name="r0", url=engine.url, kv_events=addresses[0], kv_replay=addresses[1]
    )
    return engine, replica


async def test_the_real_engines_cache_is_seen_exactly(
    engine: tuple[Engine, ReplicaConfig],
) -> None:
    running, replica = engine
    folder = engine_environment()
    assert folder is not None
    prefix = PrefixConfig(
        mode=PrefixMode.TOKENS, tokenizer=str(folder / "model"), page_tokens=PAGE_TOKENS
    )
    some = prompts(random.Random(SEED))
    async with leaky(replica.kv_events or "") as leak:
        config = config_for(replace(replica, kv_events=leak.address), prefix=prefix)
        async with router_of(config) as router:
            await until(lambda: "r0" in router.state.following, "it to be followed")
            follower = router.state.following["r0"]
            await until(lambda: follower.standing is Standing.IN_SYNC, "sync")

            # Under eviction.
            await serve(router, some, 40)
            foretold = exactly(router, 40)
            assert follower.counts.removed > 0, "the pool was meant to be too small"

            # With losses: of every batch some time or other.
            await _lose(router, leak, some, 12)
            exactly(router, 52)
            assert leak.lost and not follower.counts.overruns

            # From the beginning, late.
            async with router_of(config_for(replica, prefix=prefix)) as late:
                await until(lambda: "r0" in late.state.following, "it to be followed")
                second = late.state.following["r0"]
                await until(lambda: second.sequence >= follower.sequence, "its replay")
                await serve(late, some, 5)
                exactly(late, 5)

            # Once the cache is empty.
            async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
                await running.idle(http)
                (await http.post("/flush_cache")).raise_for_status()
            await until(lambda: router.state.fleet.blocks(_member(router)) == 0, "a cleared cache")
            await serve(router, some, 5)
            exactly(router, 57)
    counts = follower.counts
    _log.info(
        "%d cached tokens of 40 requests foretold, all right; in all %d batches, %d pages stored, %d removed, "
        "%d batches lost, %d gaps",
        *(foretold, counts.batches, counts.stored, counts.removed, leak.lost, counts.gaps),
    )


def _member(router: Router) -> Member:
    member = router.state.fleet.member("r0")
    assert member is not None
    return member


async def _lose(router: Router, leak: Leak, some: Iterator[list[int]], count: int) -> None:
    for number in range(count):
        leak.loses = number % 3 != 2  # two requests of three are never heard of live
        await serve(router, some, 1)
    leak.loses = False
