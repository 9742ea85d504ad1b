"""Build all objects that a service should have, from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from evenkeel_contract.federationconfig import FederationConfig
from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    SHARE_TENANT,
    engine_name,
    revocations_name,
    router_peers_name,
)
from evenkeel_contract.render import (
    CredentialSecrets,
    router_config,
    serves,
    tenants_namespace,
)
from evenkeel_contract.routerconfig import (
    ClusterConfig,
    EngineKeyConfig,
    ListenConfig,
    RouterConfig,
    StateConfig,
    StateStore,
    TenancyConfig,
)
from evenkeel_contract.spec.federation import FederationSecrets
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.parts import Slo
from evenkeel_contract.spec.resources import FairInferenceService, Tenancy

from evenkeel_operator.core import reasons
from evenkeel_operator.core.fill import Fill
from evenkeel_operator.core.gateways import Behind
from evenkeel_operator.core.objects import KINDS, Manifest
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import (
    Accepted,
    Credentials,
    Defaults,
    available_image,
    engine_image,
    pinned,
)
from evenkeel_operator.core.roster import Grant, Roster
from evenkeel_operator.core.sharding import NEARLY_FULL, Layout, LiveConfig, Planner
from evenkeel_operator.manifests.context import BuildContext, drain_s, service_account
from evenkeel_operator.manifests.engine import (
    engine_budget,
    engine_deployment,
    engine_policy,
    engine_service,
)
from evenkeel_operator.manifests.kept import credentials_secret, spec_config_map
from evenkeel_operator.manifests.model import cache_claim, model_job, model_policy
from evenkeel_operator.manifests.monitoring import pod_monitors, prometheus_rule, rules_config_map
from evenkeel_operator.manifests.router import (
    LEDGER_FILE,
    has_signed_keys,
    http_route,
    ingress,
    revocations_config_map,
    router_budget,
    router_deployment,
    router_peers_service,
    router_policy,
    router_role,
    router_role_binding,
    router_secret,
    router_service,
    state_claim,
    tenant_secrets,
)

SHOWN: Final = 3
"""Tenants that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of the objects."""

    service: FairInferenceService
    uid: str
    accepted: Accepted
    credentials: Credentials
    roster: Roster
    live: LiveConfig
    """The routers' present configuration; tenants with an invalid spec keep their part of it."""
    planner: Planner
    """What remembers how the tenants of this service were laid out."""
    host_taken: Note | None
    """Why the service may not have an Ingress or HTTPRoute."""
    redis_url: str | Note | None
    """A note: why the Secret with it cannot be used."""
    external_key: str | Note | None
    """The bearer key of engines that another owner made; a note: why its Secret cannot be used."""
    cells: FederationSecrets | Note | None
    """The token and the certificates of other cells; a note: why a Secret with them cannot be used."""
    credential_secrets: tuple[CredentialSecrets, tuple[Note, ...]]
    """What the Secrets of `tenancy` contain; why some of them cannot be used."""
    apis: frozenset[str]
    """Optional kinds that the cluster has and the operator may use."""
    forbidden: frozenset[str]
    """Optional kinds that the operator may not use."""
    defaults: Defaults
    replicas: int
    fill: Fill | None = None
    """How far the volume with the model's files is; None: no Job fills it."""
    behind: Behind | None = None
    """The gateway whose routers serve the service."""
    has_routers: bool = False
    """Whether the service has routers of its own at the moment."""

    @property
    def keeps_routers(self) -> bool:
        """Whether the service has routers of its own: without a gateway, and until a router of the gateway is ready."""
        return self.behind is None or (self.has_routers and not self.behind.ready)


@dataclass(frozen=True, slots=True)
class Desired:
    """All objects in the order in which they are applied, and what could not be built."""

    manifests: tuple[Manifest, ...]
    notes: tuple[Note, ...]
    layout: Layout
    """The contents of the Secrets with tenants."""
    image: str | None
    """Image of the engines; None if another owner made them."""
    available_image: str | None = None
    """The operator's default, if another image is pinned."""
    host_taken: bool = False
    """Whether another service has the host, so that this one has no Ingress and no HTTPRoute."""


