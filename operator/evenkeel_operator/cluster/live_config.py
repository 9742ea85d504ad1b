"""The configuration that the routers of a service have, read from its Secrets where their digests changed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
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


class _Named(msgspec.Struct):
    """What a tenant's JSON says first of all: a twentieth of the time of all of it."""

    namespace: str
    name: str


_named: Final = msgspec.json.Decoder(_Named)


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
        known = self._known.get(key, {})
        self._known[key] = {**known, **shards, layout.config: layout.read_back}

    def rewritten(self, key: Key, data: bytes, holds: LiveConfig) -> None:
        """A pass is about to write this RouterConfig: it need not be read again."""
        digest = digest_of(b64encode(data).decode())
        self._known[key] = {**self._known.get(key, {}), digest: holds}

    def share(self, key: Key, live: LiveConfig) -> LiveConfig:
        """What routers have, with the rosters' objects for tenants that are as they should be: each service would keep its own."""
        self._known[key] = {digest: self._shared(one) for digest, one in self._known[key].items()}
        shards = {name: self._shared(one) for name, one in live.shards.items()}
        return replace(live, inline=self._shared(live.inline), shards=shards)

    def _shared(self, one: Any) -> Any:
        match one:
            case LiveConfig():
                return replace(one, inline=self._shared(one.inline))
            case Shard():
                return replace(one, grants=self._shared(one.grants))
            case tuple():
                rosters = self._store.roster
                return tuple(
                    rosters(grant.config.namespace).known(grant.raw, grant.config.name) or grant
                    for grant in one
                )
        return one

    def _intern(self, raws: Iterable[bytes]) -> tuple[Grant, ...]:
        """Grants of JSON that routers have, without invalid ones."""
        found = []
        for raw in raws:
            grant = self._known_grant(raw)
            if grant is None:
                config, _ = read_tenant(raw)
                grant = None if config is None else Grant(config, raw, slot_of(config.name))
            if grant is not None:
                found.append(grant)
        return tuple(found)

    def _known_grant(self, raw: bytes) -> Grant | None:
        """The roster's grant with this JSON."""
        with suppress(*UNREADABLE):
            named = _named.decode(raw)
            return self._store.roster(named.namespace).known(raw, named.name)
        return None

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
