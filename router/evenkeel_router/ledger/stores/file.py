"""A ledger in two files, one of which is whole whenever the power fails (R8).

A generation is written aside, synced, and renamed over the older of the two; then the folder is synced. A header with
length and checksum shows whether a file is whole; a torn write or a bad block falls back to the other generation, which
is one save older. A lock keeps a second router off the same volume until the first one has ended, as in a rollout.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import Struct
from typing import Final

import xxhash
from evenkeel_contract.ledgerwire import LedgerMessageError, decode_delta, encode, frame, unframe
from evenkeel_fairshare.ledger import Delta

from evenkeel_router.ledger.stores.contract import StoreError

_log = logging.getLogger(__name__)

GENERATIONS: Final = (".0", ".1")
ASIDE: Final = ".new"
LOCK: Final = ".lock"

_MAGIC: Final = b"evkledg1"
_HEADER: Final = Struct("<8sQQ16s")
"""Magic, number of the generation, bytes that follow, checksum of number and bytes."""


class FileStore:
    """A ledger at a path that one router has for itself. Its folder must be there."""

    def __init__(self, path: Path) -> None:
        """Files are `path` with an ending. Nothing is touched before the first call."""
        self._path = path
        self._one = threading.Lock()  # a call that was cancelled still runs in its thread
        self._lock: int | None = None
        self._newest = (0, GENERATIONS[1])
        """Number and ending of the newest whole generation."""

    async def load(self) -> Sequence[Delta]:
        """The newest whole generation; nothing where there is none."""
        return await asyncio.to_thread(self._load)

    async def save(self, whole: Sequence[Delta]) -> None:
        """Write the next generation over the older one."""
        await asyncio.to_thread(self._save, whole)

    async def close(self) -> None:
        """Let others have the files."""
        await asyncio.to_thread(self._close)

    def _load(self) -> list[Delta]:
        with self._one:
            try:
                self._take_lock()
                found = self._generations()
            except OSError as error:
                raise self._failure("read", error) from error
            if found:
                self._newest = found[0][:2]
            for number, ending, content in found:
                try:
                    return [decode_delta(message) for message in unframe(content)]
                except LedgerMessageError as error:
                    _log.error("%s%s, generation %d, is invalid and is ignored: %s",
                               self._path, ending, number, error)  # fmt: skip
            return []

    def _save(self, whole: Sequence[Delta]) -> None:
        with self._one:
            number, newest = self._newest
            ending = GENERATIONS[newest == GENERATIONS[0]]
            aside = self._at(ASIDE)
            try:
                self._take_lock()
                _write(aside, number + 1, (frame(encode(part)) for part in whole))
                aside.rename(self._at(ending))
                _sync_folder(self._path.parent)
            except OSError as error:
                aside.unlink(missing_ok=True)  # on a full disk, half a ledger is in others' way
                raise self._failure("written", error) from error
            self._newest = (number + 1, ending)

    def _close(self) -> None:
        with self._one:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _generations(self) -> list[tuple[int, str, bytes]]:
        """Number, ending and content of all whole generations, newest first."""
        found = []
        for ending in GENERATIONS:
            path = self._at(ending)
            try:
                number, content = _unpack(path.read_bytes())
            except FileNotFoundError:
                continue
            except ValueError as error:
                _log.error("%s is invalid and is ignored: %s", path, error)
                continue
            found.append((number, ending, content))
        return sorted(found, reverse=True)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(self._at(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StoreError(f"{self._path} is in use by another process") from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def _at(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def _failure(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"{self._path} cannot be {what}: {error.strerror or error}")


def _write(path: Path, number: int, parts: Iterable[bytes]) -> None:
    """Write and sync one generation. The header comes last: what it says is known by then."""
    # Private: a ledger names all clients.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        checksum, length = _checksum(number), 0
        file.write(bytes(_HEADER.size))
        for part in parts:
            checksum.update(part)
            length += len(part)
            file.write(part)
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, number, length, checksum.digest()))
        file.flush()
        os.fsync(handle)


def _unpack(data: bytes) -> tuple[int, bytes]:
    """Number and content; raises `ValueError` for what is not one whole generation."""
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than a header")
    magic, number, length, digest = _HEADER.unpack_from(data)
    content = data[_HEADER.size :]
    if magic != _MAGIC:
        raise ValueError("it is not a ledger")
    if len(content) != length:
        raise ValueError(f"it has {len(content)} of {length} bytes")
    checksum = _checksum(number)
    checksum.update(content)
    if checksum.digest() != digest:
        raise ValueError("its checksum is wrong")
    return number, content


def _checksum(number: int) -> xxhash.xxh3_128:
    return xxhash.xxh3_128(number.to_bytes(8, "little"))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