def desired(given: Inputs) -> Desired:
    """All objects of one service. Equal input gives equal objects."""
    accepted = pinned(given.service, given.accepted, given.defaults)
    layout = given.planner.lay_out(
        router_config_of(given),
        granted(given.service, given.roster, given.live),
        given.live,
        age_of=given.roster.age_of,
    )
    notes = [*room_notes(layout), *_notes(given)]
    external = given.service.spec.engine.pods_of_others is not None
    image = None if external else engine_image(given.service, accepted)
    context = BuildContext(
        service=given.service,
        uid=given.uid,
        engine_image=image or "",
        engine_key_id=given.credentials.current.id,
        layout=layout,
        defaults=given.defaults,
        fill=given.fill,
        apis=given.apis,
        gateway=None if given.behind is None else given.behind.gateway,
        has_routers=given.keeps_routers,
    )
    found = (
        spec_config_map(context, accepted),
        credentials_secret(context, given.credentials),
        *build_all(context, replicas=given.replicas),
    )
    available = None if external else available_image(given.service, accepted, given.defaults)
    if given.host_taken is not None:
        found = tuple(item for item in found if item["kind"] not in ("Ingress", "HTTPRoute"))
    return Desired(
        found,
        tuple(notes),
        layout,
        image,
        available,
        host_taken=given.host_taken is not None,
    )


def granted(
    owner: FairInferenceService | FairInferenceGateway, roster: Roster, live: LiveConfig
) -> tuple[Grant, ...]:
    """The tenants that a service or a gateway takes, by name."""
    selector = owner.spec.tenancy.selector
    present = live.tenants(roster.special)
    own = roster.overlay(present.get)
    at_home = tenants_namespace(owner) == owner.metadata.namespace
    takes_all = at_home and not selector.match_labels and not selector.match_expressions
    if takes_all and not own:
        return roster.everyone
    found = []
    for name in sorted(roster.grants.keys() | own.keys()):
        tenant = roster.tenants[name]
        taken = takes_all or (
            # An invalid tenant is served as before.
            tenant.resource is None or serves(owner, tenant.resource)
        )
        if taken:
            found.append(own[name] if name in own else roster.grants[name])
    return tuple(found)


def room_notes(layout: Layout) -> Iterator[Note]:
    """Reports limits that are reached, or nearly."""
    if layout.left_out:
        names = ", ".join(layout.left_out[:SHOWN])
        yield Note(
            reasons.CONFIG_TOO_LARGE,
            f"{len(layout.left_out)} tenants do not fit into the configuration of the routers, so their keys are not "
            f"accepted: the youngest are {names}. docs/reference/limits.md has the limits.",
        )
    elif layout.fill >= NEARLY_FULL:
        yield Note(
            reasons.CONFIG_NEARLY_FULL,
            f"The tenants and keys use {layout.fill:.0%} of what the configuration of the routers can hold. "
            "docs/reference/limits.md has the limits.",
        )


def router_config_of(given: Inputs) -> RouterConfig:
    """The RouterConfig, without tenants."""
    name = given.service.metadata.name
    external = given.service.spec.engine.pods_of_others
    # None until the Secret with it can be used; a note reports it.
    key = None if isinstance(given.external_key, Note) else given.external_key
    config = router_config(
        given.service,
        tenants=(),
        key_hashes={},
        listen=ListenConfig(host=given.defaults.router_host),
        cluster=ClusterConfig(
            engines=engine_name(name),
            peers=router_peers_name(name),
            pod_labels={} if external is None else external.labels,
            api_key=given.credentials.current.key if external is None else key,
            api_keys=tuple(
                EngineKeyConfig(id=key.id, key=key.key) for key in given.credentials.engine_keys
            ),
            revocations=revocations_name(name) if has_signed_keys(given.service) else None,
        ),
        admin_token_sha256=given.credentials.admin_token_sha256,
        state=_state(given),
        credentials=given.credential_secrets[0],
        cells=None if isinstance(given.cells, Note) else given.cells,
    )
    return replace(
        config,
        federation=_known_cells(given) if isinstance(given.cells, Note) else config.federation,
        tenancy=keep_credentials(
            config.tenancy,
            given.service.spec.tenancy,
            before=given.live.core,
            notes=given.credential_secrets[1],
        ),
        drain_timeout_s=drain_s(given.service.spec),
        runbooks=given.defaults.monitoring.runbooks_url,
    )


