"""Gather what a pass reads, before anything is decided: from the store, or from the API server if the store lacks it."""

from __future__ import annotations

import logging
from asyncio import Lock
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from evenkeel_contract.names import (
    COMPONENT_LABEL,
    EXTERNAL_LABEL,
    SERVICE_LABEL,
    USE_LABEL,
    credentials_name,
    engine_name,
    router_name,
)
from evenkeel_contract.spec.parts import ScaleTarget
from evenkeel_kube.client import ApiError, ClusterError, KubeClient, Refused, Unreachable

from evenkeel_operator.cluster.live_config import LiveConfigs
from evenkeel_operator.cluster.object_table import Kept, ObjectTable
from evenkeel_operator.cluster.observed import Observed, ObservedGateway, Pods
from evenkeel_operator.cluster.secret_values import SecretValues
from evenkeel_operator.cluster.store import (
    GATEWAY,
    POOL,
    SCALER,
    SERVICE,
    SLICE,
    TENANT,
    Key,
    Store,
)
from evenkeel_operator.core import reasons
from evenkeel_operator.core.gateways import Behind, behind_of
from evenkeel_operator.core.neighbours import default_class
from evenkeel_operator.core.objects import (
    KINDS,
    OPTIONAL_KINDS,
    Object,
    Ref,
    labels_of,
)
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import read_credentials
from evenkeel_operator.core.roster import UNREAD, Roster
from evenkeel_operator.core.tenants import NamedSecret
from evenkeel_operator.core.workload import Workload, external_workload

_log = logging.getLogger(__name__)
PAGE: Final = 100
"""Objects of a page of a kind of which a namespace may have thousands."""
READS: Final = 5
"""Most reads of one Secret that changes meanwhile."""
MANY_SECRETS: Final = 20
"""Most unread Secrets of a namespace that are read one by one; of more, those with the label are read in pages."""
SECRETS: Final = 20
"""Secrets of a page: each may have 1 MiB."""
INGRESS_CLASSES: Final = "/apis/networking.k8s.io/v1/ingressclasses"


