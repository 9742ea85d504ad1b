"""Where engines find the model's files, and the pods that download them: a Job that fills a volume, or an init container.

The pods have what `spec.engine.template` says of placement, identity, variables and volumes, so that a mirror, a proxy or a CA
that engines use is used here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec
from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    MODEL_COMPONENT,
    MODEL_LABEL,
    PROBE_PORT,
    PROBE_PORT_NAME,
    engine_name,
    model_name,
)
from evenkeel_contract.spec.model import AccessMode, Model
from evenkeel_contract.spec.parts import PodTemplate, Runtime
from evenkeel_contract.spec.resources import ServiceSpec

from evenkeel_operator.core.fill import KEEPS_ANNOTATION, digest_of
from evenkeel_operator.core.literal import Language, literal
from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.rotation import LAST_WORDS
from evenkeel_operator.manifests.context import (
    CONTAINER_FIELDS,
    CONTAINER_SECURITY,
    BuildContext,
    manifest,
    network_policy,
    operators,
    pod_security,
    pod_template,
    selector,
    tcp,
    volume_claim,
)

FILLED_PATH: Final = "/models/filled"
"""Folder with the downloaded files, in a folder named by the digest of their source."""
IMAGE_PATH: Final = "/models/image"
"""Where the image of an `oci://` source is mounted."""
_VOLUME: Final = "model"
_IMAGE: Final = "model-image"
_DOWNLOAD: Final = ("python3", "-m", "evenkeel_operator.download")
_FOLLOWED: Final = (
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "serviceAccountName"),
    *("imagePullSecrets", "securityContext", "hostAliases", "dnsPolicy", "dnsConfig", "volumes"),
)
"""Fields of `spec.engine.template.spec` that concern the download too. GPUs and containers do not."""
_S3_ENTRIES: Final = {
    "AWS_ACCESS_KEY_ID": False,
    "AWS_SECRET_ACCESS_KEY": False,
    "AWS_SESSION_TOKEN": True,
}
"""Entry of the Secret, and variable of the client → whether it may be missing."""
_RESTARTS: Final = 2**31 - 1
"""Attempts of a download: it ends when it succeeds or the spec changes. The kubelet waits up to five minutes between them."""


NO_VOLUME_TYPE: Final = "must specify a volume type"
"""What an API server says of a volume whose only field it dropped."""
NO_IMAGE_VOLUMES: Final = (
    "oci:// needs image volumes, which this cluster does not have: Kubernetes 1.35 has them, 1.31 to 1.34 need feature gate "
    "ImageVolume on the API server and the nodes; use another source"
)


def has_image_volume(item: Manifest) -> bool:
    """Whether the pods of a Deployment have the image of an `oci://` source."""
    template = (item.get("spec") or {}).get("template") or {}
    volumes = (template.get("spec") or {}).get("volumes") or ()
    return any(volume.get("name") == _IMAGE for volume in volumes)


def located(spec: ServiceSpec) -> ServiceSpec:
    """The spec with the path of files that Evenkeel or the kubelet brings into the container."""
    path = _path(spec.model)
    if path is None:
        return spec
    model = replace(
        spec.model,
        source=f"file://{path}",
        served_name=spec.model.name,
        object_store=None,
        cache=None,
    )
    return replace(spec, model=model)


def _path(model: Model) -> str | None:
    if model.is_downloaded:
        return f"{FILLED_PATH}/{digest_of(model)}"
    if model.scheme == "oci":
        folder = model.source.partition("#")[2]
        return f"{IMAGE_PATH}/{folder}".rstrip("/")
    return None


def engine_labels(context: BuildContext) -> Manifest:
    """Labels of engine pods that say whose files they read."""
    model = context.spec.model
    return {MODEL_LABEL: digest_of(model)} if model.filled_by_job else {}


def model_volume(context: BuildContext) -> Iterator[tuple[Manifest, Manifest]]:
    """The mount of the model's files in an engine, and the volume of its pod; none if the engine downloads them."""
    model = context.spec.model
    simulated = context.spec.engine.runtime is Runtime.SIMULATOR  # it reads no files
    if model.filled_by_job:
        mount = {
            "name": _VOLUME,
            "mountPath": FILLED_PATH,
            "subPath": context.name,
            "readOnly": True,
        }
        yield mount, {"name": _VOLUME, **_claim(context, read_only=True)}
    elif model.is_downloaded and not simulated:
        yield (
            {"name": _VOLUME, "mountPath": FILLED_PATH, "readOnly": True},
            {"name": _VOLUME, "emptyDir": {}},
        )
    elif model.scheme == "oci" and not simulated:
        reference = model.source.removeprefix("oci://").partition("#")[0]
        image = {"reference": reference}
        if context.defaults.pull_policy:
            image["pullPolicy"] = context.defaults.pull_policy
        yield (
            {"name": _IMAGE, "mountPath": IMAGE_PATH, "readOnly": True},
            {"name": _IMAGE, "image": image},
        )


def init_containers(context: BuildContext) -> list[Manifest]:
    """The download of a replica that has no shared volume."""
    model = context.spec.model
    simulated = context.spec.engine.runtime is Runtime.SIMULATOR
    if simulated or not model.is_downloaded or model.filled_by_job:
        return []
    container = _container(context, folder=f"{FILLED_PATH}/{digest_of(model)}")
    for name in CONTAINER_FIELDS:
        given = context.spec.engine.template.spec.get(name)
        if isinstance(given, list):
            container[name] = [*container.get(name, ()), *given]
    return [container]


