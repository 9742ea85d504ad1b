"""Revoke first: before anything else of a pass can fail, routers lose the tenants and keys that must not be accepted.

It needs the tenants of the namespace and the Secrets that routers read, and nothing else: no valid spec, no other kind
of object, no room for new tenants. What is added or changed comes later in the pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from evenkeel_contract.names import ROUTER_CONFIG_KEY, SHARE_TENANT, router_name
from evenkeel_contract.render import is_shared
from evenkeel_contract.routerconfig import TenantConfig
from evenkeel_contract.tenantshards import INDEX_ENTRY, index_name, write_index
from evenkeel_kube.client import ApiError, ClusterError

from evenkeel_operator.cluster.apply import Applier, is_lasting, note_of
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.store import TENANT, Key, Store
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.roster import Grant, Roster
from evenkeel_operator.core.sharding import (
    LiveConfig,
    config_without,
    index_without,
    revoked,
    write_config,
)


class Wanted:
    """What routers of one service may accept at most, whatever its spec says."""

    def __init__(self, home: str, live: LiveConfig, rosters: Mapping[str, Roster]) -> None:
        """`home`: the service's namespace."""
        self._home = home
        self._rosters = rosters
        self._own = {
            name: one.overlay(live.tenants(one.special).get) for name, one in rosters.items()
        }

    @property
    def settled(self) -> frozenset[Grant]:
        """Grants that tenants have as they are: those of the service's own namespace, if no overlay replaces any."""
        usual = self._home in self._rosters and not self._own[self._home]
        return frozenset(self._rosters[self._home].everyone if usual else ())

    def grant(self, tenant: TenantConfig) -> Grant | None:
        """The tenant as it may be; None if it may not use the service."""
        roster = self._rosters.get(tenant.namespace)
        if roster is None:  # it cannot be read
            return Grant.of(tenant)
        known = roster.tenants.get(tenant.name)
        if known is None:
            return None
        if tenant.namespace != self._home and known.resource is not None:
            annotations = known.resource.metadata.annotations
            if not is_shared(annotations, SHARE_TENANT, self._home):
                return None
        own = self._own[tenant.namespace].get(tenant.name)
        return own or roster.grants.get(tenant.name)


class Revocation:
    """The first step of passes over services."""

    def __init__(self, store: Store, observer: Observer, applier: Applier) -> None:
        self._store = store
        self._observer = observer
        self._applier = applier
        self._done: dict[Key, tuple[object, ...]] = {}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._done.pop(key, None)

    async def attend(self, key: Key) -> tuple[Note, ...]:
        """Revoke. Returns notes of refused writes. Raises `ClusterError`, after what can be revoked was."""
        live = await self._observer.live_configs.read(key)
        rosters, failure = await self._rosters(key, {one.config.namespace for one in live.grants})
        if key not in self._done:  # tenants may have been read after what routers have
            live = self._observer.live_configs.share(key, live)
        notes: tuple[Note, ...] = ()
        versions = tuple((name, one.version) for name, one in sorted(rosters.items()))
        state = (versions, live.core, live.inline, live.index, tuple(live.shards.items()))
        if self._done.get(key) != state:
            wanted = Wanted(key.namespace, live, rosters)
            gone = revoked(live, wanted.grant, settled=wanted.settled)
            if gone:
                index, config = index_without(live, gone), config_without(live, gone)
                if index is not None and index != live.index:
                    document = {INDEX_ENTRY: write_index(index)}
                    notes += await self._write(key, index_name(key.base), document)
                if config is not None:
                    data = write_config(config.plain, config.inline)
                    self._observer.live_configs.rewritten(key, data, config)
                    notes += await self._write(
                        key, router_name(key.base), {ROUTER_CONFIG_KEY: data}
                    )
            elif failure is None:
                self._done[key] = state
        if failure is not None:
            raise failure
        return notes

    async def _rosters(
        self, key: Key, namespaces: Collection[str]
    ) -> tuple[dict[str, Roster], ClusterError | None]:
        """The tenants of the namespaces that routers serve, and what failed. Nothing is revoked where tenants cannot be listed."""
        found, failure = dict[str, Roster](), None
        for namespace in namespaces:
            try:
                found[namespace] = await self._observer.roster(namespace)
            except ClusterError as error:
                if self._store.named(TENANT, namespace).is_listed:
                    found[namespace] = self._store.roster(namespace)
                if namespace == key.namespace:
                    failure = error
        return found, failure

    async def _write(self, key: Key, name: str, data: Mapping[str, bytes]) -> tuple[Note, ...]:
        item = self._store.children(key).get(Ref("Secret", name))
        if item is None:
            return ()
        try:
            await self._applier.rewrite(key, item, data)
        except ApiError as error:
            if not is_lasting(error):
                raise
            why = note_of(error)
            return (Note(why.reason, f"The API server refuses Secret {name}: {why.message}"),)
        return ()
