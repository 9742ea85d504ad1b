"""Build all objects that a service should have, from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from evenkeel_contract.names import engine_name, router_peers_name
from evenkeel_contract.render import router_config
from evenkeel_contract.routerconfig import (
    ClusterConfig,
    EngineKeyConfig,
    ListenConfig,
    RouterConfig,
    StateConfig,
    dump_router_config,
)
from evenkeel_contract.spec import FairInferenceService, StateStore
from evenkeel_contract.spec.scaling import Slo

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.credentials import Credentials
from evenkeel_operator.core.defaults import Defaults
from evenkeel_operator.core.spec_in_use import Accepted, available_image, engine_image, pinned
from evenkeel_operator.core.tenants import Roster, Tenant, keep_faulty
from evenkeel_operator.manifests.build_all import build_all
from evenkeel_operator.manifests.context import (
    BuildContext,
    Images,
    Manifest,
    Owner,
    drain_s,
)
from evenkeel_operator.manifests.exposure import GATEWAY_GROUP
from evenkeel_operator.manifests.monitoring import PROMETHEUS_GROUP
from evenkeel_operator.manifests.records import credentials_secret, engine_key_ref, spec_config_map
from evenkeel_operator.manifests.storage import LEDGER_FILE

MAX_CONFIG_BYTES: Final = 1_000_000
"""A Secret holds 1 MiB of decoded data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of the objects."""

    service: FairInferenceService
    uid: str
    accepted: Accepted
    credentials: Credentials
    tenants: Sequence[Tenant]
    roster: Roster
    config_before: RouterConfig | None
    """The routers' present configuration; tenants with an invalid spec keep their part of it."""
    redis_url: str | None
    apis: frozenset[str]
    defaults: Defaults
    replicas: int


@dataclass(frozen=True, slots=True)
class Desired:
    """All objects in the order in which they are applied, and what could not be built."""

    manifests: tuple[Manifest, ...]
    notes: tuple[Note, ...]
    image: str
    """Of the engines."""
    available_image: str | None = None
    """The operator's default, if another image is pinned."""


def desired(given: Inputs) -> Desired:
    """All objects of one service. Equal input gives equal objects."""
    owner = Owner(given.service.metadata.name, given.service.metadata.namespace, given.uid)
    accepted = pinned(given.service, given.accepted, given.defaults)
    config = dump_router_config(router_config_of(given))
    notes = list(_notes(given))
    if len(config) > MAX_CONFIG_BYTES:
        notes.append(
            Note(
                reasons.CONFIG_TOO_LARGE,
                f"The configuration of tenants and keys has {len(config)} bytes; a Secret holds {MAX_CONFIG_BYTES}. "
                "Routers keep the previous one.",
            )
        )
        before = given.config_before
        config = b"" if before is None else dump_router_config(before)
    image = engine_image(given.service, accepted, given.defaults)
    context = BuildContext(
        service=given.service,
        uid=given.uid,
        images=Images(
            engine=image,
            router=given.defaults.router_image,
            pull_policy=given.defaults.pull_policy,
            pull_secrets=given.defaults.pull_secrets,
        ),
        engine_key=engine_key_ref(owner, given.credentials),
        router_config=config,
        apis=given.apis,
        scrapers=given.defaults.scrapers,
        operator_namespace=given.defaults.operator_namespace,
        monitoring=given.defaults.monitoring,
    )
    found = (
        spec_config_map(owner, accepted),
        credentials_secret(owner, given.credentials),
        *build_all(context, replicas=given.replicas),
    )
    available = available_image(given.service, accepted, given.defaults)
    return Desired(found, tuple(notes), image, available)


def router_config_of(given: Inputs) -> RouterConfig:
    """The RouterConfig."""
    name = given.service.metadata.name
    config = router_config(
        given.service,
        tenants=given.roster.tenants,
        key_hashes=given.roster.hashes,
        listen=ListenConfig(host="0.0.0.0"),
        cluster=ClusterConfig(
            engines=engine_name(name),
            peers=router_peers_name(name),
            api_key=given.credentials.current.key,
            api_keys=tuple(
                EngineKeyConfig(id=key.id, key=key.key) for key in given.credentials.engine_keys
            ),
        ),
        admin_token_sha256=given.credentials.admin_token_sha256,
        state=_state(given),
    )
    tenants = keep_faulty(config, given.config_before, given.tenants)
    return replace(
        config,
        tenancy=replace(config.tenancy, tenants=tenants),
        drain_timeout_s=drain_s(given.service.spec),
    )


def _state(given: Inputs) -> StateConfig:
    store = given.service.spec.router.state.store
    if store is StateStore.REDIS and given.redis_url is None:
        store = StateStore.PEERS  # until its Secret exists; a note reports it
    return StateConfig(
        store=store,
        file=LEDGER_FILE if store is StateStore.FILE else None,
        redis_url=given.redis_url if store is StateStore.REDIS else None,
        peer_token=given.credentials.admin_token,
    )


def _notes(given: Inputs) -> Sequence[Note]:
    found = []
    spec = given.service.spec
    if spec.exposure.http_route is not None and "HTTPRoute" not in given.apis:
        found.append(
            Note(
                reasons.API_MISSING,
                f"spec.exposure.httpRoute: the cluster has no HTTPRoute ({GATEWAY_GROUP}/v1). "
                "Install the Gateway API.",
            )
        )
    if spec.slo != Slo() and "PrometheusRule" not in given.apis:
        found.append(
            Note(
                reasons.API_MISSING,
                f"spec.slo: the cluster has no PrometheusRule ({PROMETHEUS_GROUP}/v1), so no alerts exist. "
                "Install the Prometheus operator.",
            )
        )
    redis = spec.router.state.redis
    if redis is not None and given.redis_url is None:
        ref = redis.url_secret_ref
        found.append(
            Note(
                reasons.SECRET_MISSING,
                f"spec.router.state.redis.urlSecretRef: Secret {ref.name} has no entry {ref.key}. "
                "Routers use store Peers until it has.",
            )
        )
    return found
