"""Asking a replica for all pages of its cache (contract `heldpages`), where its KV events came too late.

Asked seldom, in a task of its own: live batches are applied meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.heldpages import MAX_PART_BYTES, PagesPart, ask, decode_part, follows
from evenkeel_contract.reports import ReportError
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.fleet.reports import reports_socket
from evenkeel_router.prefix.kv_follower import Follower
from evenkeel_router.settings import Timing

ANSWER_S: Final = 5.0
"""For each part."""


async def pages_wanted(
    context: zmq.asyncio.Context, replica: ReplicaConfig, follower: Follower, *, timing: Timing
) -> list[PagesPart]:
    """Wait until `follower` wants to know what the replica holds, and until the replica has answered."""
    while True:
        if follower.wants_pages:
            try:
                return await _pages(context, replica)
            except (ReportError, zmq.ZMQError) as error:
                follower.not_reported(str(error))
                await asyncio.sleep(timing.kv_pages_interval_s)
        else:
            await asyncio.sleep(timing.report_interval_s)


async def _pages(context: zmq.asyncio.Context, replica: ReplicaConfig) -> list[PagesPart]:
    """One question, all parts of its answer. Raises `ReportError`, `zmq.ZMQError`."""
    if replica.reports is None:
        raise ReportError("it makes no reports")
    parts: list[PagesPart] = []
    with reports_socket(context, replica, max_bytes=MAX_PART_BYTES) as socket:
        await socket.send(ask())
        while not parts or len(parts) < parts[0].parts:
            if not await socket.poll(round(ANSWER_S * 1000)):
                raise ReportError(_silent(parts))
            part = decode_part((await socket.recv_multipart())[-1])
            if part.trouble:
                raise ReportError(part.trouble)
            if not follows(part, parts[0] if parts else part, len(parts)):
                raise ReportError(f"part {len(parts)} of its answer did not come")
            parts.append(part)
    return parts


def _silent(parts: list[PagesPart]) -> str:
    if parts:
        return f"part {len(parts)} of its answer did not come"
    return "it does not answer, as if its plug-in were older than this router"
