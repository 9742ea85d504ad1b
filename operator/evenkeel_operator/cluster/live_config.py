"""The configuration that the routers of a service have, read from its Secrets where their digests changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evenkeel_contract.names import ROUTER_CONFIG_KEY, router_name
from evenkeel_contract.tenantshards import (
    INDEX_ENTRY,
    SHARD_ENTRY,
    Index,
    index_name,
    read_index,
    read_shard,
    read_tenant,
    slot_of,
)
from evenkeel_kube.client import KubeClient

from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core.objects import Object, Ref, digest_of, entries_of
from evenkeel_operator.core.roster import Grant
from evenkeel_operator.core.sharding import Layout, LiveConfig, Shard, read_config


class LiveConfigs:
    """The configurations of all services."""

    def __init__(self, client: KubeClient, store: Store) -> None:
        self._client = client
        self._store = store
        self._known: dict[Key, Mapping[str, Any]] = {}
        """Service → digests of its Secrets' entries with tenants → what was read of them."""

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._known.pop(key, None)

    def laid_out(self, key: Key, layout: Layout) -> None:
        """A pass is about to write this: it need not be read again."""
        shards = {one.digest: one.grants for one in layout.shards.values()}
        self._known[key] = {**self._known.get(key, {}), **shards}

    def _intern(self, raws: Iterable[bytes]) -> tuple[Grant, ...]:
        """Grants of JSON that routers have, without invalid ones."""
        found = []
        for raw in raws:
            config, _ = read_tenant(raw)
            if config is not None:
                known = self._store.roster(config.namespace).known(raw, config)
                found.append(known or Grant(config, raw, slot_of(config.name)))
        return tuple(found)

    async def read(self, key: Key) -> LiveConfig:
        """The configuration of a service's routers. Raises `ClusterError`."""
        contents = _Contents(self._client, self._store, key, self._known.get(key, {}))

        def config(data: bytes) -> LiveConfig:
            return read_config(data, self._intern)

        def shard(data: bytes) -> tuple[Grant, ...] | None:
            with suppress(ValueError):
                return self._intern(read_shard(data))
            return None

        _, found = await contents.entry(router_name(key.base), ROUTER_CONFIG_KEY, config)
        _, index = await contents.entry(index_name(key.base), INDEX_ENTRY, _read_index)
        shards: dict[str, Shard] = {}
        for name in () if index is None else index.shards:
            digest, grants = await contents.entry(name, SHARD_ENTRY, shard)
            if grants is not None:
                shards[name] = Shard(digest, grants)
        self._known[key] = contents.used
        return replace(found or LiveConfig(), index=index, shards=shards)


def _read_index(data: bytes) -> Index | None:
    with suppress(ValueError):
        return read_index(data)
    return None


class _Contents:
    """Reads the entries with tenants of a service's Secrets, each digest once."""

    def __init__(
        self, client: KubeClient, store: Store, key: Key, known: Mapping[str, Any]
    ) -> None:
        """`known`: digest → what was read of it before."""
        self._client = client
        self._children = store.children(key)
        self._namespace = key.namespace
        self._known = known
        self.used: dict[str, Any] = {}

    async def entry(self, name: str, entry: str, read: Callable[[bytes], Any]) -> tuple[str, Any]:
        """Digest of an entry, and what `read` makes of it; None if there is no such entry. Raises `ClusterError`."""
        child = self._children.get(Ref("Secret", name))
        digest = _digest_in(child, entry)
        if child is None and self._children.is_listed:
            return "", None
        found = self._known.get(digest)
        if found is None:
            child = await self._client.get("Secret", self._namespace, name)
            if child is None:
                return "", None
            self._children.put(child)
            digest = digest_of(_digest_in(child, entry))
            found = self._known.get(digest) or read(entries_of(child).get(entry, b""))
        self.used[digest] = found
        return digest, found


def _digest_in(secret: Object | None, entry: str) -> str:
    return str(((secret or {}).get("data") or {}).get(entry, ""))
