"""KV events of all replicas, over ZeroMQ (contract `kvevents`), in tokens mode.

Each process of a replica that publishes has one task. It subscribes, asks for a replay of earlier batches, and applies new ones
in pieces, between which requests are served.

No socket here reconnects by itself: ZeroMQ would join the batches of a process and of its successor without a mark. So
a subscription is one connection, a monitor reports its end, and the next one begins with a replay. After silence a
replay makes sure that the last batches were not lost, since no later batch would show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.heldpages import MAX_PART_BYTES, PagesPart, ask, decode_part, follows
from evenkeel_contract.kvevents import (
    END_OF_REPLAY,
    MAX_BATCH_BYTES,
    KvEventError,
    read_live,
    read_replay,
    replay_question,
)
from evenkeel_contract.reports import ReportError
from evenkeel_contract.routerconfig import PrefixMode, ReplicaConfig
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import unsigned
from zmq.utils.monitor import parse_monitor_message

from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.member import Member
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.reports import reports_socket
from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.prefix.kv_follower import Follower, Prefixes, SyncState
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.settings import Settings, Timing

_log = logging.getLogger(__name__)


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
        raise ReportError("it sends no reports")
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
                raise ReportError(f"part {len(parts)} of its answer did not arrive")
            parts.append(part)
    return parts


def _silent(parts: list[PagesPart]) -> str:
    if parts:
        return f"part {len(parts)} of its answer did not arrive"
    return "it does not answer, as if its plug-in were older than this router"


CONNECT_S: Final = 5.0
ANSWER_S: Final = 5.0
"""Longest wait for the first batch of a replay. SGLang replays between two batches, and looks every 0.1 s."""
NEXT_S: Final = 1.0
"""Longest wait for each further batch of a replay, or its end: they come together. If one does not come, its sender
dropped it."""
RETRY_S: Final = 1.0
KEEP_ALIVE_S: Final = 10.0
"""A connection whose other end does not answer for this long counts as broken."""
LIVE_BATCHES: Final = 10_000
"""Live batches that may wait to be read; further ones are lost, and replayed."""
REPLAYED_BATCHES: Final = 1000
PIECE: Final = 2000
"""Blocks that are applied in one go, about a millisecond: requests come first."""


class _Lost(Exception):
    """The subscription is of no use any more; its text says why."""


class _Slot:
    """A replica's blocks in the index, as long as this process of it exists."""

    def __init__(self, fleet: Fleet, member: Member, index: ExactIndex) -> None:
        self._fleet, self._member, self._index = fleet, member, index
        self._slot, self._life = member.slot, member.lives
        self.blocks = 0
        """Blocks applied since the last pause."""

    @property
    def slot(self) -> int | None:
        """The process's slot; None once the process has ended, because another replica may have the slot by now."""
        member = self._member
        same = member.slot == self._slot and member.lives == self._life
        return self._slot if same and self._fleet.index is self._index else None

    @property
    def crowded(self) -> bool:
        """Whether the index had no room for all that was stored."""
        slot = self.slot
        return slot is not None and self._index.crowded(slot)

    def stored(self, hashes: Sequence[int], *, copies: bool) -> None:
        if (slot := self.slot) is not None:
            self.blocks += len(hashes)
            self._index.stored(unsigned(hashes), slot, copies=copies)

    def removed(self, hashes: Sequence[int]) -> None:
        if (slot := self.slot) is not None:
            self.blocks += len(hashes)
            self._index.removed(unsigned(hashes), slot)

    def cleared(self) -> None:
        index, slot = self._index, self.slot
        # Clearing makes the next insert sweep the whole index; each process begins with an event that it holds nothing.
        if slot is not None and (index.held(slot) or index.crowded(slot)):
            index.cleared(slot)

    def synced(self, complete: bool) -> None:
        if (slot := self.slot) is not None:
            self._index.set_synced(slot, complete=complete)