def keep_credentials(
    tenancy: TenancyConfig,
    wanted: Tenancy,
    *,
    before: RouterConfig | None,
    notes: tuple[Note, ...],
) -> TenancyConfig:
    """Signing keys and issuers that routers have stay while their Secret cannot be used; a note reports it."""
    if before is None or not notes:
        return tenancy
    signed = tenancy.signed_keys
    if signed is None and wanted.signed_keys is not None:
        signed = before.tenancy.signed_keys
    present = {(issuer.issuer, issuer.audience): issuer for issuer in tenancy.jwt or ()}
    known = {(issuer.issuer, issuer.audience): issuer for issuer in before.tenancy.jwt or ()}
    named = [(issuer.issuer, issuer.audience) for issuer in wanted.jwt]
    kept = tuple(found for one in named if (found := present.get(one) or known.get(one)))
    return replace(tenancy, signed_keys=signed, jwt=kept or None)


def credential_notes(notes: tuple[Note, ...]) -> Iterator[Note]:
    """Reports Secrets of `tenancy` that cannot be used."""
    for note in notes:
        message = f"{note.message} Routers keep the keys that they have; without any, they refuse these credentials."
        yield Note(note.reason, message)


def _redis_url(given: Inputs) -> str | None:
    """Address of Redis; None until its Secret can be used; a note reports it. A Secret without the label keeps a known
    address."""
    url, before = given.redis_url, given.live.core
    if not isinstance(url, Note):
        return url
    keeps = url.reason == reasons.SECRET_NOT_LABELLED
    return before.state.redis_url if keeps and before is not None else None


def _known_cells(given: Inputs) -> FederationConfig | None:
    """The other cells as routers know them, while a Secret cannot be used: a token never goes to addresses that it was not given for."""
    return None if given.live.core is None else given.live.core.federation


def _state(given: Inputs) -> StateConfig:
    store, url = given.service.spec.router.state.store, _redis_url(given)
    if store is StateStore.REDIS and url is None:
        store = StateStore.PEERS
    return StateConfig(
        store=store,
        file=LEDGER_FILE if store is StateStore.FILE else None,
        redis_url=url if store is StateStore.REDIS else None,
        peer_token=given.credentials.admin_token,
    )


def _notes(given: Inputs) -> Iterator[Note]:
    spec = given.service.spec
    unused = {"Job"} if given.fill is None else set()
    for kind in sorted(given.forbidden - unused):
        where = f"{KINDS[kind].plural}.{KINDS[kind].group} in namespace {given.service.metadata.namespace}"
        message = f"The operator has no right to read {where}, so the service has no {kind}."
        yield Note(reasons.RIGHT_MISSING, message)
    known = given.apis | given.forbidden
    if spec.exposure.http_route is not None and "HTTPRoute" not in known:
        yield Note(
            reasons.API_MISSING,
            f"spec.exposure.httpRoute: the cluster has no HTTPRoute ({KINDS['HTTPRoute'].api}). "
            "Install the Gateway API.",
        )
    plain = given.defaults.monitoring.plain_rules
    if spec.slo != Slo() and "PrometheusRule" not in known and not plain:
        yield Note(
            reasons.API_MISSING,
            f"spec.slo: the cluster has no PrometheusRule ({KINDS['PrometheusRule'].api}), so no alerts exist. "
            "Install the Prometheus operator, or set metrics.plain.enabled of the chart.",
        )
    yield from tenants_note(given.service, given.roster)
    if given.host_taken is not None:
        yield given.host_taken
    yield from _gateway_notes(given)
    if isinstance(given.redis_url, Note):
        instead = "keep the address that they have" if _redis_url(given) else "use store Peers"
        message = (
            f"spec.router.state.redis.urlSecretRef: {given.redis_url.message} Routers {instead}."
        )
        yield Note(given.redis_url.reason, message)
    yield from credential_notes(given.credential_secrets[1])
    if isinstance(given.cells, Note):
        kept = "Routers keep the cells that they know."
        effect = kept if _known_cells(given) else "The service is not joined with other cells."
        yield Note(given.cells.reason, f"{given.cells.message} {effect}")
    if isinstance(given.external_key, Note):
        message = (
            f"spec.engine.external.apiKeySecretRef: {given.external_key.message} "
            "Routers send no key to the engines until it can be used."
        )
        yield Note(given.external_key.reason, message)


