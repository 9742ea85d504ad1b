"""The border of shared prefixes on the real engine: no cached token from beyond it, over each API, and the router's view is exact.

SGLang reads the salt from the body of four APIs; over messages it ignores it, so the plug-in reads a header.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import httpx
import pytest
from evenkeel_contract.routerconfig import CacheSharing, PrefixConfig, PrefixMode
from evenkeel_router.app import Router
from evenkeel_router.prefix.kv_follower import SyncState

from tests.sglang.models import NAME, PAGE_TOKENS
from tests.sglang.shared import SharedEngine
from tests.support.borders import WANTED, bordered, found_cached
from tests.support.routers import config_for, router_of, until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


async def test_a_prompt_is_found_within_the_border_only(templated: SharedEngine) -> None:
    replica = replace(templated.replica, reports=templated.reports)
    prefix = PrefixConfig(
        mode=PrefixMode.TOKENS, tokenizer=str(templated.model), page_tokens=PAGE_TOKENS
    )
    for sharing in CacheSharing:
        config = config_for(replica, model=NAME, prefix=prefix, tenancy=bordered(sharing))
        async with (
            router_of(config) as router,
            httpx.AsyncClient(base_url=router.url, timeout=120) as http,
            httpx.AsyncClient(base_url=templated.url, timeout=120) as direct,
        ):
            await templated.idle(direct)
            (await direct.post("/flush_cache")).raise_for_status()
            await _followed(router)
            found = await found_cached(http, NAME, between=partial(templated.idle, direct))
            assert found == dict.fromkeys(found, WANTED[sharing])
            exact = router.rooms.totals.predictions["exact"]
            assert exact.predicted_tokens == exact.reported_tokens > 0


async def _followed(router: Router) -> None:
    followers = router.rooms.prefixes.followers
    await until(lambda: "r0" in followers, "it to be followed")
    await until(lambda: followers["r0"].sync_state is SyncState.IN_SYNC, "sync")
