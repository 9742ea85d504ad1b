"""The border of shared prefixes on the real engine: no cached token from beyond it, over each API, and the router's view is exact.

SGLang reads the salt from the body of four APIs; over messages it ignores it, so the plug-in reads a header.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from evenkeel_contract.render import kv_events_flag
from evenkeel_contract.routerconfig import CacheSharing, PrefixConfig, PrefixMode, ReplicaConfig
from evenkeel_router.app import Router
from evenkeel_router.prefix.kv_follower import SyncState

from tests.sglang.engine import Engine, unused_port
from tests.sglang.test_tokens import NAME, PAGE_TOKENS, TEMPLATE, flags, model_folder
from tests.support.borders import WANTED, bordered, found_cached
from tests.support.routers import config_for, router_of, until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


async def test_a_prompt_is_found_within_the_border_only(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    model = model_folder(tmp_path / "model", TEMPLATE)
    events, replay = unused_port(), unused_port()
    engine = start(
        *flags(model),
        *("--schedule-policy", "dlpm", "--enable-cache-report"),
        kv_events_flag(host="127.0.0.1", port=events, replay_port=replay),
    )
    replica = ReplicaConfig(
        name="r0",
        url=engine.url,
        kv_events=f"tcp://127.0.0.1:{events}",
        kv_replay=f"tcp://127.0.0.1:{replay}",
    )
    prefix = PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=str(model), page_tokens=PAGE_TOKENS)
    for sharing in CacheSharing:
        config = config_for(replica, model=NAME, prefix=prefix, tenancy=bordered(sharing))
        async with (
            router_of(config) as router,
            httpx.AsyncClient(base_url=router.url, timeout=120) as http,
            httpx.AsyncClient(base_url=engine.url, timeout=120) as direct,
        ):
            await engine.idle(direct)
            (await direct.post("/flush_cache")).raise_for_status()
            await _followed(router)
            found = await found_cached(http, NAME, between=partial(engine.idle, direct))
            assert found == dict.fromkeys(found, WANTED[sharing])
            exact = router.rooms.totals.predictions["exact"]
            assert exact.predicted_tokens == exact.reported_tokens > 0


async def _followed(router: Router) -> None:
    followers = router.rooms.prefixes.followers
    await until(lambda: "r0" in followers, "it to be followed")
    await until(lambda: followers["r0"].sync_state is SyncState.IN_SYNC, "sync")
