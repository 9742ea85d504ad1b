"""What a pass has read: a service or a gateway, and all objects that concern it (`observe` reads them)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from evenkeel_contract.names import (
    COMPONENT_LABEL,
    ENGINE_COMPONENT,
    MODEL_COMPONENT,
    ROUTER_COMPONENT,
    SERVICE_LABEL,
    credentials_name,
    engine_name,
)
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_kube.client import KubeClient, Refused

from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.gateways import Behind
from evenkeel_operator.core.objects import Object, Ref, labels_of
from evenkeel_operator.core.records import Credentials, read_credentials
from evenkeel_operator.core.sharding import LiveConfig
from evenkeel_operator.core.unstarted import cause, unstarted


@dataclass(slots=True)
class Pods:
    """The pods of one service. They are listed when something asks for them, and at most once."""

    client: KubeClient
    key: Key
    behind: Behind | None = None
    """The gateway whose routers serve the service now."""
    _listed: list[Object] | None = field(default=None, init=False)

    async def of(self, component: str) -> list[Object]:
        """Pods of a component, listed at the first call. Raises `ClusterError`."""
        assert component in (ENGINE_COMPONENT, MODEL_COMPONENT, ROUTER_COMPONENT)
        if self.behind is not None and component == ROUTER_COMPONENT:
            selector = f"{SERVICE_LABEL}={self.behind.base}"
            return await self.client.list_all("Pod", self.key.namespace, selector=selector)
        if self._listed is None:
            selector = f"{SERVICE_LABEL}={self.key.base}"
            self._listed = await self.client.list_all("Pod", self.key.namespace, selector=selector)
        return [pod for pod in self._listed if labels_of(pod).get(COMPONENT_LABEL) == component]

    async def unstarted(self, pods: Iterable[Object], *, now: datetime) -> dict[str, str]:
        """Names of pods that do not start → why. Their events are listed, where the operator has the right to."""
        found = {}
        for pod in unstarted(pods, now=now):
            metadata = pod["metadata"]
            fields = f"involvedObject.uid={metadata['uid']}"
            with suppress(Refused):
                events = await self.client.list_all("Event", self.key.namespace, fields=fields)
                if why := cause(events):
                    found[str(metadata["name"])] = why
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One service and all objects that concern it."""

    raw: Object
    """The FairInferenceService."""
    children: Mapping[Ref, Object]
    live: LiveConfig
    """The routers' present configuration."""
    scalers: tuple[Object, ...]
    """HorizontalPodAutoscalers of the namespace."""
    forbidden: frozenset[str] = frozenset()
    """Optional kinds that the operator may not read in this namespace."""
    pools: tuple[Object, ...] = ()
    """InferencePools of the namespace, if another owner made the engines."""
    behind: Behind | None = None
    """The gateway that has the service among its models; `pods` says whether its routers serve it already."""
    routers_token: str = ""
    """Admin token of the routers that serve the service: its own, or those of its gateway."""
    pods: Pods
    """Asked for only while a part of it is not at rest, or routers have to answer a question."""

    @property
    def key(self) -> Key:
        """The service's name and namespace."""
        return self.pods.key

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def is_leaving(self) -> bool:
        """Whether the service is being deleted. Its objects are deleted with it, and none is created."""
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def engines(self) -> Object | None:
        """The Deployment of the engines."""
        return self.child("Deployment", engine_name)

    @property
    def credentials(self) -> Credentials | None:
        """The generated keys."""
        return read_credentials(self.child("Secret", credentials_name))

    def child(self, kind: str, name_of: Callable[[str], str]) -> Object | None:
        """The object of this kind whose name is made from the service's."""
        return self.children.get(Ref(kind, name_of(self.key.base)))

    @property
    def named_at_routers(self) -> str:
        """The service that a question to its routers names: empty where they have no other."""
        return self.key.name if self.pods.behind is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGateway:
    """One gateway, and the services of its namespace."""

    seen: Observed
    services: tuple[Object, ...]
    """All services of the namespace."""
    gateways: tuple[Object, ...]
    """All gateways of the namespace."""
    configs: Mapping[str, RouterConfig]
    """Service → the configuration that routers of it alone have, or would have."""
