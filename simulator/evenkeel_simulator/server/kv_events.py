"""What the cache stores and drops, published as SGLang publishes it (`evenkeel_contract.kvevents`).

The recorder collects events of a step; the publisher sends them, and replays the batches that it still keeps. A replay may
have gaps: its socket drops what a subscriber reads too slowly, as SGLang's does. Subscribers check the numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.kvevents import (
    END_OF_REPLAY,
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    encode_batch,
    live_frames,
    read_replay_question,
    replay_frames,
)

from evenkeel_simulator.engine.cache import Node
from evenkeel_simulator.server.pages import (
    block_hash,
    namespace_digest,
    page_bytes,
    page_digest,
    page_tokens,
)

_HIGH_WATER_MARK: Final = 100_000
"""Batches queued for a subscriber before some are lost (SGLang's `hwm`)."""


class KvRecorder:
    """Observes a radix cache and turns its changes into events."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._digests: dict[Node, bytes] = {}
        self._events: list[Event] = []

    def stored(self, nodes: Sequence[Node]) -> None:
        """A chain of pages, top down."""
        parent = nodes[0].parent
        digest = self._digests.get(parent) if parent is not None else None
        if not nodes[0].segment.tokens:  # a namespace
            digest = self._digests[nodes[0]] = namespace_digest(nodes[0].segment)
            parent, nodes = nodes[0], nodes[1:]
        if not nodes:
            return
        is_first = parent is None or not parent.segment.tokens
        event = BlockStored(
            block_hashes=[],
            parent_block_hash=None if digest is None or is_first else block_hash(digest),
            token_ids=[],
            block_size=self._page_size,
            lora_id=None,
            medium=GPU,
        )
        for node in nodes:
            page = page_bytes(node.segment)
            digest = self._digests[node] = page_digest(digest, page)
            event.block_hashes.append(block_hash(digest))
            event.token_ids += page_tokens(page)
        self._events.append(event)

    def removed(self, node: Node) -> None:
        """One page; neighbours in time share an event, as in SGLang."""
        hashed = block_hash(self._digests.pop(node))
        if not node.segment.tokens:  # a namespace
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(hashed)
        else:
            self._events.append(BlockRemoved(block_hashes=[hashed], medium=GPU))

    def cleared(self) -> None:
        """The whole cache was dropped."""
        self._digests.clear()
        self._events.append(AllBlocksCleared())

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events


class KvPublisher:
    """The PUB socket and its replay. Open and close it on the event loop that uses it."""

    def __init__(
        self, *, host: str, port: int, replay_port: int, kept_batches: int, pages: HeldPages
    ) -> None:
        """Binds both; port 0 lets the system choose. Raises `zmq.ZMQError` if a port is taken.

        `kept_batches` bounds what can be replayed; `pages` gets every batch, for routers that come later.
        """
        self._pages = pages
        self._context = zmq.asyncio.Context()
        self._live = self._context.socket(zmq.PUB)
        self._live.set_hwm(_HIGH_WATER_MARK)
        self._replay = self._context.socket(zmq.ROUTER)
        self.port = bind(self._live, host, port)
        self.replay_port = bind(self._replay, host, replay_port)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_batches)
        self.published = 0
        """Batches sent, which is the next one's sequence number."""
        self._replays = asyncio.create_task(self._serve_replays())

    async def publish(self, events: list[Event], *, timestamp: float) -> None:
        """Send one batch; an empty one is not sent."""
        if not events:
            return
        sequence, payload = self.published, encode_batch(EventBatch(timestamp, events))
        self.published += 1
        self._kept.append((sequence, payload))
        self._pages.published(timestamp, events)
        await self._live.send_multipart(live_frames(sequence, payload))

    async def close(self) -> None:
        """Stop serving; what subscribers have not taken is dropped."""
        self._replays.cancel()
        await asyncio.gather(self._replays, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve_replays(self) -> None:
        while True:
            asker, *question = await self._replay.recv_multipart()
            first = read_replay_question(question)
            if first is None:
                continue  # SGLang ignores what is no request for a replay, too
            for sequence, payload in [kept for kept in self._kept if kept[0] >= first]:
                await self._replay.send_multipart((asker, *replay_frames(sequence, payload)))
            await self._replay.send_multipart((asker, *replay_frames(END_OF_REPLAY, b"")))


def bind(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    """Bind to TCP and return the port; 0 lets the system choose."""
    socket.setsockopt(zmq.IPV6, ":" in host)  # with `::` both families
    name = f"[{host}]" if ":" in host else host
    if port == 0:
        return socket.bind_to_random_port(f"tcp://{name}")
    socket.bind(f"tcp://{name}:{port}")
    return port
