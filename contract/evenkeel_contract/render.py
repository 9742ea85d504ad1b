"""Renders a spec into what the processes read: the RouterConfig of routers, the flags and environment of engines.

The operator uses it for containers and `evenkeel up` for local processes. Callers add ports, hosts and file paths.
Each flag must also be in OWNED_FLAGS (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from evenkeel_contract.enginesettings import ISOLATION, EngineSettings, schedule_policy_flag
from evenkeel_contract.identityheaders import UndeclaredTenants
from evenkeel_contract.names import SHARE_TENANT
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.queueorder import DEFAULT_ORDER, OnMismatch, QueueOwner
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    AtZero,
    ClientConfig,
    ClientLimits,
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
from evenkeel_contract.signedkeys import SelfServiceConfig, SignedKeysConfig, SigningKeyConfig
from evenkeel_contract.spec.credentials import SelfService
from evenkeel_contract.spec.federation import FederationSecrets, federation_config
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.model import Adapter, Model
from evenkeel_contract.spec.parts import Qoe, Recording
from evenkeel_contract.spec.resources import (
    ClientRateLimits,
    FairInferenceService,
    InferenceTenant,
    LabelSelector,
    Scheduling,
    SelectorOperator,
    ServiceSpec,
    Tenancy,
    TenantRateLimits,
)
from evenkeel_contract.tokenissuers import TokenIssuerConfig

RECORDING_FILE: Final = "/tmp/evenkeel-recording.jsonl"
"""Path of a recording in the pods of routers. Their folder /tmp ends with them."""

KeyHashes = Mapping[tuple[str, str, str], str]
"""(namespace, Secret, key in it) → lower-case hexadecimal SHA-256 of the API key."""


@dataclass(frozen=True, slots=True)
class CredentialSecrets:
    """What the Secrets that `spec.tenancy` names contain."""

    signing_keys: Mapping[str, str] = field(default_factory=dict)
    """Id → signing key."""
    key_sets: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(Secret, entry) → the keys of an issuer."""


def router_config(  # noqa: PLR0913 - each is one source of the configuration
    service: FairInferenceService,
    *,
    tenants: Iterable[InferenceTenant],
    key_hashes: KeyHashes,
    listen: ListenConfig,
    replicas: Sequence[ReplicaConfig] = (),
    cluster: ClusterConfig | None = None,
    admin_token_sha256: str | None = None,
    state: StateConfig | None = None,
    credentials: CredentialSecrets | None = None,
    cells: FederationSecrets | None = None,
) -> RouterConfig:
    """The configuration of the routers of `service`.

    The fleet is a list (`replicas`), or routers discover it (`cluster`). Tenants that the service does not select are
    left out. So are API keys whose Secret has no hash in `key_hashes`. Entries are sorted by name, so that equal
    input gives equal bytes. `state` holds settings that no resource has: paths, peers, values of Secrets. `credentials` holds
    what the Secrets of `tenancy` contain; what is missing there is left out, and its keys and tokens are refused. `cells` holds what
    those of `federation` contain; without it the service is not joined.
    """
    spec = service.spec
    selected = [tenant for tenant in tenants if serves(service, tenant)]
    return RouterConfig(
        namespace=service.metadata.namespace,
        service=service.metadata.name,
        model=spec.model.name,
        adapters=tuple(sorted(adapter.name for adapter in spec.model.adapters)),
        adapters_per_batch=spec.model.adapters_per_batch,
        allow_fields=spec.router.allow_fields,
        listen=listen,
        scheduling=_scheduling(spec.scheduling),
        prefix=PrefixConfig(
            mode=spec.router.prefix.mode,
            text_block_bytes=spec.router.prefix.text_block_bytes,
            volatile_lines=spec.router.prefix.volatile_lines,
        ),
        limits=_limits(service),
        tenancy=tenancy_of(spec.tenancy, selected, key_hashes, credentials or CredentialSecrets()),
        state=state or StateConfig(),
        replicas=tuple(sorted(replicas, key=lambda replica: replica.name)),
        cluster=cluster,
        recording=_recording(spec.router.recording),
        qoe=_qoe(spec.router.qoe),
        at_zero=_at_zero(spec, scaled=cluster is not None),
        cors_origins=() if spec.exposure.cors is None else spec.exposure.cors.allow_origins,
        admin_token_sha256=admin_token_sha256,
        tracing=spec.router.tracing,
        federation=federation_config(spec.federation, cells),
        ttft_threshold_s=None if spec.slo.ttft is None else spec.slo.ttft.threshold.seconds,
        max_lead_s=spec.slo.fairness.max_lead.seconds,
        max_share_error_percent=spec.slo.fairness.max_share_error_percent,
    )


