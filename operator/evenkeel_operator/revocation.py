"""Revoke first: before anything else of a pass can fail, routers lose the tenants and keys that must not be accepted.

It needs the tenants of the namespace and the Secrets that routers read, and nothing else: no valid spec, no other kind
of object, no room for new tenants. What is added or changed comes later in the pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel_contract.names import ROUTER_CONFIG_KEY, router_name
from evenkeel_contract.tenantshards import INDEX_ENTRY, index_name, write_index
from evenkeel_kube.client import ApiError, ClusterError

from evenkeel_operator.cluster.apply import Applier, is_lasting, note_of
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.sharding import config_without, index_without, revoked


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
        failure = None
        try:
            roster = await self._observer.roster(key.namespace)
        except ClusterError as error:
            if not self._store.named("InferenceTenant", key.namespace).is_listed:
                raise
            roster, failure = self._store.roster(key.namespace), error
        live = await self._observer.live_configs.read(key, roster)
        notes: tuple[Note, ...] = ()
        state = (roster.version, live.core, live.inline, live.index, tuple(live.shards.items()))
        if self._done.get(key) != state:
            own = roster.overlay(live.tenants(roster.special).get)
            gone = revoked(live, lambda name: own.get(name) or roster.grants.get(name))
            if gone:
                index, config = index_without(live, gone), config_without(live, gone)
                if index is not None and index != live.index:
                    document = {INDEX_ENTRY: write_index(index)}
                    notes += await self._write(key, index_name(key.name), document)
                if config is not None:
                    notes += await self._write(
                        key, router_name(key.name), {ROUTER_CONFIG_KEY: config}
                    )
            elif failure is None:
                self._done[key] = state
        if failure is not None:
            raise failure
        return notes

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
