"""Sends programs to an engine's `/generate` as token ids, reads the streams, keeps a record of each request.

Token ids and not text, so that lengths and shared
prefixes are exactly the workload's, and a turn's prompt holds what the engine really answered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec
from evenkeel_contract.key import ClientKey
from evenkeel_contract.names import CLIENT_KEY_FIELD
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Program

from bench.gpu.prompts import Prompts

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024  # SGLang repeats all output ids in each event
_IDLE_S: Final = 0.25
_LONG_TOKENS: Final = 512
_LONG_INTERVAL: Final = 16
"""Tokens for each event of an output longer than `_LONG_TOKENS`: SGLang repeats all output ids in each event."""
_OUTPUT: Final = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(slots=True, kw_only=True)
class Run:
    """One workload on one engine."""

    url: str
    name: str
    """Clients of different runs have different names, so that no run uses accounts of an earlier one."""
    vocabulary: int
    session: aiohttp.ClientSession
    now_s: Callable[[], float]
    records: list[Record] = field(default_factory=list)
    open: set[tuple[str, int]] = field(default_factory=set)
    """Calls that were sent and have not ended: (client, number of the request)."""
    _sent: int = 0

    async def send_all(self, programs: Iterable[Program]) -> None:
        """Each at its time, each call once those it comes after have ended. Cancelling aborts what is under way."""
        async with asyncio.TaskGroup() as group:
            for program in programs:
                delay_s = program.arrival_s - self.now_s()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                group.create_task(self._program(program))

    async def _program(self, program: Program) -> None:
        prompts = Prompts(program, vocabulary=self.vocabulary)
        ended = [asyncio.Event() for _ in program.calls]
        async with asyncio.TaskGroup() as group:
            for number in range(len(program.calls)):
                group.create_task(self._call(program, number, prompts, ended))

    async def _call(
        self, program: Program, number: int, prompts: Prompts, ended: Sequence[asyncio.Event]
    ) -> None:
        call = program.calls[number]
        for parent in call.after:
            await ended[parent].wait()
        input_ids = prompts.input_ids(number)
        self._sent += 1
        mark = (program.client, self._sent)
        self.open.add(mark)
        sent_s = self.now_s()
        body = body_of(ClientKey("bench", self.name, program.client), input_ids, call.output_tokens)
        answer = await generate(self.session, self.url, body, now_s=self.now_s)
        meta, output_ids = answer.meta, answer.output_ids
        self.open.discard(mark)
        prompts.answered(number, input_ids, output_ids)
        self.records.append(
            Record(
                id=f"{program.id}.{number}",
                program=program.id,
                client=program.client,
                replica=0,
                status="finished",
                arrival_s=sent_s,
                admitted_s=None,
                first_token_s=answer.tokens[0][0],
                finished_s=self.now_s(),
                input_tokens=len(input_ids),
                cached_tokens=meta.get("cached_tokens") or 0,
                extend_tokens=len(input_ids) - (meta.get("cached_tokens") or 0),
                output_tokens=len(output_ids),
                retractions=0,
            )
        )
        ended[number].set()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    tokens: Sequence[tuple[float, int]]
    """(time of an event of the stream, output tokens until then)."""
    meta: Mapping[str, Any]
    """The engine's account of the request."""
    output_ids: Sequence[int]

    @property
    def cached_tokens(self) -> int:
        """Input tokens that the engine found in its cache."""
        return int(self.meta.get("cached_tokens") or 0)


def key_of(client: str) -> str:
    """The API key by which a router knows a client of the harness."""
    return f"bench-{client}"


def body_of(client: ClientKey, input_ids: Sequence[int], output_tokens: int) -> Mapping[str, Any]:
    """A request whose output has a forced length."""
    sampling = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
    if output_tokens > _LONG_TOKENS:
        sampling["stream_interval"] = _LONG_INTERVAL
    return {
        "input_ids": input_ids,
        "sampling_params": sampling,
        "stream": True,
        CLIENT_KEY_FIELD: client.encode(),
    }


async def generate(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    *,
    now_s: Callable[[], float],
    key: str = "",
) -> Answer:
    """Send one request and read its stream. `key`: the client's API key, for a router. Raises `RuntimeError` if the engine did not answer it."""
    tokens: list[tuple[float, int]] = []
    last = b""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = msgspec.json.encode(body)
    async with session.post(f"{url}/generate", data=data, headers=headers) as got:
        if got.status != 200:
            raise RuntimeError(f"the engine answered {got.status}: {(await got.text())[:300]}")
        async for line in got.content:
            if line.startswith(_DATA) and not line.startswith(_DATA + _DONE):
                found = _OUTPUT.search(line)
                tokens.append((now_s(), int(found.group(1)) if found else len(tokens) + 1))
                last = line
    event = msgspec.json.decode(last.removeprefix(_DATA)) if last else {}
    if "meta_info" not in event:
        raise RuntimeError(f"the engine answered {event}")
    return Answer(tokens, event["meta_info"], event["output_ids"])


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as there are requests, and no limit on how long an answer takes."""
    async with aiohttp.ClientSession(
        # SGLang closes a connection that is idle for 5 s: a client that reuses it just then loses a request.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_MAX_LINE_BYTES,
        headers={"Content-Type": "application/json"},
    ) as session:
        yield session


async def clear(session: aiohttp.ClientSession, url: str) -> None:
    """Reset the engine: no running requests, an empty cache."""
    async with session.post(f"{url}/abort_request", json={"rid": "", "abort_all": True}) as done:
        done.raise_for_status()
    while True:  # it refuses a flush while requests run
        async with session.post(f"{url}/flush_cache") as flushed:
            if flushed.status == 200:
                return
        await asyncio.sleep(_IDLE_S)