def serves(service: FairInferenceService | FairInferenceGateway, tenant: InferenceTenant) -> bool:
    """Whether `tenant` may use `service`, or a gateway: it is in the namespace that the service names, is shared with the service's own, and
    matches the selector."""
    here, there = service.metadata.namespace, tenant.metadata.namespace
    shared = there == here or is_shared(tenant.metadata.annotations, SHARE_TENANT, here)
    is_place = there == tenants_namespace(service)
    return is_place and shared and selects(service.spec.tenancy.selector, tenant.metadata.labels)


def is_shared(annotations: Mapping[str, str], annotation: str, namespace: str) -> bool:
    """Whether the annotation of an owner lists a namespace, or `*` for all."""
    shared = {one.strip() for one in annotations.get(annotation, "").split(",")}
    return not shared.isdisjoint({"*", namespace})


def tenants_namespace(service: FairInferenceService | FairInferenceGateway) -> str:
    """Where the tenants of the service are."""
    return service.spec.tenancy.namespace or service.metadata.namespace


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


def _scheduling(scheduling: Scheduling) -> SchedulingConfig:
    return SchedulingConfig(
        fleet_policy=scheduling.fleet_policy,
        queue=scheduling.queue,
        replica_policy=scheduling.replica_policy,
        rejoin=scheduling.rejoin,
        order=None if scheduling.order is DEFAULT_ORDER else scheduling.order,
        input_token_weight=scheduling.input_token_weight,
        output_token_weight=scheduling.output_token_weight,
        kv_time=scheduling.cost.kv_time,
        worker_quantum=scheduling.worker_quantum.tokens,
        client_quantum=scheduling.client_quantum.tokens,
    )


def tenancy_of(
    tenancy: Tenancy,
    tenants: Iterable[InferenceTenant],
    key_hashes: KeyHashes,
    credentials: CredentialSecrets,
) -> TenancyConfig:
    """Who may use an address: the selected tenants, with the keys that have a hash."""
    rejects = tenancy.undeclared_tenants is UndeclaredTenants.REJECT
    return TenancyConfig(
        anonymous=tenancy.anonymous,
        trusted_proxies=tenancy.trusted_proxies,
        cache_sharing=tenancy.cache_sharing,
        identity_headers=tenancy.identity_headers or None,
        undeclared_tenants=None if rejects else tenancy.undeclared_tenants,
        undeclared_tenant_weight=None if rejects else tenancy.undeclared_tenant_weight,
        signed_keys=_signed_keys(tenancy, credentials.signing_keys),
        jwt=tuple(_issuers(tenancy, credentials.key_sets)) or None,
        tenants=tuple(
            tenant_config(tenant, key_hashes)
            for tenant in sorted(tenants, key=lambda tenant: tenant.metadata.name)
        ),
    )


def _signed_keys(tenancy: Tenancy, keys: Mapping[str, str]) -> SignedKeysConfig | None:
    if tenancy.signed_keys is None or not keys:
        return None
    return SignedKeysConfig(
        keys=tuple(SigningKeyConfig(id=id_, secret=keys[id_]) for id_ in sorted(keys)),
        max_lifetime_s=int(tenancy.signed_keys.max_lifetime.seconds),
        self_service=_self_service(tenancy.signed_keys.self_service),
    )


def _self_service(spec: SelfService | None) -> SelfServiceConfig | None:
    if spec is None:
        return None
    return SelfServiceConfig(
        keys_per_client=spec.keys_per_client, lifetime_s=int(spec.lifetime.seconds)
    )


