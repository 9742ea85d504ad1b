"""Reload the configuration when a Secret that holds it changes: the RouterConfig, or the index of the tenants' shards.

Content is compared, since a Secret gets a new version even if only a label changes. Shards are not watched: the index
names the digest of each, and a router reads those that changed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from random import Random
from typing import Final

import msgspec
from evenkeel_contract.names import ROUTER_CONFIG_KEY, router_name
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.tenantshards import (
    INDEX_ENTRY,
    SHARD_ENTRY,
    Index,
    index_name,
    read_index,
    read_shard,
)
from evenkeel_contract.values import Fault
from evenkeel_kube.cache import Named
from evenkeel_kube.client import ClusterError, KubeClient
from evenkeel_kube.watch import Selection, Watcher

from evenkeel_router.cluster.config_watch import Apply, Complain, Loaded, hand_over
from evenkeel_router.cluster.tenant_shards import TenantTable
from evenkeel_router.slices import in_slices

_log = logging.getLogger(__name__)
RETRY_S: Final = 2.0
"""Wait before a shard that could not be read is read again."""


class Secret(Named, frozen=True):
    """The parts of a Secret that are read."""

    data: dict[str, str] | None = None
    """Base64."""


class SecretSource:
    """Watched Secrets. `first` and `watch` see their content only while `run` is active."""

    def __init__(self, client: KubeClient, namespace: str, name: str, *, rng: Random) -> None:
        """`name`: the Secret with the RouterConfig."""
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = name
        self._index_name = index_name(name.removesuffix(router_name("")))
        self._last: Loaded | None = None
        self._changed = asyncio.Event()
        self._table = TenantTable()
        self._shards: dict[str, tuple[str, list[bytes]]] = {}
        """Shard → the digest by which the index named it, and its tenants."""
        self._in_use: dict[str, list[bytes]] = {}
        """The shards of the last index that was read as a whole."""
        self._watchers = {
            # With this selector, RBAC allows list and watch for one name.
            one: Watcher(
                client,
                Selection(Secret, self._path, {"fieldSelector": f"metadata.name={one}"}),
                self._changed.set,
                rng=rng,
            )
            for one in (name, self._index_name)
        }

    async def run(self) -> None:
        """Watch both Secrets, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watcher in self._watchers.values():
                group.create_task(watcher.run())

    async def first(self) -> RouterConfig:
        """The first valid configuration. Until it comes, faults are logged."""
        while True:
            config, faults = await self._next()
            if faults:
                _log.error("parts of the configuration are invalid: %s", list(map(str, faults)))
            if config is not None:
                return config

    async def watch(self, apply: Apply, complain: Complain) -> None:
        while True:
            await hand_over(await self._next(), apply, complain)

    async def _next(self) -> Loaded:
        """The next content that differs from the last."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            # An operator of a version without shards grants no right to read their index: there is none.
            if any(not one.synced and not one.refused for one in self._watchers.values()):
                continue
            loaded = await self._load()
            if loaded is not None and loaded != self._last:
                self._last = loaded
                return loaded

    def _entry(self, name: str, entry: str) -> bytes | None:
        """An entry of a watched Secret. Raises `binascii.Error`."""
        secret = self._watchers[name].cache.objects.get(name)
        encoded = ((secret and secret.data) or {}).get(entry)
        return None if encoded is None else base64.b64decode(encoded, validate=True)

    async def _load(self) -> Loaded | None:
        """The configuration; None while it cannot be read as a whole, and a new attempt will come."""
        if self._name not in self._watchers[self._name].cache.objects:
            return None, (Fault("", f"there is no Secret {self._name}"),)
        try:
            document = self._entry(self._name, ROUTER_CONFIG_KEY)
        except binascii.Error as error:
            return None, (Fault("", f"{ROUTER_CONFIG_KEY} is not Base64: {error}"),)
        if document is None:
            return None, (Fault("", f"Secret {self._name} has no entry {ROUTER_CONFIG_KEY}"),)
        try:
            data = self._entry(self._index_name, INDEX_ENTRY)
            index = None if data is None else read_index(data)
        except ValueError as error:  # not Base64, or invalid
            return None, (Fault("", f"Secret {self._index_name}: {error}"),)
        if index is not None:
            index = await self._with_shards(index)
            if index is None:
                return None
        loaded, _ = await in_slices(self._table.load(document, index, self._in_use))
        return loaded

    async def _with_shards(self, index: Index) -> Index | None:
        """The index, once its shards were read. While one cannot be read, the shards in use, with what is revoked now; None
        if there are none: a start waits for all tenants."""
        if await self._read_shards(index):
            self._in_use = {name: one for name, (_, one) in self._shards.items()}
            return index
        asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)
        shards = dict.fromkeys(self._in_use, "")
        return msgspec.structs.replace(index, shards=shards) if shards else None

    async def _read_shards(self, index: Index) -> bool:
        """Read the shards that changed. One that cannot be read stays as it was; returns whether all were."""
        whole = True
        for name, digest in index.shards.items():
            if name in self._shards and self._shards[name][0] == digest:
                continue
            try:
                found = await self._client.read(f"{self._path}/{name}")
                data = base64.b64decode((found.get("data") or {}).get(SHARD_ENTRY, ""))
                self._shards[name] = digest, await asyncio.to_thread(read_shard, data)
            except (ClusterError, ValueError) as error:
                _log.warning("cannot read tenants of Secret %s: %s", name, error)
                whole = False
        if whole:
            self._shards = {name: self._shards[name] for name in index.shards}
        return whole
