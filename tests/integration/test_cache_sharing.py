"""No client finds a prompt in the cache from beyond the border, and the router predicts that (P-promise on tenants)."""

from __future__ import annotations

import httpx
import pytest
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    CacheSharing,
    PrefixConfig,
    PrefixMode,
)

from tests.support.borders import WANTED, bordered, found_cached
from tests.support.routers import MODEL, PATIENCE_S, fleet, simulated

MODES = {
    PrefixMode.TEXT: PrefixConfig(text_block_bytes=64),
    PrefixMode.TOKENS: PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=SIMULATOR_TOKENIZER),
}


@pytest.mark.parametrize("sharing", CacheSharing)
@pytest.mark.parametrize("mode", MODES)
async def test_a_prompt_is_found_within_the_border_only(
    sharing: CacheSharing, mode: PrefixMode
) -> None:
    settings = simulated(kv_events_port=0 if mode is PrefixMode.TOKENS else None)
    async with (
        fleet(1, settings=settings, prefix=MODES[mode], tenancy=bordered(sharing)) as (router, _),
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as http,
    ):
        found = await found_cached(http, MODEL)
        assert found == dict.fromkeys(found, WANTED[sharing])
        for how in router.rooms.totals.predictions.values():
            # In text the template and the last block are not known; in tokens every one is.
            missed = how.reported_tokens - how.predicted_tokens
            assert 0 <= missed <= (0.2 if mode is PrefixMode.TEXT else 0) * how.reported_tokens
