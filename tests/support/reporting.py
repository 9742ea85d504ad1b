"""Both ends of a replica's reporting socket, over real ZeroMQ: one that says what a test tells it to, and one that asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import zmq
import zmq.asyncio
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ClientReport,
    Report,
    ReportRequest,
    decode_report,
    decode_request,
    encode,
)


@dataclass
class Reporter:
    """A replica's reporting socket that answers what it is told to; nothing, while that is None."""

    address: str
    answer: bytes | None = None
    questions: list[ReportRequest] = field(default_factory=list)


@asynccontextmanager
async def reporter() -> AsyncIterator[Reporter]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    told = Reporter(f"tcp://127.0.0.1:{port}")

    async def serve() -> None:
        while True:
            sender, *_, question = await socket.recv_multipart()
            told.questions.append(decode_request(question))
            if told.answer is not None:
                await socket.send_multipart([sender, told.answer])

    serving = asyncio.create_task(serve())
    try:
        yield told
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        socket.close(linger=0)
        context.term()


def report(
    incarnation: str, sequence: int, since: int, *clients: ClientReport, **totals: int
) -> bytes:
    """`totals`: of all clients, by the report's fields."""
    return encode(Report(REPORT_VERSION, incarnation, sequence, since, "DLPM", clients, **totals))


def report_of(port: int) -> Report:
    """The first report of the replica whose reports are on this port."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(encode(ReportRequest(version=REPORT_VERSION, incarnation="", since=0)))
        assert socket.poll(20_000), "no report"
        return decode_report(socket.recv())
