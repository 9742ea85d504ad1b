"""Records traffic for `evenkeel plan`: lengths, times and salted hashes of prompts; never text, never keys.

A request appends one tuple when it is over. A thread salts the hashes, encodes and writes. A fault of the disk drops lines,
which are counted; no request waits for it. The recording has two files of at most half the configured size: when the newer
one is full, it replaces the older one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import time
from typing import IO, Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.recording import (
    SALT_BYTES,
    FleetLine,
    Header,
    RecordingState,
    RequestLine,
    encode_line,
    salt_id,
    salted,
)
from evenkeel_contract.recordingconfig import RecordingConfig, RecordingStart
from evenkeel_contract.routerconfig import PrefixMode, RouterConfig
from evenkeel_fairshare.fleet.contract import NOTHING

from evenkeel_router.request.front import RequestSink
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.rooms import Rooms

_log = logging.getLogger(__name__)
FLUSH_INTERVAL_S: Final = 1.0
MAX_PENDING: Final = 20_000
"""Requests in memory; further ones are dropped and counted."""
MAX_PENDING_BLOCKS: Final = 2_000_000
"""Hashes of prompts in memory, 80 MB of them; requests beyond are dropped and counted."""

Pending = tuple[RequestLine, tuple[int, ...]]
"""A request without its hashes, and those as the router has them, without salt."""


class Recorder:
    """The recording of one router. Without `recording` in its configuration it does nothing."""

    def __init__(self, rooms: Rooms, sinks: list[RequestSink]) -> None:
        """`sinks`: what takes requests that are over; `add` is one of them from the first recording on."""
        self._rooms = rooms
        self._sinks = sinks
        self._now = asyncio.get_running_loop().time
        self._pending: deque[Pending] = deque()
        self._pending_blocks = 0
        self._files: _Files | None = None
        self._replaced: list[_Files] = []
        self._from_s = self._until_s = 0.0
        """Requests that arrive in this time are recorded."""
        self._fleet: tuple[str, ...] = ()
        self._flushing = asyncio.Lock()
        self._writing = threading.Lock()
        """Held by threads only, and by the loop when the router ends."""

    @property
    def _config(self) -> RecordingConfig | None:
        return self._rooms.settings.config.recording

    def start(self, salt: bytes | None = None, *, fresh: bool = True) -> bool:
        """Begin a recording; False if the configuration does not allow one. `fresh`: earlier files are removed."""
        config = self._config
        if config is None:
            return False
        salt = salt or secrets.token_bytes(SALT_BYTES)
        self._pending.clear()
        self._pending_blocks = 0
        self._fleet = ()
        self._from_s, self._until_s = self._now(), float("inf")
        if self._files is None:
            self._sinks.append(self.add)
        else:  # closed by the thread: a stuck disk must not stop the loop
            self._replaced.append(self._files)
        self._files = _Files(config, _header(self._rooms, salt), salt, fresh=fresh)
        return True

    def stop(self) -> None:
        """Requests that arrive from now on are not recorded; those in flight are, once they end."""
        self._until_s = min(self._until_s, self._now())

    def add(self, request_state: RequestState, duration_s: float) -> None:
        """A request is over."""
        files, started_s = self._files, request_state.started_s
        if files is None or not self._from_s <= started_s < self._until_s:
            return
        if request_state.client is None:
            return
        ticket = request_state.ticket
        match = None if ticket is None else ticket.match
        blocks = () if match is None else tuple(match.dispatch.blocks)
        if (
            len(self._pending) >= MAX_PENDING
            or self._pending_blocks + len(blocks) > MAX_PENDING_BLOCKS
        ):
            files.dropped += 1
            return
        self._pending_blocks += len(blocks)
        self._pending.append((_line(request_state, duration_s, from_s=self._from_s), blocks))

    def state(self) -> RecordingState:
        """The recording's state now."""
        config, files = self._config, self._files
        if config is None or files is None:
            return RecordingState(
                allowed=config is not None, max_bytes=config.max_bytes if config else 0
            )
        active = self._rooms.intake.active_requests
        return RecordingState(
            allowed=True,
            recording=self._now() < self._until_s,
            open=sum(self._from_s <= one.started_s < self._until_s for one in active),
            requests=files.requests + files.in_hand + len(self._pending),
            dropped=files.dropped,
            size_bytes=files.size_bytes,
            max_bytes=config.max_bytes,
            fault=files.fault,
        )

    async def run(self) -> None:
        """Write every second until cancelled, then what remains."""
        config = self._config
        if config is not None and config.start is RecordingStart.ALWAYS:
            self.start(fresh=False)
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL_S)
                await self.flush()
        finally:
            if self._files is not None:
                self._write(self._files, self._taken())
                self._files.close()

    async def flush(self) -> None:
        """Write what is over so far; what is being written at the moment is in the files afterwards, too."""
        if self._config is None:  # no longer allowed
            self.stop()
        async with self._flushing:
            files = self._files
            if files is not None and (lines := self._taken()):
                files.in_hand = sum(not isinstance(line, FleetLine) for line in lines)
                written = await asyncio.to_thread(self._write, files, lines)
                files.requests += written
                files.dropped += files.in_hand - written
                files.in_hand = 0

    def paths(self) -> tuple[Path, ...]:
        """The files, oldest first; none if nothing was recorded."""
        return () if self._files is None else self._files.paths()

    def _taken(self) -> list[Pending | FleetLine]:
        lines: list[Pending | FleetLine] = []
        fleet = tuple(sorted(m.name for m in self._rooms.replicas.fleet if m.routable))
        now_s = self._now()
        if fleet != self._fleet and (now_s < self._until_s or not self._fleet):
            self._fleet = fleet
            lines.append(FleetLine(at_s=max(0.0, now_s - self._from_s), replicas=fleet))
        lines.extend(self._pending)
        self._pending.clear()
        self._pending_blocks = 0
        return lines

    def _write(self, files: _Files, lines: list[Pending | FleetLine]) -> int:
        with self._writing:
            while self._replaced:
                self._replaced.pop().close()
            return files.write(lines)


