"""The engines: Deployment, command line, volumes, headless Service, identity, network policy and disruption budget.

`evenkeel_contract.render` has the flags that `evenkeel up` uses too. This module adds ports, paths and the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from evenkeel_contract.listening import ALL, ALL_IPV4
from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ENGINE_KEY_LABEL,
    ENGINE_PORT,
    EXTERNAL_LABEL,
    HTTP_PORT_NAME,
    KV_EVENTS_PORT,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT,
    KV_REPLAY_PORT_NAME,
    REPORTS_PORT,
    REPORTS_PORT_NAME,
    ROUTER_COMPONENT,
    credentials_name,
    engine_name,
    gateway_base,
)
from evenkeel_contract.render import (
    SGLANG_MODULE,
    adapter_flags,
    engine_environment,
    file_path,
    hub_name,
    kv_events_flag,
    sglang_flags,
    simulator_flags,
)
from evenkeel_contract.routerconfig import PAGE_TOKENS
from evenkeel_contract.spec.model import AccessMode, Adapter, Model
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.spec.resources import ServiceSpec
from evenkeel_contract.vllm import (
    VLLM_MODULE,
    vllm_adapter_flags,
    vllm_arguments,
    vllm_environment,
    vllm_kv_events_flag,
)

from evenkeel_operator.core.literal import Language, literal
from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.records import KEY_PREFIX
from evenkeel_operator.core.rotation import GATES, LAST_WORDS
from evenkeel_operator.manifests.context import (
    CONTAINER_SECURITY,
    EXIT_MARGIN_S,
    LEAVE_ROTATION_S,
    PRE_STOP,
    BuildContext,
    disruption_budget,
    drain_s,
    manifest,
    network_policy,
    pod_security,
    pod_template,
    pods_of,
    probe,
    scrapers,
    selector,
    service_port,
    spread,
    tcp,
)
from evenkeel_operator.manifests.model import (
    engine_labels,
    init_containers,
    located,
    model_volume,
)

KEY_ENV: Final = "EVENKEEL_ENGINE_KEY"

# Downloading and loading the largest models takes most of an hour on slow storage.
START_PERIOD_S: Final = 5
START_ATTEMPTS: Final = 1080
PROGRESS_DEADLINE_S: Final = START_PERIOD_S * START_ATTEMPTS + 600

PORTS: Final = {
    HTTP_PORT_NAME: ENGINE_PORT,
    KV_EVENTS_PORT_NAME: KV_EVENTS_PORT,
    KV_REPLAY_PORT_NAME: KV_REPLAY_PORT,
    REPORTS_PORT_NAME: REPORTS_PORT,
}


def engine_deployment(context: BuildContext, *, replicas: int) -> Manifest:
    """The Deployment of the replicas. `replicas` comes from the spec or the scaler."""
    match = selector(context.name, ENGINE_COMPONENT)
    pod = pod_template(
        context,
        ENGINE_COMPONENT,
        pod=_pod(context, match),
        overlay=context.spec.engine.template,
        extra_labels={ENGINE_KEY_LABEL: context.engine_key_id, **engine_labels(context)},
    )
    rollout = context.spec.engine.rollout
    found = manifest(context, "Deployment", ENGINE_COMPONENT)
    found["spec"] = {
        "replicas": replicas,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
        "selector": {"matchLabels": match},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": rollout.max_surge.to_plain(),
                "maxUnavailable": rollout.max_unavailable.to_plain(),
            },
        },
        "template": pod,
    }
    return found


def engine_service(context: BuildContext) -> Manifest:
    """Headless; slices list replicas that are not ready too, and routers decide for themselves (design §5)."""
    found = manifest(context, "Service", ENGINE_COMPONENT)
    external = context.spec.engine.pods_of_others
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "selector": selector(context.name, ENGINE_COMPONENT),
        "ports": [service_port(name, port) for name, port in PORTS.items()],
    }
    if external is not None:
        found["metadata"]["labels"][EXTERNAL_LABEL] = "true"
        found["spec"]["selector"] = dict(external.labels)
        port = external.port or ENGINE_PORT
        found["spec"]["ports"] = [service_port(HTTP_PORT_NAME, port, port)]
    return found


def engine_policy(context: BuildContext) -> Manifest:
    """Network policy of engines. The service's routers reach every port; scrapers reach the HTTP port, whose metrics need no
    key."""
    ports = tcp(ENGINE_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT)
    routers = [pods_of(context, ROUTER_COMPONENT)]
    if context.gateway is not None:
        match = selector(gateway_base(context.gateway), ROUTER_COMPONENT)
        routers.append({"podSelector": {"matchLabels": match}})
    ingress = [
        {"from": routers, "ports": ports},
        {"from": [scrapers(context)], "ports": tcp(ENGINE_PORT)},
    ]
    return network_policy(context, ENGINE_COMPONENT, ingress)


def engine_budget(context: BuildContext, *, replicas: int) -> Manifest:
    """Disruption budget of engines: one replica at a time, never the only one (design §6: the operator surges first)."""
    most = 1 if replicas > 1 else 0
    return disruption_budget(context, ENGINE_COMPONENT, max_unavailable=most)


def _pod(context: BuildContext, match: dict[str, str]) -> Manifest:
    spec = context.spec.engine
    claims = () if spec.runtime is Runtime.SIMULATOR else spec.gpu.claims
    named = [
        {"name": one.name, "resourceClaimTemplateName": one.resource_claim_template_name}
        for one in claims
    ]
    return {
        **({"resourceClaims": named} if named else {}),
        "serviceAccountName": engine_name(context.name),
        "automountServiceAccountToken": False,  # an engine does not use the API server
        "enableServiceLinks": False,  # otherwise variables of other Services could become settings
        "terminationGracePeriodSeconds": drain_s(context.spec) + LEAVE_ROTATION_S + EXIT_MARGIN_S,
        "readinessGates": GATES,
        "securityContext": pod_security(context),
        "topologySpreadConstraints": spread(match),
        **({"initContainers": first} if (first := init_containers(context)) else {}),
        "containers": [_container(context)],
        "volumes": [volume for _, volume in volumes_of(context)],
    }


def _container(context: BuildContext) -> Manifest:
    runtime = context.spec.engine.runtime
    # SGLang's `/ready` changes when a drain begins, and its `/health` generates a token, which takes about a second.
    readiness = "/health" if runtime is Runtime.VLLM else "/ready"
    container: Manifest = {
        "name": ENGINE_COMPONENT,
        "image": context.engine_image,
        "args": list(engine_arguments(located(context.spec), host=context.defaults.engine_host)),
        "env": _environment(context),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()
        ],
        "startupProbe": probe(
            readiness,
            HTTP_PORT_NAME,
            periodSeconds=START_PERIOD_S,
            timeoutSeconds=5,
            failureThreshold=START_ATTEMPTS,
        ),
        "readinessProbe": probe(
            readiness, HTTP_PORT_NAME, periodSeconds=2, timeoutSeconds=5, failureThreshold=2
        ),
        # Only `/health` detects a scheduler that hangs. It may fail for two minutes: a long prefill delays the
        # answer.
        "livenessProbe": probe(
            "/health", HTTP_PORT_NAME, periodSeconds=30, timeoutSeconds=20, failureThreshold=4
        ),
        "lifecycle": PRE_STOP,
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": CONTAINER_SECURITY,
        "resources": _resources(context),
        "volumeMounts": [mount for mount, _ in volumes_of(context)],
    }
    if runtime in COMMANDS:
        container["command"] = list(COMMANDS[runtime])
    if context.defaults.pull_policy:
        container["imagePullPolicy"] = context.defaults.pull_policy
    return container


def _environment(context: BuildContext) -> list[Manifest]:
    key = {"name": credentials_name(context.name), "key": f"{KEY_PREFIX}{context.engine_key_id}"}
    found: list[Manifest] = [
        {
            "name": KEY_ENV,
            "valueFrom": {"secretKeyRef": key},
        },
        {"name": "HOME", "value": "/tmp"},  # the root file system is read-only
    ]
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return found
    found += [
        {"name": name, "value": literal(value, Language.POD_ARGUMENT)}
        for name, value in (
            *context.defaults.engine_variables.items(),
            *_settings(context.spec, context.defaults.engine_host).items(),
        )
    ]
    if not context.defaults.fixed_user:  # PyTorch names a folder by the user, who may have no name
        found.append({"name": "USER", "value": "nonroot"})
    found.append({"name": "HF_HOME", "value": CACHE_PATH})
    token = context.spec.model.token_secret_ref
    if token is not None:
        ref = {"name": token.name, "key": token.key}
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": ref}})
    return found


def _resources(context: BuildContext) -> Manifest:
    """GPUs and small defaults; `engine.template` sets the CPU and memory that a model needs."""
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return {"requests": {"cpu": "50m", "memory": "128Mi"}}
    gpu = context.spec.engine.gpu
    if gpu.claims:
        claims = [
            {"name": one.name, **({"request": one.request} if one.request else {})}
            for one in gpu.claims
        ]
        return {"requests": {"cpu": "1", "memory": "8Gi"}, "claims": claims}
    return {
        "requests": {"cpu": "1", "memory": "8Gi", gpu.resource_name: str(gpu.count)},
        "limits": {gpu.resource_name: str(gpu.count)},
    }


COMMANDS: Final = {
    Runtime.SGLANG: ("python3", "-m", SGLANG_MODULE),
    Runtime.VLLM: ("python3", "-m", VLLM_MODULE),
}
CACHE_PATH: Final = "/models/cache"
"""Directory for downloaded files: `spec.model.cache`, or a directory of the pod."""
CLAIM_PATH: Final = "/models/claim"
"""Where the volume of the model's `pvc://` source is mounted."""
ADAPTERS_PATH: Final = "/models/adapters"
"""Folder with a mount for each other volume of adapters, under the name of its claim."""