def _issuers(
    tenancy: Tenancy, key_sets: Mapping[tuple[str, str], str]
) -> Iterator[TokenIssuerConfig]:
    for issuer in tenancy.jwt:
        ref = issuer.secret_ref
        jwks = None if ref is None else key_sets.get((ref.name, ref.key))
        if ref is None or jwks is not None:
            yield TokenIssuerConfig(
                issuer=issuer.issuer,
                audience=issuer.audience,
                jwks_URL=issuer.jwks_URL,
                jwks=jwks,
                tenant_claim=issuer.tenant_claim,
                client_claim=issuer.client_claim,
                groups_claim=issuer.groups_claim,
                tenant_of=issuer.tenant_of,
                allowed_tenants=issuer.allowed_tenants,
                leeway_s=int(issuer.leeway.seconds),
            )


def _at_zero(spec: ServiceSpec, *, scaled: bool) -> AtZero:
    """`scaled`: an operator acts on `spec.autoscaling`, as on a cluster."""
    if spec.autoscaling is not None:
        return AtZero.ACTIVATE if scaled and spec.autoscaling.wakes else AtZero.WAIT
    return AtZero.REFUSE if spec.engine.replicas == 0 else AtZero.WAIT


def _recording(recording: Recording | None) -> RecordingConfig | None:
    if recording is None:
        return None
    return RecordingConfig(
        file=RECORDING_FILE, start=recording.start, max_bytes=recording.max_size.whole
    )


def _qoe(qoe: Qoe | None) -> QoeConfig | None:
    if qoe is None:
        return None
    return QoeConfig(
        expected_ttft_s=qoe.expected_ttft.seconds,
        expected_itl_s=qoe.expected_itl.seconds,
        delivery=qoe.delivery,
    )


def _limits(service: FairInferenceService) -> LimitsConfig:
    limits = service.spec.router.limits
    return LimitsConfig(
        max_body_bytes=limits.max_body_size.whole,
        queue_timeout_s=limits.queue_timeout.seconds,
        activation_timeout_s=limits.activation_timeout.seconds,
        first_token_timeout_s=limits.first_token_timeout.seconds,
        answer_timeout_s=limits.answer_timeout.seconds,
        heartbeat_s=None if limits.heartbeat is None else limits.heartbeat.seconds,
        keep_alive_timeout_s=limits.keep_alive_timeout.seconds,
        max_concurrent_per_client=limits.max_concurrent_per_client,
    )


def tenant_config(tenant: InferenceTenant, key_hashes: KeyHashes) -> TenantConfig:
    """A tenant as routers get it: with the keys whose Secret has a hash in `key_hashes`."""
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
            default_client=_default_client(spec.limits.default_client),
        ),
    )


def _default_client(limits: ClientRateLimits | None) -> ClientLimits | None:
    if limits is None:
        return None
    return ClientLimits(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        max_concurrent=limits.max_concurrent,
    )


def _burst(limits: TenantRateLimits, per_minute: int) -> int | None:
    """Burst of a limit, rounded down to a whole number but at least 1: with less no request could start. None without a limit."""
    return max(1, int(limits.burst.of(per_minute))) if per_minute else None


# The module, not the `sglang` script: the module loads plug-ins before it parses its arguments.
SGLANG_MODULE: Final = "sglang.launch_server"

