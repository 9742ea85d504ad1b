"""Reads the keys of token issuers: at the start, each ten minutes, and when a token names a key that is not known.

Requests that need a key wait for it. While an issuer does not answer, keys that were read before stay valid. One token cannot make
the router ask more often than every ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import aiohttp
from evenkeel_contract.tokenissuers import MAX_KEY_SET_BYTES

from evenkeel_router.api.token_keys import KeySetError, KeySets, read_key_set

_log = logging.getLogger(__name__)
REFRESH_S: Final = 600.0
"""Time after which keys are read again, so that those that an issuer withdrew end here."""
PAUSE_S: Final = 10.0
"""Least time between two questions to an issuer."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


class KeySetReader:
    """Reads the key sets of one router."""

    def __init__(
        self,
        key_sets: KeySets,
        session: aiohttp.ClientSession,
        *,
        urls: Callable[[], frozenset[str]],
        changed: Callable[[], None],
    ) -> None:
        """`urls`: addresses of the configuration in force. `changed`: called after the keys of one changed."""
        self._key_sets = key_sets
        self._session = session
        self._urls = urls
        self._changed = changed
        self._asked_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.failures = 0
        """Questions without a usable answer since the router started."""

    async def run(self) -> None:
        """Read all key sets, and again and again, until cancelled."""
        while True:
            urls = self._urls()
            self._key_sets.keep(urls)
            await asyncio.gather(*(self._ask(url) for url in urls))
            await asyncio.sleep(REFRESH_S)

    async def read(self, url: str) -> bool:
        """Read a key set that a request needs; returns False at once if it was read just now."""
        task = self._asking.get(url)
        if task is None:
            now_s = asyncio.get_running_loop().time()
            asked_s = self._asked_s.get(url)
            if asked_s is not None and now_s - asked_s < PAUSE_S:
                return False
            task = self._asking[url] = asyncio.create_task(self._ask(url))
            task.add_done_callback(lambda _: self._asking.pop(url, None))
        await asyncio.shield(task)  # another request may wait for it, too
        return True

    async def _ask(self, url: str) -> None:
        self._asked_s[url] = asyncio.get_running_loop().time()
        try:
            # Without redirects: the address is the administrator's choice.
            async with self._session.get(url, timeout=_TIMEOUT, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise KeySetError(f"answered {answer.status}")
                data = await answer.content.read(MAX_KEY_SET_BYTES + 1)
                while len(data) <= MAX_KEY_SET_BYTES and not answer.content.at_eof():
                    data += await answer.content.read(MAX_KEY_SET_BYTES + 1)
                keys = read_key_set(data)
        except (aiohttp.ClientError, TimeoutError, OSError, KeySetError) as error:
            self.failures += 1
            _log.warning(
                "the issuer's keys at %s cannot be read: %s", url, error or type(error).__name__
            )
            return
        if self._key_sets.put(url, keys):
            _log.info("read %d keys of an issuer at %s", len(keys), url)
            self._changed()
