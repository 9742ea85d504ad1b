"""Ledgers in a server with the protocol of Redis: one field per router of one hash (R8).

Reading gives the ledgers of all routers; writing replaces the router's own. No transaction is needed, since merging is a
join and every field has one writer. A counter beside each ledger rises with every save. A ledger whose counter stands
still, by this router's clock, and which was merged here belongs to a router that is gone, and is deleted. If that router
lives after all, its next save brings it back. Wall clocks play no part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from evenkeel_contract.ledgerwire import LedgerMessageError, decode_delta, encode, frame, unframe
from evenkeel_fairshare.ledger import Delta
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from evenkeel_router.ledger.stores.contract import StoreError

_log = logging.getLogger(__name__)
_LEDGER: Final = b"ledger:"
_BEAT: Final = b"beat:"

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 10.0
GONE_AFTER_S: Final = 120.0
"""Twelve saves that did not come. Too short costs a field that its router writes again, nothing else."""
KEPT_S: Final = 42 * 24 * 3600
"""A hash without saves vanishes after six weeks: folded incarnations are remembered for that long
(`ledger.closed_totals.MAX_FOLDED`), and an older ledger must not be merged."""


@dataclass(slots=True)
class _Beat:
    count: bytes
    since_s: float


class RedisStore:
    """Ledgers of all routers of one service."""

    def __init__(
        self,
        url: str,
        *,
        service: str,
        clock: Callable[[], float],
        gone_after_s: float = GONE_AFTER_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`url`: redis://, rediss:// or unix://; raises `ValueError` for another. `service`: namespace/name.

        Connects with the first call, and again after every failure.
        """
        # One retry, at once: a pooled connection may be one that the server has closed meanwhile.
        self._redis: Redis = Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=answer_timeout_s,
            retry=Retry(NoBackoff(), 1),
        )
        self._key = f"evenkeel:{service}:ledgers"
        self._clock = clock
        self._gone_after_s = gone_after_s
        self._saves = 0
        self._seen: dict[bytes, _Beat] = {}
        self._merged: dict[bytes, bytes] = {}
        """Field of a counter → its value when the ledger beside it was loaded."""

    async def load(self) -> Sequence[Delta]:
        """The ledgers of all routers."""
        kept = await _asked(self._redis.hgetall(self._key))
        found = []
        for field, data in kept.items():
            if not field.startswith(_LEDGER):
                continue
            try:
                # In a thread: a large fleet's ledger takes its time.
                found += await asyncio.to_thread(_decode, data)
            except LedgerMessageError as error:
                _log.error(
                    "a ledger in Redis is invalid and is ignored (%s, %r): %s",
                    self._key,
                    field,
                    error,
                )
        self._merged = {field: data for field, data in kept.items() if field.startswith(_BEAT)}
        return found

    async def save(self, whole: Sequence[Delta]) -> None:
        """Replace this router's ledger, and delete those of routers that are gone."""
        data = await asyncio.to_thread(_encode, whole)
        self._saves += 1
        router = whole[-1].router.encode()  # a ledger has one part at least
        # One command, so that a counter belongs to the ledger beside it.
        own: dict[Any, Any] = {_LEDGER + router: data, _BEAT + router: str(self._saves).encode()}
        await _asked(self._redis.hset(self._key, mapping=own))
        await _asked(self._redis.expire(self._key, KEPT_S))
        gone = self._gone(await self._read_beats(), own=router)
        if gone:
            fields = [prefix + router for router in gone for prefix in (_LEDGER, _BEAT)]
            await _asked(self._redis.hdel(self._key, *fields))
            _log.info("deleted the ledgers of %d routers that no longer run", len(gone))

    async def close(self) -> None:
        """Close all connections."""
        with suppress(RedisError, OSError):
            await self._redis.aclose()

    async def _read_beats(self) -> dict[bytes, bytes]:
        names = await _asked(self._redis.hkeys(self._key))
        beats = [name for name in names if name.startswith(_BEAT)]
        counts = await _asked(self._redis.hmget(self._key, beats))
        return {name: count for name, count in zip(beats, counts, strict=True) if count is not None}

    def _gone(self, beats: Mapping[bytes, bytes], *, own: bytes) -> list[bytes]:
        """Routers whose counters stood still for long and whose ledgers this router has merged."""
        now_s, gone = self._clock(), []
        self._seen = {field: beat for field, beat in self._seen.items() if field in beats}
        for field, count in beats.items():
            beat = self._seen.get(field)
            if beat is None or beat.count != count:
                self._seen[field] = _Beat(count, now_s)
            elif (
                field != _BEAT + own
                and now_s - beat.since_s >= self._gone_after_s
                and self._merged.get(field) == count
            ):
                gone.append(field.removeprefix(_BEAT))
        return gone


def _encode(whole: Sequence[Delta]) -> bytes:
    return b"".join(frame(encode(part)) for part in whole)


def _decode(data: bytes) -> list[Delta]:
    return [decode_delta(message) for message in unframe(data)]


async def _asked(answer: object) -> Any:
    # The client's own types leave open whether it waits.
    try:
        return await cast(Awaitable[Any], answer)
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(f"Redis: {error or type(error).__name__}") from error
