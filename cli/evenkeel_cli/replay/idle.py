"""How long a replica was empty while requests waited at another, from the router that a replay is sent to.

Only the router knows. It is asked if its fleet runs from this folder, as `evenkeel top` does.
"""

from __future__ import annotations

from typing import Final

import aiohttp
from evenkeel_contract.adminstate import STATE_PATH, StateError, decode_state

from evenkeel_cli.up.record import admin_url_of

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


async def idle_total_s(session: aiohttp.ClientSession, url: str) -> float | None:
    """Seconds with an idle replica since the start of the router at `url` (with `/v1`); None if it is not a router of this folder."""
    admin = admin_url_of(url.removesuffix("/v1"))
    if admin is None:
        return None
    try:
        async with session.get(admin + STATE_PATH, timeout=_TIMEOUT) as response:
            return decode_state(await response.read()).fleet.idle_total_s
    except (aiohttp.ClientError, TimeoutError, StateError):
        return None
