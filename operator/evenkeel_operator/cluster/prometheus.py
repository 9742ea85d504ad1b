"""Instant queries to a Prometheus.

Errors report a kind and a status code, never the answer. A service's owner chooses the address, and could otherwise
read what only the operator can reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import aiohttp
import msgspec
from yarl import URL

from evenkeel_operator.core import reasons
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import Answers, Sample

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""Longest duration of all queries of one step; shorter than the interval between steps."""
MAX_ANSWER_BYTES: Final = 4 * 2**20
"""A thousand clients take 200 KiB."""


class PrometheusError(Exception):
    """No usable answer; `note` is for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.note = Note(reason, message)


@dataclass(frozen=True, slots=True)
class Source:
    """Where and how one Prometheus is queried."""

    url: str
    token: str | None = field(default=None, repr=False)
    """Bearer token."""


class PrometheusClient(Protocol):
    """The only access to Prometheus; tests replace it."""

    async def ask(self, source: Source, queries: Mapping[str, str]) -> Answers:
        """All of them, or `PrometheusError`."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...]


class _Answer(msgspec.Struct, frozen=True):
    data: _Data
    warnings: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Answer)


class HttpPrometheus:
    """Prometheus over HTTP."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, source: Source, queries: Mapping[str, str]) -> Answers:
        try:
            # Sequential. A TaskGroup saves only milliseconds. On Python 3.11.2, one that fails inside a timeout
            # leaves its task half cancelled, and later queries fail.
            async with asyncio.timeout(TIMEOUT_S):
                return {name: await self._query(source, query) for name, query in queries.items()}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.info("a Prometheus does not answer: %r", error)
            message = "The Prometheus at prometheus.url does not answer."
            raise PrometheusError(reasons.UNREACHABLE, message) from error

    async def _query(self, source: Source, query: str) -> tuple[Sample, ...]:
        headers = {"Accept-Encoding": "identity"}
        if source.token is not None:
            headers["Authorization"] = f"Bearer {source.token}"
        url = URL(source.url).with_query(None) / "api/v1/query"
        async with self._session.get(
            url, params={"query": query}, headers=headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                message = f"The Prometheus at prometheus.url answers with status {response.status}."
                raise PrometheusError(reasons.NO_ANSWER, message)
            return _read(await _bounded(response))


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for piece in response.content.iter_any():
        found += piece
        if len(found) > MAX_ANSWER_BYTES:
            message = (
                f"The answer of the Prometheus at prometheus.url exceeds {MAX_ANSWER_BYTES} bytes."
            )
            raise PrometheusError(reasons.NO_ANSWER, message)
    return bytes(found)


def _read(body: bytes) -> tuple[Sample, ...]:
    try:
        answer = _decoder.decode(body)
        samples = tuple(Sample(one.metric, float(one.value[1])) for one in answer.data.result)
    except ValueError as error:  # errors of msgspec are subclasses
        message = "The answer from prometheus.url is not that of a Prometheus."
        raise PrometheusError(reasons.NO_ANSWER, message) from error
    if answer.warnings:
        message = "Prometheus warns that its answer may be incomplete."
        raise PrometheusError(reasons.DATA_PARTIAL, message)
    return samples


@asynccontextmanager
async def prometheus() -> AsyncIterator[HttpPrometheus]:
    """A client of Prometheus for the time of the context. It uses no cookies and proxies, and follows no redirects: it queries
    only allowed addresses."""
    connector = aiohttp.TCPConnector(limit=32)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        yield HttpPrometheus(session)
