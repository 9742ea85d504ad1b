"""What a FairInferenceService may ask for that one machine cannot honour, said field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_CLUSTER: Final = "pods exist in a cluster only"

OF_SIMULATOR: Final[Mapping[str, str]] = {
    "spec.model.tokenSecretRef": "the simulator fetches no model",
    "spec.model.cache": "the simulator fetches no model",
    "spec.engine.gpu": "the simulator needs none",
}
OF_SGLANG: Final[Mapping[str, str]] = {
    "spec.model.cache": "files are kept where Hugging Face's library keeps them (HF_HOME)",
}
FIELDS: Final[Mapping[str, str]] = {
    "spec.engine.image": "replicas are processes of what is installed here",
    "spec.engine.rollout": "all new replicas start before the old ones leave",
    "spec.engine.template": _CLUSTER,
    "spec.router.template": _CLUSTER,
    "spec.router.limits.activationTimeout": "nothing scales to zero or from it",
    "spec.autoscaling": "nothing scales; minReplicas run, one where it is 0",
    "spec.slo": "nothing watches objectives",
    "spec.exposure": "the router listens on this machine",
}


def not_honoured(resource: Mapping[object, object]) -> Iterator[str]:
    """A sentence for every field that is given and has no effect."""
    simulated = _given(resource, "spec.engine.runtime", "Simulator")
    for path, reason in {**(OF_SIMULATOR if simulated else OF_SGLANG), **FIELDS}.items():
        if _given(resource, path):
            yield f"{path} has no effect here: {reason}"


def _given(resource: Mapping[object, object], path: str, value: object = None) -> bool:
    node: object = resource
    for name in path.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node is not None if value is None else node == value
