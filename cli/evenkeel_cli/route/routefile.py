"""The file of `evenkeel route`, and the RouterConfig that follows from it.

Options of the command line become a document of the same form, so both have the same rules. Sections that a RouterConfig
has too keep its names: `scheduling`, `prefix`, `limits`, `state`. Durations are seconds, and sizes are bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final
from urllib.parse import urlsplit

from evenkeel_contract.decode import salvage
from evenkeel_contract.federationconfig import FederationConfig
from evenkeel_contract.identityheaders import (
    IDENTITY_HEADERS,
    IdentityHeader,
    UndeclaredTenants,
)
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    ClientConfig,
    LimitsConfig,
    ListenConfig,
    Name,
    PoolConfig,
    Positive,
    PrefixConfig,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    ShareAcross,
    StateConfig,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
    Weight,
)
from evenkeel_contract.routerdocument import check_router_config
from evenkeel_contract.signedkeys import SignedKeysConfig
from evenkeel_contract.tokenissuers import MAX_ISSUERS, TokenIssuerConfig
from evenkeel_contract.tracingconfig import TracingConfig
from evenkeel_contract.values import (
    FIELD_NAME,
    PRINTABLE,
    Cidr,
    Fault,
    Length,
    UniqueBy,
    Url,
    did_you_mean,
    show,
    without_echoes,
)

from evenkeel_cli.route.models import ModelNames
from evenkeel_cli.yamlfile import YamlFault, given_twice, parse_documents

NAMESPACE: Final = "default"
SERVICE: Final = "route"
"""Names of the service in metrics and in the ledger."""
ANONYMOUS_SHARE: Final = "set anonymous: Share"
"""What the file says to let requests in that have no key."""
DEFAULT_CLIENT: Final = "default"
"""The client of keys that belong to a tenant as a whole."""

Key = Annotated[str, Length(1, 4096), PRINTABLE]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReplica:
    """One engine that runs already."""

    url: Annotated[str, Url(bare=True)]
    """`http://host:port`, without a path."""
    name: Name | None = None
    """Name of the engine in metrics and logs. If not set, it is `host:port`."""
    api_key: Key | None = None
    """Bearer key that the engine requires; not set if it requires none."""
    reports: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of the engine's reports port, if it runs the plug-in."""
    kv_events: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of the engine's KV events, with prefix mode Tokens."""
    kv_replay: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of the replay of the engine's KV events; required with `kvEvents`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteClient:
    """One client of a tenant."""

    name: Name
    weight: Weight = 1
    """Weight of the client against the other clients of the tenant."""
    keys: tuple[Key, ...] = ()
    """API keys that identify the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTenant:
    """One tenant."""

    name: Name
    weight: Weight = 1
    """Weight of the tenant against the other tenants, however many clients it has."""
    keys: tuple[Key, ...] = ()
    """API keys of a tenant without named clients: they identify its client `default`."""
    clients: Annotated[tuple[RouteClient, ...], UniqueBy(("name",))] = ()
    limits: TenantLimits = field(default_factory=TenantLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteScheduling(SchedulingConfig):
    """The scheduling of a RouterConfig, but the router orders the queue of an engine without the plug-in."""

    queue: QueueOwner = QueueOwner.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteModel:
    """One of several models behind the address."""

    replicas: Annotated[tuple[RouteReplica, ...], Length(1, 1024)]
    name: Name | None = None
    """Model name that clients send. If not set, clients send the name that the engines know."""
    aliases: Annotated[tuple[Name, ...], Length(0, 127)] = ()
    """Other names that clients may send; they need `name`."""
    model: Name | None = None
    """Model name that the engines know. If not set, the router asks the engines (`GET /v1/models`) when it starts."""
    tenants: tuple[Name, ...] | None = None
    """Tenants that may use the model. If not set, all tenants may."""
    fallback: Annotated[tuple[Name, ...], Length(0, 8)] = ()
    """Names of other models that serve a request in this order, if this one has no replica or is overloaded."""
    gpus: Positive = 1
    """GPUs of each engine. They count with `shareAcross: Gateway`."""
    scheduling: RouteScheduling | None = None
    """Replaces that of the file."""
    prefix: PrefixConfig | None = None
    """Replaces that of the file."""
    qoe: QoeConfig | None = None
    """Replaces that of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFile:
    """The document."""

    replicas: Annotated[tuple[RouteReplica, ...], Length(0, 1024)] = ()
    """The engines of the only model; or use `models`."""
    models: Annotated[tuple[RouteModel, ...], Length(0, 128)] = ()
    """Several models behind one address, each with its engines."""
    share_across: ShareAcross = ShareAcross.NONE
    """Where a tenant's weight holds, with `models`. None: inside each model. Gateway: over all models, in seconds of their GPUs."""
    tenants: Annotated[tuple[RouteTenant, ...], UniqueBy(("name",))] = ()
    model: Name | None = None
    """Model name that clients send, with `replicas`. If not set, the router asks the engines (`GET /v1/models`) when it starts."""
    anonymous: Anonymous = Anonymous.REJECT
    """Requests without a key: they get 401 (Reject), or all of them are one client (Share)."""
    trusted_proxies: tuple[Annotated[str, Cidr()], ...] = ()
    """Networks whose header `x-evenkeel-client` the router accepts as the client's name."""
    identity_headers: Annotated[tuple[IdentityHeader, ...], Length(0, IDENTITY_HEADERS)] = ()
    """Headers by which these networks name the tenant and the client."""
    undeclared_tenants: UndeclaredTenants = UndeclaredTenants.REJECT
    """Requests whose tenant is not in `tenants`: they get 403 (Reject), are of one tenant (Share), or of a tenant each (Accept)."""
    undeclared_tenant_weight: Weight = 1
    """Weight of each undeclared tenant (Accept), or of all together (Share)."""
    signed_keys: SignedKeysConfig | None = None
    """API keys that name their client themselves (`evenkeel keys create`). `state.revocations` is required with it."""
    jwt: Annotated[
        tuple[TokenIssuerConfig, ...], UniqueBy(("issuer", "audience")), Length(0, MAX_ISSUERS)
    ] = ()
    """Issuers whose tokens identify clients."""
    scheduling: RouteScheduling = field(default_factory=RouteScheduling)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    allow_fields: Annotated[tuple[Annotated[str, FIELD_NAME], ...], Length(0, 64)] = ()
    """Fields of bodies that engines get although they are not listed, such as `priority`."""
    state: StateConfig = field(default_factory=StateConfig)
    tracing: TracingConfig | None = None
    """Traces of requests. If not set, there are none."""
    recording: RecordingConfig | None = None
    qoe: QoeConfig | None = None
    """Quality of experience of streams. If not set, it is not measured, and streams are not paced."""
    federation: FederationConfig | None = None
    """Other cells of the service. If not set, these engines are all of it."""


