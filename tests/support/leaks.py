"""A link between a replica that publishes KV events and a router, which loses what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import zmq
import zmq.asyncio


@dataclass
class Leak:
    """A link of live batches that loses what it is told to."""

    address: str
    loses: bool = False
    lost: int = 0


@asynccontextmanager
async def leaky(events: str) -> AsyncIterator[Leak]:
    """Between a replica's PUB and a router's SUB."""
    context = zmq.asyncio.Context()
    source, sink = context.socket(zmq.SUB), context.socket(zmq.PUB)
    source.subscribe(b"")
    source.connect(events)
    leak = Leak(f"tcp://127.0.0.1:{sink.bind_to_random_port('tcp://127.0.0.1')}")

    async def forward() -> None:
        while True:
            frames = await source.recv_multipart()
            if leak.loses:
                leak.lost += 1
            else:
                await sink.send_multipart(frames)

    task = asyncio.create_task(forward())
    try:
        yield leak
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)
