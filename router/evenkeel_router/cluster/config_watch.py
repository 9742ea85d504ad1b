"""Reload the configuration when its file changes. An invalid one is logged and shown in `/v1/state`; the last valid
one stays in use (design §3).

Content is compared, not times. A mounted ConfigMap changes by swapping a symbolic link, and an editor may write in
several steps: half a file does not parse, and the next check reads the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_contract.values import Fault

_log = logging.getLogger(__name__)

Apply = Callable[[RouterConfig], Awaitable[None]]
Complain = Callable[[tuple[str, ...]], None]
Loaded = tuple[RouterConfig | None, tuple[Fault, ...]]
"""A configuration, or None; and every fault. With both, the invalid parts are as they were before."""


class ConfigSource(Protocol):
    """Where a running router's configuration comes from."""

    async def watch(self, apply: Apply, complain: Complain) -> None:
        """Pass on changes until cancelled; no faults if the newest configuration is valid."""


Parse = Callable[[bytes], Loaded]
"""Reads a document. Never raises."""


def load(
    path: Path, parse: Parse = parse_router_config
) -> tuple[RouterConfig | None, tuple[Fault, ...], bytes]:
    """Read a configuration: it or None, its faults, and the bytes that were read. Never raises."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return None, (Fault("", f"cannot be read: {error.strerror}"),), b""
    config, faults = parse(data)
    return config, faults, data


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class FileSource:
    """A file, checked at intervals."""

    def __init__(
        self,
        path: Path,
        last: bytes,
        *,
        parse: Parse = parse_router_config,
        interval_s: float = 1.0,
    ) -> None:
        """`last` is the content in use."""
        self._path = path
        self._last = last
        self._parse = parse
        self._interval_s = interval_s

    async def watch(self, apply: Apply, complain: Complain) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if await asyncio.to_thread(_content, self._path) == self._last:
                continue  # reading takes microseconds, parsing milliseconds
            config, faults, data = await asyncio.to_thread(load, self._path, self._parse)
            if data != self._last:
                self._last = data
                await hand_over((config, faults), apply, complain)


async def hand_over(loaded: Loaded, apply: Apply, complain: Complain) -> None:
    """Apply the configuration, and report what of it is invalid."""
    config, faults = loaded
    messages = tuple(str(fault) for fault in faults)
    complain(messages)
    if config is None:
        _log.error(
            "invalid configuration, the last valid one stays in use: %s", "; ".join(messages)
        )
        return
    if messages:
        _log.error("parts of the configuration are invalid and stay as they were: %s", messages)
    await apply(config)
    _log.info("the configuration changed")
