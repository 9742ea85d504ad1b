"""KV events over real sockets, read by a subscriber that knows the format's description and nothing else.

Frames `[topic, sequence, payload]`; the payload is `[timestamp, events, rank]`, events are maps with a
`type`; a gap in the sequence is filled by asking the replay socket from the first missing number on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.replicas import DEADLINE_S, settings, until

PAGE = 16
WORDS = "the sea ran out and the sky was red "


class Subscriber:
    """Keeps the set of block hashes that a replica says it holds."""

    def __init__(self, context: zmq.asyncio.Context, server: RunningServer) -> None:
        assert server.kv_events is not None and server.kv_replay is not None
        self.blocks: dict[int, int | None] = {}  # hash -> parent's
        self.tokens: dict[int, list[int]] = {}
        self.next_sequence = 0
        self.gaps = 0
        self.removed = 0
        self.cleared = 0
        self._live = context.socket(zmq.SUB)
        self._live.subscribe(b"")
        self._live.connect(server.kv_events)
        self._replay = context.socket(zmq.DEALER)
        self._replay.connect(server.kv_replay)

    def close(self) -> None:
        self._live.close(linger=0)
        self._replay.close(linger=0)

    async def drop_received(self) -> None:
        """Throw away what waits in the queue, as a full queue would."""
        while await self._live.poll(100):
            await self._live.recv_multipart()

    async def follow(self) -> None:
        while True:
            topic, sequence, payload = await self._live.recv_multipart()
            assert topic == b""
            await self._take(int.from_bytes(sequence, "big"), payload)

    async def replay(self, start: int) -> list[int]:
        """Ask for everything from `start` on; the sequence numbers that came."""
        await self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        numbers: list[int] = []
        while True:
            empty, topic, sequence, payload = await self._replay.recv_multipart()
            assert (empty, topic) == (b"", b"")
            number = int.from_bytes(sequence, "big", signed=True)
            if number == -1:
                assert payload == b""
                return numbers
            numbers.append(number)
            if number == self.next_sequence:
                self._apply(number, payload)

    async def _take(self, number: int, payload: bytes) -> None:
        if number > self.next_sequence:
            self.gaps += 1
            await self.replay(self.next_sequence)
        if number == self.next_sequence:
            self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        self.next_sequence = number + 1
        timestamp, events, rank = msgspec.msgpack.decode(payload)
        assert timestamp > 1e9 and rank == 0
        for event in events:
            match event["type"]:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    self.removed += len(event["block_hashes"])
                    for block in event["block_hashes"]:
                        del self.blocks[block]
                case "AllBlocksCleared":
                    self.blocks.clear()
                    self.cleared += 1

    def _store(self, event: dict[str, Any]) -> None:
        parent = event["parent_block_hash"]
        assert parent is None or parent in self.blocks
        assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
        for index, block in enumerate(event["block_hashes"]):
            self.blocks[block] = parent
            size = event["block_size"]
            self.tokens[block] = event["token_ids"][index * size : (index + 1) * size]
            parent = block

    def cached_tokens(self, prompt: list[int]) -> int:
        """What the replica must find of a prompt, by its own events."""
        digest, found = b"", 0
        for start in range(0, len(prompt) // PAGE * PAGE, PAGE):
            page = b"".join(token.to_bytes(4, "little") for token in prompt[start : start + PAGE])
            digest = hashlib.sha256(digest + page).digest()
            if int.from_bytes(digest[:8], "big", signed=True) not in self.blocks:
                break
            found += PAGE
        return min(found, len(prompt) - 1)


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    # A pool of some 30 pages, so that a handful of prompts evicts others.
    async with running_server(settings(kv_tokens=500, kv_events_port=0)) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield http


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
async def subscriber(
    context: zmq.asyncio.Context, server: RunningServer
) -> AsyncIterator[Subscriber]:
    made = Subscriber(context, server)
    yield made
    made.close()


@pytest.fixture
async def following(subscriber: Subscriber) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(subscriber.follow())
    yield task
    await stop(task)


async def stop(task: asyncio.Task[None]) -> None:
    """End a subscriber's loop; raises what it failed of."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def complete(client: httpx.AsyncClient, prompt: str) -> int:
    """Run a prompt; the tokens found in the cache."""
    response = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8})
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_subscriber_knows_what_the_replica_will_find(
    server: RunningServer,
    client: httpx.AsyncClient,
    subscriber: Subscriber,
    following: asyncio.Task[None],
) -> None:
    # A subscription takes a moment to arrive; what was sent before is the gap that replay fills.
    while not subscriber.next_sequence:
        await complete(client, f"{sequence_of(server)} {WORDS * 10}")
    for number in range(30):
        prompt = f"{number % 9} {WORDS * (3 + number % 7)}"
        await until(lambda: subscriber.next_sequence == sequence_of(server))
        foreseen = subscriber.cached_tokens(encode(prompt).tolist())
        assert await complete(client, prompt) == foreseen
    assert subscriber.removed, "the pool was meant to be too small"
    assert not following.done()


