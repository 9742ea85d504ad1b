"""Gather what a pass reads, before anything is decided: from the store, or from the API server if the store lacks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenkeel_contract.names import (
    COMPONENT_LABEL,
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    ROUTER_CONFIG_KEY,
    SERVICE_LABEL,
    router_name,
)
from evenkeel_contract.routerconfig import RouterConfig, parse_router_config
from evenkeel_contract.spec.parts import SecretKeyRef
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_kube.client import KubeClient

from evenkeel_operator.cluster.store import SCALER, SERVICE, TENANT, Key, Store
from evenkeel_operator.core.objects import KINDS, OPTIONAL_KINDS, Object, Ref, entries_of
from evenkeel_operator.core.tenants import (
    SecretHashes,
    Tenant,
    read_tenants,
    secrets_named_by,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One service and all objects that concern it."""

    raw: Object
    """The FairInferenceService."""
    children: Mapping[Ref, Object]
    tenants: tuple[Tenant, ...]
    secrets: SecretHashes
    scalers: tuple[Object, ...]
    """HorizontalPodAutoscalers of the namespace."""

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def router_config(self) -> RouterConfig | None:
        """The routers' present configuration."""
        name = router_name(str(self.raw["metadata"]["name"]))
        data = entries_of(self.children.get(Ref("Secret", name))).get(ROUTER_CONFIG_KEY)
        return None if data is None else parse_router_config(data)[0]

    @property
    def is_leaving(self) -> bool:
        """It is being deleted: its objects are deleted with it, and none is created."""
        return "deletionTimestamp" in self.raw["metadata"]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The tenants of a namespace and the Secrets they name."""

    tenants: tuple[Tenant, ...]
    secrets: SecretHashes


class Observer:
    """Gathers; decides nothing."""

    def __init__(self, client: KubeClient, store: Store) -> None:
        self._client = client
        self._store = store
        self.apis: frozenset[str] = frozenset()
        """Optional kinds that the cluster has."""

    async def service(self, key: Key, *, relist: bool = False) -> Observed | None:
        """A service, or None where there is none. `relist`: list its objects even if the store has them."""
        raw = self._store.named(SERVICE, key.namespace).items.get(key.name)
        if raw is None or relist:
            raw = await self._client.get(SERVICE, key.namespace, key.name)
            if raw is None:
                self._store.forget(key)
                return None
            self._store.named(SERVICE, key.namespace).put(raw)
        around = await self.neighbours(key.namespace)
        return Observed(
            raw=raw,
            children=await self._children(key, relist=relist),
            tenants=around.tenants,
            secrets=around.secrets,
            scalers=await self._all(SCALER, key.namespace),
        )

    async def neighbours(self, namespace: str) -> Neighbours:
        """All tenants of a namespace."""
        tenants = read_tenants(await self._all(TENANT, namespace))
        secrets = {
            name: await self._hashes(namespace, name) for name in sorted(secrets_named_by(tenants))
        }
        return Neighbours(tenants, secrets)

    async def services(self, namespace: str) -> tuple[Object, ...]:
        """All services of a namespace."""
        return await self._all(SERVICE, namespace)

    async def list_again(self) -> None:
        """List and read again all objects that belong to no service: watches may have missed deletions."""
        for namespace in sorted(self._store.namespaces()):
            for kind in (SERVICE, TENANT, SCALER):
                await self._list(kind, namespace)
        for namespace, name in sorted(self._store.secrets()):
            await self._read_secret(namespace, name)

    async def redis_url(self, service: FairInferenceService) -> str | None:
        """The address of store Redis; None if it is not used or its Secret is missing."""
        redis = service.spec.router.state.redis
        if redis is None:
            return None
        return await self.entry(service.metadata.namespace, redis.url_secret_ref)

    async def pods(self, key: Key, component: str) -> list[Object]:
        """The pods of a component; listed only while the component is not ready."""
        assert component in (ENGINE_COMPONENT, ROUTER_COMPONENT)
        selector = f"{SERVICE_LABEL}={key.name},{COMPONENT_LABEL}={component}"
        return await self._client.list_all("Pod", key.namespace, selector=selector)

    async def look_at_apis(self) -> bool:
        """Discover the optional APIs; returns whether they changed."""
        before = self.apis
        found: set[str] = set()
        for api in sorted({KINDS[kind].api for kind in OPTIONAL_KINDS}):
            found |= await self._client.kinds_of(api)
        self.apis = OPTIONAL_KINDS & found
        return before != self.apis

    async def _all(self, kind: str, namespace: str) -> tuple[Object, ...]:
        table = self._store.named(kind, namespace)
        if not table.is_listed:
            await self._list(kind, namespace)
        return tuple(table.items.values())

    async def _list(self, kind: str, namespace: str) -> None:
        table = self._store.named(kind, namespace)
        table.begin()
        table.finish(await self._client.list_all(kind, namespace))

    async def _children(self, key: Key, *, relist: bool) -> Mapping[Ref, Object]:
        table = self._store.children(key)
        if relist or not table.is_listed:
            table.begin()
            found: list[Object] = []
            for kind in KINDS:
                if kind in OPTIONAL_KINDS and kind not in self.apis:
                    continue
                selector = f"{SERVICE_LABEL}={key.name}"
                found += await self._client.list_all(kind, key.namespace, selector=selector)
            table.finish(found)
        return table.items

    async def _hashes(self, namespace: str, name: str) -> Mapping[str, str] | None:
        if self._store.hashes(namespace, name) is None:
            await self._read_secret(namespace, name)
        found = self._store.hashes(namespace, name)
        return None if found is None else found.entries

    async def _read_secret(self, namespace: str, name: str) -> None:
        asked = self._store.expect_secret(namespace, name)
        secret = await self._client.get("Secret", namespace, name)
        self._store.remember_secret(namespace, name, secret, asked=asked)

    async def entry(self, namespace: str, ref: SecretKeyRef) -> str | None:
        """The value of a Secret's entry, without white space at both ends; None if it is missing."""
        # Remember its hash, so that a change of the Secret triggers a pass.
        await self._hashes(namespace, ref.name)
        secret = await self._client.get("Secret", namespace, ref.name)
        found = entries_of(secret).get(ref.key)
        try:
            return found.decode().strip() if found else None
        except UnicodeDecodeError:
            return None
