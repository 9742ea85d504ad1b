"""From what was found to all objects that are to be there. Pure.

Place in the pass: observe → judge → **desired** → plan → apply → status.
"""

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
from evenkeel_operator.core.accepted import Accepted, available_image, engine_image, pinned
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.credentials import Credentials
from evenkeel_operator.core.defaults import Defaults
from evenkeel_operator.core.tenants import Roster, Tenant, keep_faulty
from evenkeel_operator.manifests.accepted import accepted_map
from evenkeel_operator.manifests.credentials import credentials_secret, engine_key_ref
from evenkeel_operator.manifests.everything import manifests
from evenkeel_operator.manifests.exposure import GATEWAY_GROUP
from evenkeel_operator.manifests.monitoring import PROMETHEUS_GROUP
from evenkeel_operator.manifests.storage import LEDGER_FILE
from evenkeel_operator.manifests.subject import (
    Images,
    Manifest,
    Owner,
    Subject,
    drain_s,
)

MAX_CONFIG_BYTES: Final = 1_000_000
"""A Secret holds 1 MiB of decoded data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that decides what is to be there."""

    service: FairInferenceService
    uid: str
    accepted: Accepted
    credentials: Credentials
    tenants: Sequence[Tenant]
    roster: Roster
    config_before: RouterConfig | None
    """What routers are told now; faulty tenants keep their part of it."""
    redis_url: str | None
    apis: frozenset[str]
    defaults: Defaults
    replicas: int


@dataclass(frozen=True, slots=True)
class Desired:
    """All objects, in the order in which they are to be there, and what could not be done."""

    manifests: tuple[Manifest, ...]
    notes: tuple[Note, ...]
    image: str
    """Of the engines."""
    available_image: str | None = None
    """That they would have, were another one not pinned."""


def desired(given: Inputs) -> Desired:
    """Everything of one service. Equal input, equal objects."""
    owner = Owner(given.service.metadata.name, given.service.metadata.namespace, given.uid)
    accepted = pinned(given.service, given.accepted, given.defaults)
    config = dump_router_config(told_to_routers(given))
    notes = list(_notes(given))
    if len(config) > MAX_CONFIG_BYTES:
        notes.append(
            Note(
                reasons.CONFIG_TOO_LARGE,
                f"tenants and keys make {len(config)} bytes, a Secret holds {MAX_CONFIG_BYTES}; "
                "the routers go by what they were told before",
            )
        )
        before = given.config_before
        config = b"" if before is None else dump_router_config(before)
    image = engine_image(given.service, accepted, given.defaults)
    subject = Subject(
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
        accepted_map(owner, accepted),
        credentials_secret(owner, given.credentials),
        *manifests(subject, replicas=given.replicas),
    )
    available = available_image(given.service, accepted, given.defaults)
    return Desired(found, tuple(notes), image, available)


def told_to_routers(given: Inputs) -> RouterConfig:
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
        store = StateStore.PEERS  # until its Secret is there (a note says so)
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
                reasons.API_ABSENT,
                f"spec.exposure.httpRoute: the cluster has no HTTPRoute ({GATEWAY_GROUP}/v1); "
                "install the Gateway API",
            )
        )
    if spec.slo != Slo() and "PrometheusRule" not in given.apis:
        found.append(
            Note(
                reasons.API_ABSENT,
                f"spec.slo: the cluster has no PrometheusRule ({PROMETHEUS_GROUP}/v1), so nobody is alerted; "
                "install the Prometheus operator",
            )
        )
    redis = spec.router.state.redis
    if redis is not None and given.redis_url is None:
        ref = redis.url_secret_ref
        found.append(
            Note(
                reasons.SECRET_MISSING,
                f"spec.router.state.redis.urlSecretRef: Secret {ref.name} has no entry {ref.key}; "
                "routers keep the ledger among themselves until it has",
            )
        )
    return found