def _gateway_notes(given: Inputs) -> Iterator[Note]:
    """Reports what has no effect while a gateway serves the service."""
    if given.behind is None or given.keeps_routers:
        return
    spec, gateway = given.service.spec, given.behind.gateway
    if spec.exposure.ingress is not None or spec.exposure.http_route is not None:
        message = (
            f"spec.exposure has no effect, since gateway {gateway} serves the service"
            f"{f' at {given.behind.url}' if given.behind.url else ''}. Move it to the gateway, or remove it."
        )
        yield Note(reasons.BEHIND_GATEWAY, message)
    if spec.federation is not None:
        message = (
            f"spec.federation has no effect, since gateway {gateway} serves the service, and routers of several "
            "services have no other cells. Remove it, or take the service out of the gateway."
        )
        yield Note(reasons.BEHIND_GATEWAY, message)


def tenants_note(
    owner: FairInferenceService | FairInferenceGateway, roster: Roster
) -> Iterator[Note]:
    """Reports a service or gateway whose tenants are in another namespace, and none is shared with it.

    The same whether or not the namespace has tenants, since its names belong to another owner.
    """
    here, there = owner.metadata.namespace, tenants_namespace(owner)
    tenants = [tenant.resource for tenant in roster.tenants.values()]
    is_kept = any(resource is None for resource in tenants)
    if there == here or is_kept or any(one and serves(owner, one) for one in tenants):
        return
    yield Note(
        reasons.TENANTS_NOT_SHARED,
        f"spec.tenancy.namespace: no InferenceTenant of namespace {there} that spec.tenancy.selector selects is shared with "
        f"namespace {here}. Its administrator allows it: `kubectl -n {there} annotate itn NAME {SHARE_TENANT}={here}`.",
    )


def build_all(context: BuildContext, *, replicas: int) -> tuple[Manifest, ...]:
    """All objects except the generated keys (`credentials_secret`). Equal input gives equal objects.

    Engines of another owner get a Service, by which routers find them, and nothing that would act on their pods.
    """
    owned = context.spec.engine.pods_of_others is None
    routers = context.has_routers
    starts = context.fill is None or context.fill.has_engines
    wanted = (
        # Objects that pods need at their start, …
        service_account(context, ENGINE_COMPONENT) if owned else None,
        service_account(context, ROUTER_COMPONENT) if routers else None,
        router_role(context) if routers else None,
        router_role_binding(context) if routers else None,
        *tenant_secrets(context),
        router_secret(context),  # a gateway reads it, too
        revocations_config_map(context) if has_signed_keys(context.service) else None,
        cache_claim(context),
        state_claim(context) if routers else None,
        model_policy(context),
        model_job(context),
        # … network policies and disruption budgets, …
        engine_policy(context) if owned else None,
        router_policy(context) if routers else None,
        engine_budget(context, replicas=replicas) if owned else None,
        router_budget(context) if routers else None,
        # … Services, …
        engine_service(context),
        router_peers_service(context) if routers else None,
        router_service(context) if routers else None,
        # … the pods, engines first, since they take longer to start, …
        engine_deployment(context, replicas=replicas) if owned and starts else None,
        router_deployment(context) if routers else None,
        # … and access from outside.
        ingress(context) if routers else None,
        http_route(context) if routers else None,
        *pod_monitors(context),
        prometheus_rule(context),
        rules_config_map(context),
    )
    return tuple(found for found in wanted if found is not None)