class _Files:
    """Both files of a recording; used by one thread at a time."""

    def __init__(
        self, config: RecordingConfig, header: Header, salt: bytes, *, fresh: bool
    ) -> None:
        self._path = Path(config.file)
        self._old = self._path.with_name(f"{self._path.name}.1")
        self._half_bytes = max(1, config.max_bytes // 2)
        self._header = encode_line(header)
        self._salt = salt
        self._fleet = b""
        """The last line of the fleet, which a new file repeats."""
        self._output: IO[bytes] | None = None
        self._size_bytes = 0
        self._fresh = fresh
        self.requests = self.dropped = self.in_hand = 0
        """Requests that were written, that were lost, and that a thread writes now."""
        self.fault = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of both files."""
        return self._size_bytes + _size(self._old)

    def paths(self) -> tuple[Path, ...]:
        """Paths of the files, oldest first; none before the first line."""
        if self._fresh:
            return ()
        return tuple(path for path in (self._old, self._path) if path.is_file())

    def close(self) -> None:
        """Close the newer file, as far as the disk lets it."""
        output, self._output = self._output, None
        if output is not None:
            with suppress(OSError):  # what its buffer held is lost
                output.close()

    def write(self, lines: list[Pending | FleetLine]) -> int:
        """Write lines; returns the number of requests among those written. After a fault the rest of them is lost."""
        encoded = list(self._encoded(lines))
        requests = 0
        try:
            for is_request, line in encoded:
                self._output_for(len(line)).write(line)
                self._size_bytes += len(line)
                requests += is_request
                if not is_request:
                    self._fleet = line
            if self._output is not None:
                self._output.flush()
            self.fault = ""
        except OSError as error:
            if not self.fault:
                _log.warning("the recording %s cannot be written: %s", self._path, error)
            self.fault = f"{self._path}: {error.strerror or error}"
            self.close()
        return requests

    def _encoded(self, lines: list[Pending | FleetLine]) -> Iterator[tuple[bool, bytes]]:
        for line in lines:
            if isinstance(line, FleetLine):
                yield False, encode_line(line)
            else:
                request, blocks = line
                head = encode_line(request)
                if blocks:
                    hashes = b",".join(b"%d" % one for one in salted(blocks, self._salt))
                    head = head[:-2] + b',"blocks":[' + hashes + b"]}\n"
                yield True, head

    def _output_for(self, size_bytes: int) -> IO[bytes]:
        if self._output is not None and self._size_bytes + size_bytes > self._half_bytes:
            self.close()
            self._path.replace(self._old)
        if self._output is None:
            if self._fresh:
                self._old.unlink(missing_ok=True)
            elif self._path.is_file():
                self._path.replace(self._old)
            self._fresh = False
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._output = os.fdopen(os.open(self._path, flags, 0o600), "wb")
            self._output.write(self._header + self._fleet)
            self._size_bytes = len(self._header) + len(self._fleet)
        return self._output


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _line(request_state: RequestState, duration_s: float, *, from_s: float) -> RequestLine:
    first_s, usage, ticket = (
        request_state.first_byte_s,
        request_state.usage or NOTHING,
        request_state.ticket,
    )
    adapter = None if ticket is None else ticket.match.adapter
    client = request_state.client
    return RequestLine(
        arrival_s=round(request_state.started_s - from_s, 6),
        client="" if client is None else client.identity,
        api=request_state.path,
        duration_s=round(duration_s, 6),
        ttft_s=None if first_s is None else round(first_s - request_state.started_s, 6),
        streamed=request_state.stream,
        input_tokens=usage.input_tokens or request_state.estimate_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        estimated=not request_state.usage_reported,
        adapter=adapter or "",
        replica=request_state.replica,
        outcome="" if request_state.outcome is None else request_state.outcome.value,
    )


def _header(rooms: Rooms, salt: bytes) -> Header:
    config = rooms.settings.config
    in_tokens = config.prefix.mode is PrefixMode.TOKENS
    return Header(
        service=f"{config.namespace}/{config.service}",
        model=config.model,
        router=rooms.service_ledger.ledger.router,
        started_unix=time(),
        salt_id=salt_id(salt),
        block_tokens=config.prefix.page_tokens if in_tokens else None,
        scheduling=to_plain(config.scheduling),
        weights=_weights(config),
    )


def _weights(config: RouterConfig) -> dict[str, float]:
    found = {}
    for tenant in config.tenancy.tenants:
        name = f"{tenant.namespace}/{tenant.name}"
        found[name], found[f"{name}/*"] = tenant.weight, tenant.default_client_weight
        found |= {f"{name}/{client.name}": client.weight for client in tenant.clients}
    return found
