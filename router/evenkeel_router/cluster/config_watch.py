"""Reloading the configuration when it changes: a file, or a Secret of a cluster.

Place in the flow: file or Secret → **watch** → `RouterState.apply`. A configuration that does not hold is
logged with every fault and shown in `/v1/state`; the last good one runs on (design §3).

The surprising thing: it compares content, not times. A mounted ConfigMap changes by swapping a symbolic link,
an editor may write in several steps (half a file does not parse, and the next look sees the rest), and a
Secret has a new version also where only a label changed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec
from evenkeel_contract.faults import Fault
from evenkeel_contract.names import ROUTER_CONFIG_KEY
from evenkeel_contract.routerconfig import RouterConfig, parse_router_config

from evenkeel_router.cluster.api import Api
from evenkeel_router.cluster.watch import Selection, Watcher
from evenkeel_router.cluster.watched import Metadata

_log = logging.getLogger(__name__)

Apply = Callable[[RouterConfig], None]
Complain = Callable[[tuple[str, ...]], None]
Loaded = tuple[RouterConfig | None, tuple[Fault, ...]]
"""A configuration and no faults, or None and every fault."""


class ConfigSource(Protocol):
    """Where a running router's configuration comes from."""

    async def watch(self, apply: Apply, complain: Complain) -> None:
        """Hand over what changes, until cancelled; no faults where the newest one holds."""


def load(path: Path) -> tuple[RouterConfig | None, tuple[Fault, ...], bytes]:
    """Read a configuration: it or None, its faults, and the bytes that were read. Never raises."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return None, (Fault("", f"cannot be read: {error.strerror}"),), b""
    config, faults = parse_router_config(data)
    return config, faults, data


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class FileSource:
    """A file, looked at again and again."""

    def __init__(self, path: Path, last: bytes, *, interval_s: float = 1.0) -> None:
        """`last` is what runs now."""
        self._path = path
        self._last = last
        self._interval_s = interval_s

    async def watch(self, apply: Apply, complain: Complain) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if await asyncio.to_thread(_content, self._path) == self._last:
                continue  # reading takes microseconds, parsing milliseconds
            config, faults, data = await asyncio.to_thread(load, self._path)
            if data != self._last:
                self._last = data
                _take((config, faults), apply, complain)


class Secret(msgspec.Struct, frozen=True):
    """A Secret, as far as it is read."""

    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None
    """Base64."""


class SecretSource:
    """A Secret, watched. `run` must run for `first` and `watch` to see anything."""

    def __init__(self, api: Api, name: str, *, rng: Random) -> None:
        self._name = name
        self._last: Loaded | None = None
        self._changed = asyncio.Event()
        # With this selector, RBAC allows list and watch for one name.
        selection = Selection(
            Secret,
            f"/api/v1/namespaces/{api.namespace}/secrets",
            {"fieldSelector": f"metadata.name={name}"},
        )
        self._watcher = Watcher(api, selection, self._changed.set, rng=rng)

    async def run(self) -> None:
        """Keep in touch with the API, until cancelled."""
        await self._watcher.run()

    async def first(self) -> RouterConfig:
        """The first configuration that holds. Until then, what is wrong is in the log."""
        while True:
            config, faults = await self._next()
            if config is not None:
                return config
            _log.error("waiting for a configuration that holds: %s", [str(one) for one in faults])

    async def watch(self, apply: Apply, complain: Complain) -> None:
        while True:
            _take(await self._next(), apply, complain)

    async def _next(self) -> Loaded:
        """The next content that differs from the last."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            loaded = self._load()
            if loaded != self._last:
                self._last = loaded
                return loaded

    def _load(self) -> Loaded:
        secret = self._watcher.cache.objects.get(self._name)
        if secret is None:
            return None, (Fault("", f"there is no Secret {self._name}"),)
        entry = (secret.data or {}).get(ROUTER_CONFIG_KEY)
        if entry is None:
            return None, (Fault("", f"Secret {self._name} has no entry {ROUTER_CONFIG_KEY}"),)
        try:
            return parse_router_config(base64.b64decode(entry, validate=True))
        except binascii.Error as error:
            return None, (Fault("", f"{ROUTER_CONFIG_KEY} is not Base64: {error}"),)


def _take(loaded: Loaded, apply: Apply, complain: Complain) -> None:
    config, faults = loaded
    messages = tuple(str(fault) for fault in faults)
    complain(messages)
    if config is None:
        _log.error("the configuration does not hold; the last good one runs on: %s", messages)
        return
    apply(config)
    _log.info("the configuration changed")