class KvEvents:
    """Follows all replicas."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        prefixes: Prefixes,
        *,
        health_monitor: HealthMonitor,
        tokenising: Tokenisation,
    ) -> None:
        """`health_monitor` learns of new processes; `tokenising` has the page size."""
        self._settings = settings
        self._replicas = replicas
        self._prefixes = prefixes
        self._health_monitor = health_monitor
        self._tokenising = tokenising
        self._context = zmq.asyncio.Context()
        self._tasks: dict[str, tuple[tuple[ReplicaConfig, _Slot], asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Keep one follower for each replica that is there and publishes, until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(self._settings.timing.report_interval_s)
        finally:
            tasks = [task for _, task in self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._context.destroy(linger=0)

    def _look(self) -> None:
        replicas, prefixes = self._replicas, self._prefixes
        wanted = {
            replica.name: replica
            for replica in replicas.configured.values()
            if self._publishes(replica)
        }
        for name, ((replica, slot), task) in list(self._tasks.items()):
            if wanted.get(name) != replica or slot.slot is None:
                task.cancel()
                del self._tasks[name], prefixes.followers[name]
        index = replicas.fleet.index
        for name, replica in wanted.items():
            member = replicas.fleet.member(name)
            if member is None or not member.joined or not isinstance(index, ExactIndex):
                continue
            if name not in self._tasks:
                self._begin(replica, _Slot(replicas.fleet, member, index))
            follower, slot = prefixes.followers[name], self._tasks[name][0][1]
            follower.look_for(self._tokenising.pages.tokens)
            if slot.crowded:
                follower.forgot("the router keeps no more blocks: prefix.maxBlocks is too small")

    def _begin(self, replica: ReplicaConfig, slot: _Slot) -> None:
        follower = self._prefixes.followers[replica.name] = Follower(slot)
        task = asyncio.create_task(self._follow_forever(replica, slot, follower))
        self._tasks[replica.name] = (replica, slot), task

    def _publishes(self, replica: ReplicaConfig) -> bool:
        tokens = self._settings.config.prefix.mode is PrefixMode.TOKENS
        return tokens and replica.kv_events is not None and replica.kv_replay is not None

    async def _follow_forever(
        self, replica: ReplicaConfig, slot: _Slot, follower: Follower
    ) -> None:
        logged = ""
        while True:
            try:
                await self._follow(replica, slot, follower)
            except (_Lost, KvEventError, zmq.ZMQError) as error:
                follower.disconnected(str(error))
                if str(error) != logged:
                    logged = str(error)
                    _log.warning("KV events of replica %s: %s", replica.name, logged)
            await asyncio.sleep(RETRY_S)

    async def _follow(self, replica: ReplicaConfig, slot: _Slot, follower: Follower) -> None:
        """One subscription, to its end. Raises `_Lost`, `KvEventError`, `zmq.ZMQError`."""
        address = replica.kv_events or ""
        with (
            _socket(self._context, zmq.SUB, LIVE_BATCHES) as live,
            _monitor(live) as monitor,
        ):
            live.setsockopt(zmq.IPV6, "[" in address)
            live.setsockopt(zmq.HEARTBEAT_IVL, round(KEEP_ALIVE_S * 500))
            live.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(KEEP_ALIVE_S * 1000))
            live.subscribe(b"")
            live.connect(address)
            await _connected(monitor)
            follower.connected()
            await self._catch_up(replica, slot, follower)
            _log.info(
                "KV events of replica %s: %s %s",
                replica.name,
                follower.sync_state.value,
                follower.reason,
            )
            watching = asyncio.create_task(_broken(monitor))
            asking = self._ask(replica, follower)
            try:
                while True:
                    reading = asyncio.create_task(self._read(live, slot, follower))
                    await asyncio.wait(
                        (watching, reading, asking), return_when=asyncio.FIRST_COMPLETED
                    )
                    if watching.done():
                        reading.cancel()
                        raise _Lost("the connection broke")
                    if asking.done():
                        # What was being read may be lost with it: the replay brings it.
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
                        await self._take_over(asking.result(), slot, follower)
                        _log.info("replica %s reported the pages that it holds", replica.name)
                        asking = self._ask(
                            replica, follower, delay_s=self._settings.timing.kv_pages_interval_s
                        )
                    else:
                        await reading
                    await self._catch_up(replica, slot, follower)
            finally:
                watching.cancel()
                asking.cancel()

    def _ask(
        self, replica: ReplicaConfig, follower: Follower, *, delay_s: float = 0.0
    ) -> asyncio.Task[list[PagesPart]]:
        async def answer() -> list[PagesPart]:
            await asyncio.sleep(delay_s)
            return await pages_wanted(
                self._context, replica, follower, timing=self._settings.timing
            )

        return asyncio.create_task(answer())

    async def _take_over(self, parts: Sequence[PagesPart], slot: _Slot, follower: Follower) -> None:
        """The pages that the replica holds, unless the follower knows them by now."""
        if follower.sync_state is SyncState.IN_SYNC:
            return
        follower.take_over(parts[0].sequence, parts[0].last_unix_s)
        for part in parts:
            hashes = part.hashes
            for at in range(0, len(hashes), PIECE):
                follower.holds(hashes[at : at + PIECE], part.page_tokens)
                await _breathe(slot)
        follower.taken_over()

    async def _read(self, live: zmq.asyncio.Socket, slot: _Slot, follower: Follower) -> None:
        """Apply batches until one is missing, or until none came for so long that the last ones may be missing."""
        silence_ms = round(self._settings.timing.kv_check_interval_s * 1000)
        while await live.poll(silence_ms):
            if follower.live(read_live(await live.recv_multipart())):
                return
            await _breathe(slot)

    async def _catch_up(self, replica: ReplicaConfig, slot: _Slot, follower: Follower) -> None:
        """Replays until nothing is missing."""
        restarts = follower.counts.restarts
        while await self._replay(replica, slot, follower):
            if follower.counts.restarts > restarts and slot.slot is not None:
                _log.warning("replica %s was restarted, as its KV events show", replica.name)
                self._health_monitor.replaced(replica.name)
                raise _Lost("a new process answers in its place")

    async def _replay(self, replica: ReplicaConfig, slot: _Slot, follower: Follower) -> bool:
        """One replay; whether another must follow. Raises `_Lost` where no answer comes."""
        with _socket(self._context, zmq.DEALER, REPLAYED_BATCHES) as socket:
            address = replica.kv_replay or ""
            socket.setsockopt(zmq.IPV6, "[" in address)
            socket.connect(address)
            applied = follower.sequence
            await socket.send_multipart(replay_question(follower.ask()))
            timeout_s = ANSWER_S
            while await socket.poll(round(timeout_s * 1000)):
                timeout_s = NEXT_S
                batch = read_replay(await socket.recv_multipart())
                if batch.sequence == END_OF_REPLAY:
                    return follower.ended()
                if not follower.replayed(batch):
                    return True
                await _breathe(slot)
        if follower.sequence == applied:
            raise _Lost("its replay port does not answer")
        return True  # its end was lost, not all of it


async def _breathe(slot: _Slot) -> None:
    if slot.blocks >= PIECE:
        slot.blocks = 0
        await asyncio.sleep(0)


def _socket(context: zmq.asyncio.Context, kind: int, waiting: int) -> closing[zmq.asyncio.Socket]:
    """A socket for one connection, with so many messages waiting at most."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, waiting)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    return closing(socket)


@contextmanager
def _monitor(socket: zmq.asyncio.Socket) -> Iterator[zmq.asyncio.Socket]:
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _BROKEN)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)


_BROKEN: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


async def _event(monitor: zmq.asyncio.Socket) -> int:
    return int(parse_monitor_message(await monitor.recv_multipart())["event"])


async def _connected(monitor: zmq.asyncio.Socket) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            event = await _event(monitor)
    except TimeoutError:
        raise _Lost("its event port does not answer") from None
    if event & _BROKEN:
        raise _Lost("the connection to its event port is refused")


async def _broken(monitor: zmq.asyncio.Socket) -> None:
    while not await _event(monitor) & _BROKEN:
        pass