class Observer:
    """Gathers; decides nothing."""

    def __init__(self, client: KubeClient, store: Store, *, any_secret: bool = False) -> None:
        """`any_secret`: Secrets may be used without the label `evenkeel.dev/use`."""
        self._client = client
        self._store = store
        self._any_secret = any_secret
        self._lists = defaultdict[tuple[str, str], Lock](Lock)
        self._forbidden: dict[Key, frozenset[str]] = {}
        self.live_configs = LiveConfigs(client, store)
        self.values = SecretValues(client, self.secret)
        """What the Secrets contain that a service or gateway names, apart from those of tenants."""
        self.wake: Callable[[Key], None] = lambda key: None
        """What is called for tenants whose status may have changed with another tenant or a Secret."""
        self.apis: frozenset[str] = frozenset()
        """Optional kinds that the cluster has."""
        self.default_class = ""
        """The cluster's default Ingress class; empty if there is none or the operator may not read it."""

    async def service(self, key: Key, *, relist: bool = False) -> Observed | None:
        """A service, or None where there is none. `relist`: list its objects even if the store has them."""
        raw = self._store.named(SERVICE, key.namespace).items.get(key.name)
        if raw is None or relist:
            raw = await self._client.get(SERVICE, key.namespace, key.name)
            if raw is None:
                self._store.forget(key)
                self.live_configs.forget(key)
                return None
            self._store.named(SERVICE, key.namespace).put(raw)
            self._store.forget_endpoints(key)
        children, forbidden = await self._children(key, relist=relist)
        behind = behind_of(key.name, await self._gateways(key.namespace))
        may_have_a_pool = _is_external(raw, children.get(Ref("Service", engine_name(key.name))))
        return Observed(
            raw=raw,
            children=children,
            live=await self.live_configs.read(key),
            scalers=await self._scalers(key.namespace),
            forbidden=forbidden,
            pools=await self.all_of(POOL, key.namespace) if may_have_a_pool else (),
            behind=behind,
            routers_token=self._token(key, children, _serving(key, children, behind)),
            pods=Pods(self._client, key, _serving(key, children, behind)),
        )

    async def gateway(self, key: Key, *, relist: bool = False) -> ObservedGateway | None:
        """A gateway with the services of its namespace, or None where there is none."""
        raw = self._store.named(GATEWAY, key.namespace).items.get(key.name)
        if raw is None or relist:
            raw = await self._client.get(GATEWAY, key.namespace, key.name)
            if raw is None:
                self._store.forget(key)
                self.live_configs.forget(key)
                return None
            self._store.named(GATEWAY, key.namespace).put(raw)
        children, forbidden = await self._children(key, relist=relist)
        services = await self.all_of(SERVICE, key.namespace)
        configs = {}
        for service in services:
            own = Key(SERVICE, key.namespace, str(service["metadata"]["name"]))
            await self._children(own, relist=False)
            live = await self.live_configs.read(own)
            if live.core is not None:
                configs[own.name] = live.core
        return ObservedGateway(
            seen=Observed(
                raw=raw,
                children=children,
                live=await self.live_configs.read(key),
                scalers=(),
                forbidden=forbidden,
                pods=Pods(self._client, key),
            ),
            services=services,
            gateways=await self.all_of(GATEWAY, key.namespace),
            configs=configs,
        )

    async def _gateways(self, namespace: str) -> tuple[Object, ...]:
        """The gateways of a namespace. A service does without the right to read them, and without their API."""
        try:
            return await self.all_of(GATEWAY, namespace)
        except ApiError as error:
            if not isinstance(error, Refused) and error.status != HTTPStatus.NOT_FOUND:
                raise
            _log.info("%s: cannot list FairInferenceGateways: %s", namespace, error)
            return ()

    def _token(self, key: Key, children: Mapping[Ref, Object], behind: Behind | None) -> str:
        """The admin token of the routers that serve a service; empty if it is not known."""
        base = key.name
        if behind is not None:
            base = behind.base
            children = self._store.children(Key(GATEWAY, key.namespace, behind.gateway)).items
        found = read_credentials(children.get(Ref("Secret", credentials_name(base))))
        return "" if found is None else found.admin_token

    async def roster(self, namespace: str, *, of: Key | None = None) -> Roster:
        """The tenants of a namespace. Their changes trigger passes over service `of` from now on. Raises `ClusterError` if a
        Secret that they name cannot be read; the roster has the rest."""
        if of is not None:
            self._store.use_tenants(of, namespace)
        table = await self._listed(TENANT, namespace)
        roster = self._store.roster(namespace)
        for name in table.take_changed():
            raw = table.get(name)
            # Its keys end with the request to delete it, also where a finalizer of others keeps the object.
            if raw is None or "deletionTimestamp" in raw["metadata"]:
                roster.remove(name)
            else:
                roster.put(raw)
        failure = None
        try:
            await self._read_secrets(namespace, roster)
        except ClusterError as error:
            failure = error
        for name in roster.settle():
            self.wake(Key(TENANT, namespace, name))
        if failure is not None:
            raise failure
        return roster

    async def _read_secrets(self, namespace: str, roster: Roster) -> None:
        """Read the Secrets that tenants name and that changed. One that cannot be read costs no other one."""
        failure = None
        for name in self._store.take_touched(namespace):
            if roster.named_by(name):
                roster.unread.add(name)
        unread = sorted(roster.unread)
        new = frozenset(name for name in unread if self._store.hashes(namespace, name) is None)
        if len(new) > MANY_SECRETS:
            await self._read_labelled(namespace, new)
        for name in unread:
            try:
                roster.learn(name, await self.secret(namespace, name))
            except ClusterError as error:
                roster.learn(name, UNREAD)
                failure = failure or error
        if failure is not None:
            raise failure

    async def _read_labelled(self, namespace: str, names: frozenset[str]) -> None:
        """Read many Secrets with few requests, a page at a time: those that owners allowed by label."""
        asked = {name: self._store.expect_secret(namespace, name) for name in names}
        pages = self._client.pages("Secret", namespace, selector=f"{USE_LABEL}=true", limit=SECRETS)
        async for page in pages:
            for item in page:
                name = str(item["metadata"]["name"])
                if name in asked:
                    self._store.remember_secret(namespace, name, item, asked=asked[name])

    async def list_again(self, *, only: Collection[str] | None = None) -> None:
        """List and read again all objects that belong to no service, of these or of all namespaces: watches may have missed
        deletions. What cannot be read is logged, and costs nothing else."""
        known = self._store.namespaces()
        named = known if only is None else known.intersection(only)
        for namespace in sorted(named):
            for kind in (SERVICE, TENANT, GATEWAY, SCALER, POOL):
                with _logged(f"{kind} in {namespace}"):
                    await self._list(kind, namespace)
        for namespace, name in sorted(one for one in self._store.secrets() if one[0] in named):
            with _logged(f"Secret {name} in {namespace}"):
                await self._read_secret(namespace, name)

    async def list_services(self, namespaces: Sequence[str]) -> None:
        """List the services of these namespaces, or of all if there are none: before the first pass, since a host may belong to
        a service whose watch has not begun yet."""
        for namespace in namespaces or ("",):
            with _logged(f"{SERVICE} in {namespace or 'all namespaces'}"):
                for item in await self._client.list_all(SERVICE, namespace):
                    self._store.named(SERVICE, str(item["metadata"]["namespace"])).put(item)

    async def external_engines(self, key: Key) -> Workload:
        """The engines that another owner made."""
        table = self._store.endpoints(key)
        if not table.is_listed:
            # Before the list: events that arrive during it are applied to it afterwards.
            table.begin()
            selector = f"{SERVICE_LABEL}={key.name},{EXTERNAL_LABEL}"
            table.finish(await self._client.list_all(SLICE, key.namespace, selector=selector))
        return external_workload(table.items.values())

    async def scale_target(self, namespace: str, target: ScaleTarget) -> int | Note:
        """The replicas that an object of another owner asks for; a note if it may not or cannot be scaled."""
        path, what = "spec.engine.external.scaleTargetRef", f"{target.kind} {target.name}"
        where = (target.api_version, target.kind, namespace, target.name)
        try:
            labels, replicas = await self._client.scaled(*where)
        except Refused as error:
            return Note(reasons.REFUSED, f"{path}: {what} cannot be scaled: {error.message}")
        if labels.get(USE_LABEL) == "true":
            return replicas
        return Note(
            reasons.TARGET_NOT_LABELLED,
            f"{path}: {what} lacks the label {USE_LABEL}=true, so Evenkeel does not scale it. Its owner adds it: "
            f"`kubectl label {target.kind.lower()} {target.name} {USE_LABEL}=true`.",
        )

    def pods(self, key: Key) -> Pods:
        """The pods of a service as they are when they are first asked for."""
        gateways = self._store.named(GATEWAY, key.namespace).items.values()
        behind = behind_of(key.name, gateways)
        return Pods(self._client, key, _serving(key, self._store.children(key).items, behind))

    async def replica_sets(self, key: Key, component: str) -> list[Object]:
        """The ReplicaSets of a component; listed only while a container of it cannot start, or crashes."""
        selector = f"{SERVICE_LABEL}={key.base},{COMPONENT_LABEL}={component}"
        return await self._client.list_all("ReplicaSet", key.namespace, selector=selector)

    async def look_at_apis(self) -> bool:
        """Discover the optional APIs and the default Ingress class; returns whether they changed."""
        before = self.apis, self.default_class
        found: set[str] = set()
        for api in sorted({KINDS[kind].api for kind in OPTIONAL_KINDS}):
            found |= await self._client.kinds_of(api)
        self.apis = OPTIONAL_KINDS & found
        with suppress(Refused):
            self.default_class = default_class(await self._client.read(INGRESS_CLASSES))
        return before != (self.apis, self.default_class)

    async def all_of(self, kind: str, namespace: str) -> tuple[Object, ...]:
        """All services, tenants, scalers or pools of a namespace."""
        return tuple((await self._listed(kind, namespace)).items.values())

    async def _list(self, kind: str, namespace: str) -> None:
        table = self._store.named(kind, namespace)
        table.begin()
        kept: Kept[str] = {}  # by this list alone: another one may be on its way
        async for page in self._client.pages(kind, namespace, limit=PAGE):
            kept |= table.kept(page)
        table.finish((), kept=kept)

    async def _listed(self, kind: str, namespace: str) -> ObjectTable[str]:
        """A kind in a namespace. Many passes begin at the same time: the first of them lists it, and the others wait for that."""
        table = self._store.named(kind, namespace)
        async with self._lists[kind, namespace]:
            if not table.is_listed:
                await self._list(kind, namespace)
        return table

    async def _scalers(self, namespace: str) -> tuple[Object, ...]:
        """Autoscalers of the namespace. A service does without the right to read them, since they are only reported."""
        try:
            return await self.all_of(SCALER, namespace)
        except Refused as error:
            _log.info("%s: cannot list HorizontalPodAutoscalers: %s", namespace, error)
            return ()

    async def _children(
        self, key: Key, *, relist: bool
    ) -> tuple[Mapping[Ref, Object], frozenset[str]]:
        """The generated objects, and optional kinds that the operator may not read."""
        table = self._store.children(key)
        if relist or not table.is_listed:
            table.begin()
            found: list[Object] = []
            forbidden = set()
            for kind in KINDS:
                if kind in OPTIONAL_KINDS and kind not in self.apis:
                    continue
                selector = f"{SERVICE_LABEL}={key.base}"
                try:
                    found += await self._client.list_all(kind, key.namespace, selector=selector)
                except Refused:
                    if kind not in OPTIONAL_KINDS:
                        raise
                    forbidden.add(kind)
            self._store.take_stale(key)
            table.finish(found)
            self._forbidden[key] = frozenset(forbidden)
        for ref in self._store.take_stale(key):
            item = await self._client.get(ref.kind, key.namespace, ref.name)
            if item is None:
                table.drop(ref)
            else:
                table.put(item)
        return table.items, self._forbidden.get(key, frozenset())

    async def secret(self, namespace: str, name: str) -> NamedSecret | None:
        """A Secret that a resource names; None if it is missing. Its changes trigger passes from now on."""
        for _ in range(READS):  # an event during a read asks for another one
            if self._store.hashes(namespace, name) is None:
                await self._read_secret(namespace, name)
        known = self._store.hashes(namespace, name)
        if known is None:
            raise Unreachable(f"Secret {name} in {namespace} changes faster than it can be read")
        found = None if known is None else known.secret
        return replace(found, labelled=True) if found and self._any_secret else found

    async def _read_secret(self, namespace: str, name: str) -> None:
        asked = self._store.expect_secret(namespace, name)
        secret = await self._client.get("Secret", namespace, name)
        self._store.remember_secret(namespace, name, secret, asked=asked)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """A read that others do not depend on."""
    try:
        yield
    except ClusterError as error:
        _log.warning("cannot list %s: %s", what, error)


def _serving(key: Key, children: Mapping[Ref, Object], behind: Behind | None) -> Behind | None:
    """The gateway whose routers serve the service now: until one is ready, its own routers do, if it has any."""
    has_own = Ref("Deployment", router_name(key.name)) in children
    return None if behind is None or (has_own and not behind.ready) else behind


def _is_external(raw: Object, service: Object | None) -> bool:
    """Whether another owner made the engines, by the newest spec or by the Service of the spec in use."""
    engine = (raw.get("spec") or {}).get("engine") or {}
    in_use = service is not None and EXTERNAL_LABEL in labels_of(service)
    return in_use or bool(engine.get("external"))