Read = tuple[RouteFile | None, tuple[Fault, ...]]
"""A document and no faults, or None and every fault."""


def parse_route_file(data: bytes, name: str) -> Read:
    """Read the bytes of a file called `name`. The path of a fault begins with the file and its line."""
    try:
        documents = parse_documents(data, name)
    except YamlFault as error:
        where = name if error.line is None else f"{name}:{error.line}"
        return None, (Fault(where, error.message),)
    if len(documents) != 1:
        of_up = any(isinstance(one.data, dict) and "kind" in one.data for one in documents)
        hint = "; `evenkeel up` runs a file of resources" if of_up else ""
        return None, (Fault(name, f"must have exactly one document, not {len(documents)}{hint}"),)
    (document,) = documents
    repeated = [
        Fault(f"{name}:{position.line}", given_twice(key)) for position, key in document.repeated
    ]
    route, faults = check_route(document.data)
    found = [
        Fault(f"{name}:{document.position_of(fault.path).line}: {fault.path}", fault.message)
        for fault in faults
    ]
    return (None, (*repeated, *found)) if repeated or found else (route, ())


def check_route(data: object) -> Read:
    """Decode a document and check its rules."""
    route, faults = salvage(RouteFile, data)
    config = router_config_of(
        route, ModelNames(route.model or "unknown"), pools=unnamed(route), listen=ListenConfig()
    )
    found = map(of_file, filter(_is_of_file, check_router_config(config)))
    faults += tuple(without_echoes((*_rules(route), *found), faults))
    return (None if faults else route), faults