COMMON_FLAGS: Final = (
    "--enable-metrics",
    "--enable-cache-report",
    "--sleep-on-idle",  # without it an idle scheduler burns a core
)
"""Flags that routers and the operator need with every runtime."""
CPU_FLAGS: Final = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--dtype=float32",
)
"""SGLang without a GPU. These settings need no kernels and serve models such as Llama."""
CPU_ADAPTER_FLAG: Final = "--lora-backend=torch_native"
"""Adapters without a GPU: the other backends need kernels."""
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compiler
    "OMP_NUM_THREADS": "1",  # two engines on two cores would compete for the cores
}
OFFLINE_ENVIRONMENT: Final[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Environment for a model in a local folder: no requests go to Hugging Face."""


def sglang_flags(spec: ServiceSpec, *, model: str, tensor_parallel: int) -> Iterator[str]:
    """`model`: a repository name or a path that SGLang loads (`hub_name`); `tensor_parallel`: GPUs per replica."""
    yield f"--model-path={model}"
    revision = hub_revision(spec.model)
    if revision:
        yield f"--revision={revision}"
    yield f"--served-model-name={spec.model.name}"
    yield f"--tensor-parallel-size={tensor_parallel}"
    yield f"--schedule-policy={schedule_policy_flag(spec.scheduling.replica_policy.value)}"
    yield from COMMON_FLAGS


def adapter_flags(model: Model, *, paths: Mapping[str, str]) -> Iterator[str]:
    """The flags of LoRA adapters, equal for both runtimes; none without adapters.

    `paths`: name of an adapter → a repository name or a path that the engine loads.
    """
    if model.adapters:
        yield "--enable-lora"
        yield f"--max-loras-per-batch={model.adapters_per_batch}"
        yield "--lora-paths"  # one flag with many values
        for adapter in model.adapters:
            yield f"{adapter.name}={paths[adapter.name]}"


def kv_events_flag(*, host: str, port: int, replay_port: int) -> str:
    """SGLang's flag for publishing and replaying KV events; host `*` means all interfaces."""
    events: dict[str, str | bool] = {
        "publisher": "zmq",
        "endpoint": f"tcp://{to_bind(host)}:{port}",
        "replay_endpoint": f"tcp://{host}:{replay_port}",
    }
    if host != "*":  # otherwise SGLang connects instead of binding
        events["bind"] = True
    return f"--kv-events-config={msgspec.json.encode(events).decode()}"


def to_bind(host: str) -> str:
    """The same IPv4 address, written with `::`: vLLM and SGLang 0.5.21 bind only if they see `*` or `::`."""
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdigit()
    return f"[::ffff:{host}]" if is_ipv4 else host


def simulator_flags(spec: ServiceSpec) -> Iterator[str]:
    """The simulator's flags, without ports."""
    yield f"--model={spec.model.name}"
    yield f"--replica-policy={spec.scheduling.replica_policy.value}"
    yield f"--client-quantum={spec.scheduling.client_quantum.to_plain()}"
    yield f"--input-token-weight={spec.scheduling.input_token_weight}"
    yield f"--output-token-weight={spec.scheduling.output_token_weight}"
    if spec.scheduling.cost.kv_time:
        yield f"--kv-time={spec.scheduling.cost.kv_time}"
    yield f"--rejoin={spec.scheduling.rejoin.value}"
    isolation = spec.scheduling.isolation
    if isolation.share != ISOLATION:  # older simulators do not know the flag
        yield f"--isolation={isolation.to_plain()}"
    if spec.scheduling.order is not DEFAULT_ORDER:  # nor this one
        yield f"--order={spec.scheduling.order.value}"


def engine_environment(spec: ServiceSpec, *, reports_port: int | None) -> dict[str, str]:
    """Environment of the SGLang plug-in. The simulator has flags for the same settings."""
    scheduling = spec.scheduling
    has_gate = scheduling.queue is not QueueOwner.ENGINE
    return EngineSettings(
        client_quantum=scheduling.client_quantum.tokens,
        input_token_weight=scheduling.input_token_weight,
        output_token_weight=scheduling.output_token_weight,
        kv_time=scheduling.cost.kv_time,
        rejoin=scheduling.rejoin.value,
        order=scheduling.order,
        isolation=scheduling.isolation.share,
        reports_port=reports_port,
        on_mismatch=spec.engine.on_mismatch if has_gate else OnMismatch.REFUSE,
    ).to_environment()


def hub_name(model: Model | Adapter) -> str | None:
    """The repository of an `hf://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest.partition("@")[0] if scheme == "hf" else None


def hub_revision(model: Model) -> str | None:
    """Branch, tag or commit of a model of Hugging Face; None if the source names none."""
    return (model.source.partition("@")[2] or None) if hub_name(model) else None


def file_path(model: Model | Adapter) -> str | None:
    """The path of a `file://` source."""
    scheme, rest = model.source.split("://", 1)
    return rest if scheme == "file" else None
