"""Builds the RouterConfig from validated resources, for the operator and for `evenkeel up`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    AtZero,
    ClientConfig,
    ClusterConfig,
    LimitsConfig,
    ListenConfig,
    PrefixConfig,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    StateConfig,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_contract.spec import FairInferenceService, InferenceTenant, ServiceSpec
from evenkeel_contract.spec.service import LabelSelector, SelectorOperator
from evenkeel_contract.spec.tenant import TenantRateLimits

KeyHashes = Mapping[tuple[str, str, str], str]
"""(namespace, Secret, key in it) → lower-case hexadecimal SHA-256 of the API key."""


def router_config(
    service: FairInferenceService,
    *,
    tenants: Iterable[InferenceTenant],
    key_hashes: KeyHashes,
    listen: ListenConfig,
    replicas: Sequence[ReplicaConfig] = (),
    cluster: ClusterConfig | None = None,
    admin_token_sha256: str | None = None,
    state: StateConfig | None = None,
) -> RouterConfig:
    """The configuration of the routers of `service`.

    The fleet is a list (`replicas`), or routers discover it (`cluster`). Tenants that the service does not select are
    left out. So are API keys whose Secret has no hash in `key_hashes`. Entries are sorted by name, so that equal
    input gives equal bytes. `state` holds settings that no resource has: paths, peers, values of Secrets.
    """
    spec = service.spec
    selected = [tenant for tenant in tenants if serves(service, tenant)]
    return RouterConfig(
        namespace=service.metadata.namespace,
        service=service.metadata.name,
        model=spec.model.name,
        listen=listen,
        scheduling=SchedulingConfig(
            fleet_policy=spec.scheduling.fleet_policy,
            input_token_weight=spec.scheduling.input_token_weight,
            output_token_weight=spec.scheduling.output_token_weight,
            worker_quantum=spec.scheduling.worker_quantum,
            client_quantum=spec.scheduling.client_quantum,
        ),
        prefix=PrefixConfig(
            mode=spec.router.prefix.mode, text_block_bytes=spec.router.prefix.text_block_bytes
        ),
        limits=_limits(service),
        tenancy=TenancyConfig(
            anonymous=spec.tenancy.anonymous,
            trusted_proxies=spec.tenancy.trusted_proxies,
            tenants=tuple(
                _tenant(tenant, key_hashes)
                for tenant in sorted(selected, key=lambda tenant: tenant.metadata.name)
            ),
        ),
        state=state or StateConfig(),
        replicas=tuple(sorted(replicas, key=lambda replica: replica.name)),
        cluster=cluster,
        at_zero=_at_zero(spec, scaled=cluster is not None),
        admin_token_sha256=admin_token_sha256,
        ttft_threshold_s=None if spec.slo.ttft is None else spec.slo.ttft.threshold.seconds,
    )


def serves(service: FairInferenceService, tenant: InferenceTenant) -> bool:
    """Whether `tenant` may use `service`: the namespace is the same and the selector matches."""
    same_namespace = tenant.metadata.namespace == service.metadata.namespace
    return same_namespace and selects(service.spec.tenancy.selector, tenant.metadata.labels)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches the labels, as in Kubernetes; an empty selector matches all."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for term in selector.match_expressions:
        inside = labels.get(term.key) in term.values
        holds = {
            SelectorOperator.IN: inside,
            SelectorOperator.NOT_IN: not inside,
            SelectorOperator.EXISTS: term.key in labels,
            SelectorOperator.DOES_NOT_EXIST: term.key not in labels,
        }
        if not holds[term.operator]:
            return False
    return True


def _at_zero(spec: ServiceSpec, *, scaled: bool) -> AtZero:
    """`scaled`: an operator acts on `spec.autoscaling`, as on a cluster."""
    if spec.autoscaling is not None:
        return AtZero.ACTIVATE if scaled and spec.autoscaling.wakes else AtZero.WAIT
    return AtZero.REFUSE if spec.engine.replicas == 0 else AtZero.WAIT


def _limits(service: FairInferenceService) -> LimitsConfig:
    limits = service.spec.router.limits
    return LimitsConfig(
        max_body_bytes=limits.max_body_size.whole,
        queue_timeout_s=limits.queue_timeout.seconds,
        activation_timeout_s=limits.activation_timeout.seconds,
        first_token_timeout_s=limits.first_token_timeout.seconds,
        max_concurrent_per_client=limits.max_concurrent_per_client,
    )


def _tenant(tenant: InferenceTenant, key_hashes: KeyHashes) -> TenantConfig:
    spec, namespace = tenant.spec, tenant.metadata.namespace
    hashes = (
        (key, key_hashes.get((namespace, key.secret_ref.name, key.secret_ref.key)))
        for key in sorted(spec.api_keys, key=lambda key: key.name)
    )
    return TenantConfig(
        namespace=namespace,
        name=tenant.metadata.name,
        weight=spec.weight,
        default_client_weight=spec.default_client_weight,
        clients=tuple(
            ClientConfig(name=client.name, weight=client.weight)
            for client in sorted(spec.clients, key=lambda client: client.name)
        ),
        api_keys=tuple(
            ApiKeyConfig(name=key.name, client=key.client, sha256=sha256)
            for key, sha256 in hashes
            if sha256 is not None
        ),
        limits=TenantLimits(
            requests_per_minute=spec.limits.requests_per_minute,
            tokens_per_minute=spec.limits.tokens_per_minute,
            max_concurrent=spec.limits.max_concurrent,
            burst_requests=_burst(spec.limits, spec.limits.requests_per_minute),
            burst_tokens=_burst(spec.limits, spec.limits.tokens_per_minute),
        ),
    )


def _burst(limits: TenantRateLimits, per_minute: int) -> int | None:
    """Rounded down, but at least 1: with less no request could start."""
    return max(1, int(limits.burst.of(per_minute))) if per_minute else None