def cache_claim(context: BuildContext) -> Manifest | None:
    """The volume for the model's files, if the spec sets one, or the spec whose model is downloaded."""
    specs = (context.spec,) if context.fill is None else (context.fill.service.spec, context.spec)
    cache = next((one for spec in specs if (one := spec.model.cache) and one.size), None)
    if cache is None or cache.size is None:
        return None
    modes = [mode.value for mode in cache.access_modes]
    found = volume_claim(context, ENGINE_COMPONENT, cache.size, modes)
    if cache.storage_class_name is not None:
        found["spec"]["storageClassName"] = cache.storage_class_name
    return found


def model_policy(context: BuildContext) -> Manifest | None:
    """Network policy of the pods that download: the operator asks how far they are."""
    if context.fill is None or not context.fill.needs_job:
        return None
    ingress = [{"from": operators(context), "ports": tcp(PROBE_PORT)}] if operators(context) else []
    return network_policy(context, MODEL_COMPONENT, ingress)


def model_job(context: BuildContext) -> Manifest | None:
    """The Job that fills the volume. Another pod is another Job, since a Job's pod cannot change."""
    fill = context.fill
    if fill is None or not fill.needs_job or "Job" not in context.apis:
        return None
    newest = replace(context, service=fill.service)
    digest = digest_of(fill.model)
    template = pod_template(
        newest,
        MODEL_COMPONENT,
        pod=_pod(newest, digest=digest, keeps=fill.keeps),
        overlay=_followed(fill.service.spec.engine.template),
        extra_labels={MODEL_LABEL: digest},
    )
    content = msgspec.json.encode(template, order="deterministic")
    found = manifest(
        context,
        "Job",
        MODEL_COMPONENT,
        name=f"{model_name(context.name)}-{hashlib.sha256(content).hexdigest()[:8]}",
        annotations={KEEPS_ANNOTATION: fill.keeps} if fill.keeps else None,
        given_labels={MODEL_LABEL: digest},
    )
    found["spec"] = {
        "backoffLimit": _RESTARTS,
        "podReplacementPolicy": "Failed",  # one pod at a time writes
        "template": template,
    }
    return found


def _pod(context: BuildContext, *, digest: str, keeps: str) -> Manifest:
    container = _container(
        context,
        folder=f"{FILLED_PATH}/{context.name}/{digest}",
        flags=[
            *([f"--keep={keeps}"] if keeps else []),
            f"--host={context.defaults.engine_host}",
            f"--port={PROBE_PORT}",
        ],
    )
    container["ports"] = [{"name": PROBE_PORT_NAME, "containerPort": PROBE_PORT, "protocol": "TCP"}]
    pod: Manifest = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": engine_name(context.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,  # an interrupted download continues
        "securityContext": pod_security(context),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": _VOLUME, **_claim(context, read_only=False)},
        ],
    }
    cache = context.spec.model.cache
    if keeps and cache is not None and set(cache.access_modes) == {AccessMode.READ_WRITE_ONCE}:
        # Only the node of the replica has the volume.
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": selector(context.name, ENGINE_COMPONENT)},
        }
        pod["affinity"] = {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
    return pod


def _container(context: BuildContext, *, folder: str, flags: list[str] | None = None) -> Manifest:
    model, store = context.spec.model, context.spec.model.object_store
    arguments = [f"--source={model.source}", f"--folder={folder}"]
    if store is not None:
        given = (("endpoint", store.endpoint), ("region", store.region))
        arguments += [f"--{name}={value}" for name, value in given if value]
        arguments += ["--anonymous"] if store.anonymous else []
    container: Manifest = {
        "name": MODEL_COMPONENT,
        "image": context.defaults.download_image,
        "command": list(_DOWNLOAD),
        "args": [literal(one, Language.POD_ARGUMENT) for one in (*arguments, *(flags or ()))],
        "env": _environment(context),
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": _VOLUME, "mountPath": FILLED_PATH},
        ],
    }
    if context.defaults.pull_policy:
        container["imagePullPolicy"] = context.defaults.pull_policy
    return container


def _environment(context: BuildContext) -> list[Manifest]:
    model, defaults = context.spec.model, context.defaults
    found: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    found += [
        {"name": name, "value": literal(value, Language.POD_ARGUMENT)}
        for name, value in defaults.engine_variables.items()
    ]
    if model.scheme == "hf":
        found.append({"name": "HF_HUB_DISABLE_PROGRESS_BARS", "value": "1"})
    token, store = model.token_secret_ref, model.object_store
    if model.scheme == "hf" and token is not None:
        found.append(_from_secret("HF_TOKEN", token.name, token.key))
    if store is not None and store.secret_ref is not None:
        name = store.secret_ref.name
        if model.scheme == "gs":
            found.append(_from_secret("GOOGLE_SERVICE_ACCOUNT_KEY", name, "credentials.json"))
        else:
            found += [
                _from_secret(entry, name, entry, **({"optional": True} if optional else {}))
                for entry, optional in _S3_ENTRIES.items()
            ]
    return found


def _from_secret(variable: str, secret: str, key: str, **more: Any) -> Manifest:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **more}}}


def _claim(context: BuildContext, *, read_only: bool) -> Manifest:
    cache = context.spec.model.cache
    assert cache is not None
    claim: Manifest = {"claimName": cache.claim_name or engine_name(context.name)}
    if read_only:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}


def _followed(template: PodTemplate) -> PodTemplate:
    kept = (*_FOLLOWED, *(name for name in CONTAINER_FIELDS if name != "resources"))
    spec = {name: template.spec[name] for name in kept if name in template.spec}
    return replace(template, spec=spec)
