"""Fields of a service that have no effect on one machine, each with the reason. They are warnings, not faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_CLUSTER: Final = "only a cluster has pods"

OF_SIMULATOR: Final[Mapping[str, str]] = {
    "spec.model.tokenSecretRef": "the simulator fetches no model",
    "spec.model.objectStore": "the simulator fetches no model",
    "spec.model.cache": "the simulator fetches no model",
    "spec.engine.gpu.resourceName": "the simulator needs no GPU",
    "spec.engine.gpu.claims": "the simulator needs no GPU",
}
OF_ENGINES: Final[Mapping[str, str]] = {
    "spec.model.objectStore": "models are in the cache of the Hugging Face library (HF_HOME)",
    "spec.model.cache": "models are in the cache of the Hugging Face library (HF_HOME)",
}
FIELDS: Final[Mapping[str, str]] = {
    "spec.engine.image": "replicas run the installed packages, not an image",
    "spec.engine.rollout": "all new replicas start before the old ones stop",
    "spec.engine.template": _CLUSTER,
    "spec.router.template": _CLUSTER,
    "spec.router.limits.activationTimeout": "a local fleet does not scale to or from zero",
    "spec.autoscaling": "a local fleet does not scale; it runs minReplicas, at least 1",
    "spec.slo": "a local fleet does not evaluate objectives",
    "spec.exposure.ingress": "the router listens on this machine only",
    "spec.exposure.httpRoute": "the router listens on this machine only",
}


OF_GATEWAY: Final = {
    path: FIELDS[path]
    for path in ("spec.router.template", "spec.exposure.ingress", "spec.exposure.httpRoute")
}


def ignored_fields(
    resource: Mapping[object, object], fields: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A sentence for every field that is set and has no effect. `fields`: instead of those of a service."""
    if fields is None:
        simulated = _given(resource, "spec.engine.runtime", "Simulator")
        fields = {**(OF_SIMULATOR if simulated else OF_ENGINES), **FIELDS}
    for path, reason in fields.items():
        if _given(resource, path):
            yield f"{path} has no effect here: {reason}"


def _given(resource: Mapping[object, object], path: str, value: object = None) -> bool:
    node: object = resource
    for name in path.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node is not None if value is None else node == value