def router_config_of(
    route: RouteFile,
    models: ModelNames,
    *,
    pools: Sequence[ModelNames] = (),
    listen: ListenConfig,
    replica_key: str | None = None,
    admin_token_sha256: str | None = None,
) -> RouterConfig:
    """The RouterConfig. `models`: the names that the engines serve, and `pools` those of each of several models; `replica_key`: of
    replicas that the file gives no key."""
    return RouterConfig(
        namespace=NAMESPACE,
        service=SERVICE,
        model=SERVICE if route.models else models.model,
        pools=tuple(
            _pool(route, one, names, replica_key)
            for one, names in zip(route.models, pools, strict=True)
        ),
        share_across=None if route.share_across is ShareAcross.NONE else route.share_across,
        model_aliases=models.aliases,
        adapters=models.adapters,
        listen=listen,
        scheduling=route.scheduling,
        prefix=route.prefix,
        limits=route.limits,
        allow_fields=route.allow_fields,
        tenancy=TenancyConfig(
            anonymous=route.anonymous,
            trusted_proxies=route.trusted_proxies,
            tenants=tuple(_tenant(tenant) for tenant in route.tenants),
            identity_headers=route.identity_headers or None,
            undeclared_tenants=route.undeclared_tenants,
            undeclared_tenant_weight=route.undeclared_tenant_weight,
            signed_keys=route.signed_keys,
            jwt=route.jwt or None,
        ),
        state=route.state,
        recording=route.recording,
        qoe=route.qoe,
        replicas=()
        if route.models
        else tuple(_replica(one, replica_key) for one in route.replicas),
        admin_token_sha256=admin_token_sha256,
        tracing=route.tracing,
        federation=route.federation,
    )


def unnamed(route: RouteFile) -> tuple[ModelNames, ...]:
    """Names of several models where the engines were not asked."""
    return tuple(
        ModelNames(one.model or one.name or f"unknown-{number}")
        for number, one in enumerate(route.models)
    )


def _pool(
    route: RouteFile, given: RouteModel, names: ModelNames, replica_key: str | None
) -> PoolConfig:
    return PoolConfig(
        service=given.name or names.model,
        model=names.model,
        names=() if given.name is None else (given.name, *given.aliases),
        model_aliases=names.aliases,
        adapters=names.adapters,
        tenants=given.tenants,
        fallback=given.fallback,
        gpus=given.gpus if route.share_across is ShareAcross.GATEWAY else None,
        allow_fields=route.allow_fields,
        scheduling=given.scheduling or route.scheduling,
        prefix=given.prefix or route.prefix,
        limits=route.limits,
        replicas=tuple(_replica(replica, replica_key) for replica in given.replicas),
        recording=route.recording,
        qoe=given.qoe or route.qoe,
    )