async def test_a_late_subscriber_catches_up_by_replay(
    server: RunningServer, client: httpx.AsyncClient, subscriber: Subscriber
) -> None:
    prompts = [f"{number} {WORDS * 4}" for number in range(5)]
    for prompt in prompts:
        await complete(client, prompt)
    async with asyncio.timeout(DEADLINE_S):
        numbers = await subscriber.replay(0)
    assert numbers == list(range(sequence_of(server)))
    for prompt in prompts:
        ids = encode(prompt).tolist()
        assert subscriber.cached_tokens(ids) >= len(ids) // PAGE * PAGE


async def test_a_gap_in_the_middle_is_filled(
    server: RunningServer, client: httpx.AsyncClient, subscriber: Subscriber
) -> None:
    following = asyncio.create_task(subscriber.follow())
    while not subscriber.next_sequence:
        await complete(client, f"{sequence_of(server)} {WORDS * 4}")
    await until(lambda: subscriber.next_sequence == sequence_of(server))
    gaps = subscriber.gaps
    await stop(following)
    for number in range(3):
        await complete(client, f"missed {number} {WORDS * 4}")
    await subscriber.drop_received()
    following = asyncio.create_task(subscriber.follow())
    await complete(client, f"last {WORDS * 4}")
    await until(lambda: subscriber.next_sequence == sequence_of(server))
    assert subscriber.gaps == gaps + 1
    prompt = encode(f"missed 1 {WORDS * 4}").tolist()
    assert subscriber.cached_tokens(prompt) >= len(prompt) // PAGE * PAGE
    await stop(following)


async def test_replay_from_the_middle_sends_the_rest(
    server: RunningServer, client: httpx.AsyncClient, subscriber: Subscriber
) -> None:
    for number in range(4):
        await complete(client, f"{number} {WORDS * 4}")
    last = sequence_of(server) - 1
    async with asyncio.timeout(DEADLINE_S):
        assert await subscriber.replay(last) == [last]
        assert await subscriber.replay(last + 10) == []


async def test_a_request_for_replay_that_is_none_is_ignored(
    server: RunningServer,
    client: httpx.AsyncClient,
    subscriber: Subscriber,
    context: zmq.asyncio.Context,
) -> None:
    await complete(client, WORDS * 4)
    assert server.kv_replay is not None
    asker = context.socket(zmq.DEALER)
    asker.connect(server.kv_replay)
    for frames in ([b"x"], [b"", b"short"], [b"", b"", b"", b"many"]):
        await asker.send_multipart(frames)
    async with asyncio.timeout(DEADLINE_S):
        assert await subscriber.replay(0) == list(range(sequence_of(server)))
    assert not await asker.poll(0)
    asker.close(linger=0)


async def test_a_flushed_cache_says_so(
    server: RunningServer, client: httpx.AsyncClient, subscriber: Subscriber
) -> None:
    await complete(client, WORDS * 4)
    before = sequence_of(server)
    assert (await client.post("/flush_cache")).status_code == 200
    await until(lambda: sequence_of(server) > before)
    async with asyncio.timeout(DEADLINE_S):
        await subscriber.replay(0)
    assert subscriber.cleared == 1
    assert not subscriber.blocks
    assert await complete(client, WORDS * 4) == 0


async def test_server_info_says_where_to_subscribe(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    events = (await client.get("/server_info")).json()["kv_events"]
    assert server.kv_events == f"tcp://{events['endpoint_host']}:{events['endpoint_port_base']}"
    assert str(events["replay_endpoint_port_base"]) in str(server.kv_replay)
    assert (events["block_size"], events["topic"], events["dp_size"]) == (PAGE, "", 1)


def sequence_of(server: RunningServer) -> int:
    """Batches published so far."""
    publisher = server.replica.publisher
    assert publisher is not None
    return publisher.published
