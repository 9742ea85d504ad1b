"""The engines: a Deployment, and the headless Service whose endpoints are the replicas."""

from __future__ import annotations

from typing import Any, Final

from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ENGINE_KEY_LABEL,
    ENGINE_PORT,
    HTTP_PORT_NAME,
    KV_EVENTS_PORT,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT,
    KV_REPLAY_PORT_NAME,
    REPORTS_PORT,
    REPORTS_PORT_NAME,
    engine_name,
)
from evenkeel_contract.quantities import CountOrPercent
from evenkeel_contract.spec import Runtime

from evenkeel_operator.core.gates import GATES, LAST_WORDS
from evenkeel_operator.manifests import command
from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest, selector
from evenkeel_operator.manifests.pods import (
    CONTAINER_SECURITY,
    EXIT_MARGIN_S,
    LEAVE_ROTATION_S,
    POD_SECURITY,
    PRE_STOP,
    pod_template,
    probe,
    spread,
)
from evenkeel_operator.manifests.storage import model_mounts, model_volumes

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
    match = selector(context.owner, ENGINE_COMPONENT)
    pod = pod_template(
        context,
        ENGINE_COMPONENT,
        pod=_pod(context, match),
        overlay=context.spec.engine.template,
        extra_labels={ENGINE_KEY_LABEL: context.engine_key.id},
    )
    rollout = context.spec.engine.rollout
    found = manifest(
        context.owner,
        api="apps/v1",
        kind="Deployment",
        name=engine_name(context.name),
        component=ENGINE_COMPONENT,
    )
    found["spec"] = {
        "replicas": replicas,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
        "selector": {"matchLabels": match},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": _int_or_percent(rollout.max_surge),
                "maxUnavailable": _int_or_percent(rollout.max_unavailable),
            },
        },
        "template": pod,
    }
    return found


def engine_service(context: BuildContext) -> Manifest:
    """Headless; slices list replicas that are not ready too, and routers decide for themselves (design §5)."""
    found = manifest(
        context.owner,
        api="v1",
        kind="Service",
        name=engine_name(context.name),
        component=ENGINE_COMPONENT,
    )
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "selector": selector(context.owner, ENGINE_COMPONENT),
        "ports": [
            {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
            for name, port in PORTS.items()
        ],
    }
    return found


def _pod(context: BuildContext, match: dict[str, str]) -> Manifest:
    return {
        "serviceAccountName": engine_name(context.name),
        "automountServiceAccountToken": False,  # an engine does not use the API server
        "enableServiceLinks": False,  # otherwise variables of other Services could become settings
        "terminationGracePeriodSeconds": context.drain_s + LEAVE_ROTATION_S + EXIT_MARGIN_S,
        "readinessGates": GATES,
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": spread(match),
        "containers": [_container(context)],
        "volumes": model_volumes(context),
    }


def _container(context: BuildContext) -> Manifest:
    container: Manifest = {
        "name": ENGINE_COMPONENT,
        "image": context.images.engine,
        "args": list(command.engine_arguments(context.spec, key_env=KEY_ENV)),
        "env": _environment(context),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()
        ],
        "startupProbe": probe(
            "/ready",
            HTTP_PORT_NAME,
            periodSeconds=START_PERIOD_S,
            timeoutSeconds=5,
            failureThreshold=START_ATTEMPTS,
        ),
        # `/ready` and not `/health`: that generates a token and takes about a second.
        "readinessProbe": probe(
            "/ready", HTTP_PORT_NAME, periodSeconds=2, timeoutSeconds=5, failureThreshold=2
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
        "volumeMounts": model_mounts(context),
    }
    if context.spec.engine.runtime is Runtime.SGLANG:
        container["command"] = list(command.SGLANG_COMMAND)
    if context.images.pull_policy:
        container["imagePullPolicy"] = context.images.pull_policy
    return container


def _environment(context: BuildContext) -> list[Manifest]:
    key = context.engine_key
    found: list[Manifest] = [
        {
            "name": KEY_ENV,
            "valueFrom": {"secretKeyRef": {"name": key.secret, "key": key.entry}},
        },
        {"name": "HOME", "value": "/tmp"},  # the root file system is read-only
    ]
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return found
    settings = command.environment(context.spec)
    found += [{"name": name, "value": value} for name, value in settings.items()]
    found.append({"name": "HF_HOME", "value": command.CACHE_PATH})
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
    return {
        "requests": {"cpu": "1", "memory": "8Gi", gpu.resource_name: str(gpu.count)},
        "limits": {gpu.resource_name: str(gpu.count)},
    }


def _int_or_percent(value: CountOrPercent) -> Any:
    return value.to_plain()