def sha256(text: str) -> str:
    """The SHA-256 of a key or token in hexadecimal digits, as a RouterConfig has it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _replica(given: RouteReplica, replica_key: str | None) -> ReplicaConfig:
    return ReplicaConfig(
        name=name_of(given),
        url=given.url.rstrip("/"),
        reports=given.reports,
        kv_events=given.kv_events,
        kv_replay=given.kv_replay,
        api_key=given.api_key or replica_key,
    )


def name_of(replica: RouteReplica) -> str:
    """Name of a replica in metrics and logs."""
    return replica.name or urlsplit(replica.url).netloc or replica.url


def _tenant(given: RouteTenant) -> TenantConfig:
    clients = [ClientConfig(name=one.name, weight=one.weight) for one in given.clients]
    if given.keys and all(one.name != DEFAULT_CLIENT for one in given.clients):
        clients.append(ClientConfig(name=DEFAULT_CLIENT))
    return TenantConfig(
        namespace=NAMESPACE,
        name=given.name,
        weight=given.weight,
        clients=tuple(clients),
        api_keys=tuple(
            ApiKeyConfig(name=f"key-{number}", client=client, sha256=sha256(key))
            for number, (client, _, key) in enumerate(_keys_of(given, ""))
        ),
        limits=given.limits,
    )


def _keys_of(tenant: RouteTenant, path: str) -> Iterator[tuple[str, str, str]]:
    """(client, path of the key, key) of a tenant at `path`."""
    for k, key in enumerate(tenant.keys):
        yield DEFAULT_CLIENT, f"{path}.keys[{k}]", key
    for c, client in enumerate(tenant.clients):
        for k, key in enumerate(client.keys):
            yield client.name, f"{path}.clients[{c}].keys[{k}]", key


def _rules(route: RouteFile) -> Iterator[Fault]:
    yield from _model_rules(route)
    for path, replicas in (
        ("", route.replicas),
        *((f"models[{m}].", model.replicas) for m, model in enumerate(route.models)),
    ):
        yield from _repeated(
            (f"{path}replicas[{r}].{'name' if one.name else 'url'}", name_of(one), "the same name")
            for r, one in enumerate(replicas)
        )
    keys = [
        (path, key)
        for t, tenant in enumerate(route.tenants)
        for _, path, key in _keys_of(tenant, f"tenants[{t}]")
    ]
    for path, key in keys:
        if not key.isascii() or " " in key:  # without the key, which is a secret
            yield Fault(path, "must be ASCII without spaces")
    yield from _repeated((path, key, "the same key") for path, key in keys)
    others = route.trusted_proxies or route.signed_keys or route.jwt
    if not keys and not others and route.anonymous is Anonymous.REJECT:
        yield Fault(
            "tenants",
            f"no tenant has a key, so every request would get 401; add a key, or {ANONYMOUS_SHARE}",
        )


def _model_rules(route: RouteFile) -> Iterator[Fault]:
    if not route.replicas and not route.models:
        yield Fault("replicas", "is required; for several models, give models instead")
    if route.models:
        for name, given in (("replicas", bool(route.replicas)), ("model", route.model is not None)):
            if given:
                yield Fault(name, "is set together with models; each of the models has its own")
    tenants = [tenant.name for tenant in route.tenants]
    for m, model in enumerate(route.models):
        if model.aliases and model.name is None:
            yield Fault(f"models[{m}].aliases", "needs name; set the name that clients send")
        for t, tenant in enumerate(model.tenants or ()):
            if tenant not in tenants:
                message = f"{show(tenant)} is not one of tenants{did_you_mean(tenant, tenants)}"
                yield Fault(f"models[{m}].tenants[{t}]", message, about=("tenants",))


def of_file(fault: Fault) -> Fault:
    """A fault of the RouterConfig with its path in the file, which has the fields of `tenancy` at its top, and models for pools."""
    path, *about = (
        one.removeprefix("tenancy.").replace("pools[", "models[").replace("].names", "].name")
        for one in (fault.path, *fault.about)
    )
    return Fault(path, fault.message.replace("pools[", "models["), about=tuple(about))


def _repeated(entries: Iterable[tuple[str, str, str]]) -> Iterator[Fault]:
    """A fault for each entry (path, value, what it is) whose value an earlier one has."""
    first: dict[str, str] = {}
    for path, value, what in entries:
        seen = first.setdefault(value, path)
        if seen != path:
            yield Fault(path, f"has {what} as {seen}", about=(seen,))


def _is_of_file(fault: Fault) -> bool:
    """Whether a fault is one of the file. Repeated keys are found in the file itself, and ports are options."""
    return not fault.path.startswith(("tenancy.tenants", "listen", "adminToken"))