def engine_arguments(spec: ServiceSpec, *, host: str = ALL_IPV4) -> Iterator[str]:
    """All arguments as `--flag=value`. The kubelet expands the key, so the pod spec does not contain it, and variables in
    `spec.engine.args`."""
    for argument in _generated(spec, "[::]" if host == ALL else "*"):
        yield literal(argument, Language.POD_ARGUMENT)
    yield f"--host={host}"
    yield f"--port={ENGINE_PORT}"
    yield f"--api-key=$({KEY_ENV})"
    if spec.engine.runtime is not Runtime.VLLM:
        yield f"--page-size={PAGE_TOKENS}"
    # Last, so that a flag of the spec overrides a default; the flags above are refused in the spec.
    yield from spec.engine.args


def _generated(spec: ServiceSpec, events_host: str) -> Iterator[str]:
    """The arguments that hold names and paths of the spec, and where KV events are published."""
    runtime = spec.engine.runtime
    paths = {adapter.name: model_path(adapter, of=spec.model) for adapter in spec.model.adapters}
    if runtime is Runtime.VLLM:
        yield from _vllm(spec, events_host)
        yield from vllm_adapter_flags(spec.model, paths=paths)
    else:
        yield from _sglang(spec, events_host) if runtime is Runtime.SGLANG else _simulator(spec)
        yield from adapter_flags(spec.model, paths=paths)


