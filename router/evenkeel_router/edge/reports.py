"""Pulling replicas' reports: cumulative totals per client, over ZeroMQ (design R3, contract/reports.py).

Place in the flow: replica → **reports** → `/v1/state` (and, with the ledger, R5). One question and one answer
a second for each replica that makes reports. Totals are cumulative, so a lost answer costs nothing.

The surprising thing: a report from another incarnation is the first sign that a replica was restarted
between two probes; its cache is gone, and health must know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.reports import (
    REPORT_VERSION,
    Report,
    ReportError,
    ReportRequest,
    decode_report,
    encode,
)
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.core.reported import Seen
from evenkeel_router.state import RouterState

_log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S: Final = 2.0
MAX_REPORT_BYTES: Final = 64 * 1024 * 1024


class Reports:
    """Asks all replicas, for ever."""

    def __init__(self, state: RouterState, replaced: Callable[[str], None]) -> None:
        """`replaced` is told the name of a replica whose process is another one than before."""
        self._state = state
        self._replaced = replaced
        self._context = zmq.asyncio.Context()
        self._tasks: dict[ReplicaConfig, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Keep one asker for each replica that makes reports, until cancelled."""
        try:
            while True:
                self._follow()
                await asyncio.sleep(self._state.timing.report_interval_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._context.destroy(linger=0)

    def _follow(self) -> None:
        wanted = {replica for replica in self._state.replicas.values() if replica.reports}
        for replica in [replica for replica in self._tasks if replica not in wanted]:
            self._tasks.pop(replica).cancel()
        for name in [name for name in self._state.reports if name not in self._state.replicas]:
            del self._state.reports[name]
        for replica in wanted - self._tasks.keys():
            self._tasks[replica] = asyncio.create_task(self._ask_forever(replica))

    async def _ask_forever(self, replica: ReplicaConfig) -> None:
        while True:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPORT_BYTES)
            try:
                socket.connect(replica.reports or "")
                answered = True
                while answered:
                    answered = await self._ask(replica.name, socket)
                    await asyncio.sleep(self._state.timing.report_interval_s)
            except zmq.ZMQError as error:
                _log.warning("no reports from replica %s: %s", replica.name, error)
                await asyncio.sleep(self._state.timing.report_interval_s)
            finally:
                socket.close()

    async def _ask(self, name: str, socket: zmq.asyncio.Socket) -> bool:
        """One question; False where the socket is better thrown away (an answer may come late)."""
        seen = self._state.reports.get(name)
        question = ReportRequest(
            version=REPORT_VERSION,
            incarnation=seen.incarnation if seen is not None else "",
            since=seen.sequence if seen is not None else 0,
        )
        await socket.send(encode(question))
        if not await socket.poll(round(ANSWER_TIMEOUT_S * 1000)):
            return False
        frames: list[bytes] = await socket.recv_multipart()
        try:
            self._take(name, decode_report(frames[-1]))
        except ReportError as error:
            _log.warning("a report of replica %s does not hold: %s", name, error)
            return False
        return True

    def _take(self, name: str, report: Report) -> None:
        seen = self._state.reports.get(name)
        if seen is None or seen.incarnation != report.incarnation:
            if seen is not None:
                self._replaced(name)
            seen = self._state.reports[name] = Seen(report.incarnation)
        seen.merge(report, asyncio.get_running_loop().time())