def _sglang(spec: ServiceSpec, events_host: str) -> Iterator[str]:
    model = model_path(spec.model)
    yield from sglang_flags(spec, model=model, tensor_parallel=spec.engine.gpu.count)
    yield kv_events_flag(host=events_host, port=KV_EVENTS_PORT, replay_port=KV_REPLAY_PORT)


def _vllm(spec: ServiceSpec, events_host: str) -> Iterator[str]:
    yield from vllm_arguments(
        spec,
        model=model_path(spec.model),
        tensor_parallel=spec.engine.gpu.count,
        drain_s=drain_s(spec),
    )
    yield vllm_kv_events_flag(host=events_host, port=KV_EVENTS_PORT, replay_port=KV_REPLAY_PORT)


def _simulator(spec: ServiceSpec) -> Iterator[str]:
    flags = simulator_flags(spec)
    # In the order of 0.1.0: another order would change the pod, and an upgrade would restart every engine.
    yield from islice(flags, 2)
    yield f"--kv-events-port={KV_EVENTS_PORT}"
    yield f"--kv-replay-port={KV_REPLAY_PORT}"
    yield f"--reports-port={REPORTS_PORT}"
    yield from flags


def _settings(spec: ServiceSpec, host: str) -> dict[str, str]:
    """The settings of the plug-in inside the engine; the simulator has flags for them."""
    if spec.engine.runtime is Runtime.VLLM:
        return vllm_environment(spec, reports_port=REPORTS_PORT, reports_host=host)
    return engine_environment(spec, reports_port=REPORTS_PORT)


def model_path(source: Model | Adapter, *, of: Model | None = None) -> str:
    """A model, or an adapter `of` a model, for SGLang: a repository's name, or a path in the container."""
    found = hub_name(source) or file_path(source)
    if found is not None:
        return found
    claim, _, inner = source.source.split("://", 1)[1].partition("/")
    is_models = of is None or claim == claim_of(of)
    root = CLAIM_PATH if is_models else f"{ADAPTERS_PATH}/{claim}"
    return f"{root}/{inner.rstrip('/')}".rstrip("/")


def claim_of(source: Model | Adapter) -> str | None:
    """The claim of a `pvc://` source."""
    scheme, rest = source.source.split("://", 1)
    return rest.partition("/")[0] if scheme == "pvc" else None


def claims_of(model: Model) -> dict[str, tuple[str, str]]:
    """Every claim of the model and its adapters → the name of its volume and the path of its mount."""
    own = claim_of(model)
    others = {claim_of(adapter) for adapter in model.adapters} - {own, None}
    found = {} if own is None else {own: ("claim", CLAIM_PATH)}
    for number, claim in enumerate(sorted(str(claim) for claim in others)):
        found[claim] = (f"adapters-{number}", f"{ADAPTERS_PATH}/{claim}")
    return found


def volumes_of(context: BuildContext) -> Iterator[tuple[Manifest, Manifest]]:
    """Each mount of an engine's container, and the volume of its pod."""

    def pair(name: str, path: str, source: Manifest, **mount: bool) -> tuple[Manifest, Manifest]:
        return {"name": name, "mountPath": path, **mount}, {"name": name, **source}

    yield pair("tmp", "/tmp", {"emptyDir": {}})
    yield from model_volume(context)
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return
    # Tensor parallelism shares memory; a container's default of 64 MiB is not enough for NCCL.
    yield pair("shm", "/dev/shm", {"emptyDir": {"medium": "Memory"}})
    for claim, (name, path) in claims_of(context.spec.model).items():
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        yield pair(name, path, source, readOnly=True)
    yield pair("cache", CACHE_PATH, _cache_source(context))


def _cache_source(context: BuildContext) -> Manifest:
    cache = context.spec.model.cache
    if cache is None or context.spec.model.filled_by_job:
        return {"emptyDir": {}}
    claim: Manifest = {"claimName": cache.claim_name or engine_name(context.name)}
    if set(cache.access_modes) == {AccessMode.READ_ONLY_MANY}:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}
