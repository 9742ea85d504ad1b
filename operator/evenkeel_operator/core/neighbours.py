"""What objects of others mean for a service. Pure.

An InferencePool selects engines of another owner: its selector and its port take the place of those of the spec. The
specification: https://gateway-api-inference-extension.sigs.k8s.io/api-types/inferencepool

Several services may name one host. Two Ingresses of one class with the same host and path would get each other's requests, at the
choice of the ingress controller. The older service keeps them, so a new service in any namespace cannot take the requests of
another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from evenkeel_contract.names import EXTERNAL_LABEL
from evenkeel_contract.spec.parts import External, PodSelector
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object, labels_of
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import SpecDecision


def with_pods(decision: SpecDecision, pools: Iterable[Object], live: Object | None) -> SpecDecision:
    """The spec in use with the selector and the port of its pool; a fault and no spec if they are unknown.

    `live` is the Service of its engines: without the pool it has those that were in use.
    """
    service = decision.running
    external = None if service is None else service.spec.engine.pods_of_others
    if service is None or external is None or external.inference_pool is None:
        return decision
    found = _of_pool(external.inference_pool, pools) or _of_service(live)
    if found is None:
        fault = Fault("spec.engine.external.inferencePool", no_pool(external.inference_pool))
        return replace(decision, running=None, faults=(*decision.faults, fault))
    labels, port = found
    given = replace(external, selector=PodSelector(match_labels=labels), port=port)
    engine = replace(service.spec.engine, external=given)
    return replace(decision, running=replace(service, spec=replace(service.spec, engine=engine)))


def missing_pool(external: External | None, pools: Iterable[Object]) -> tuple[Note, ...]:
    """A note if the InferencePool is missing or has no selector or port."""
    name = None if external is None else external.inference_pool
    if name is None or _of_pool(name, pools) is not None:
        return ()
    message = (
        f"spec.engine.external.inferencePool: {no_pool(name)} Routers keep the pods that it had."
    )
    return (Note(reasons.POOL_MISSING, message),)


def no_pool(name: str) -> str:
    """What is wrong with the pool."""
    return f"The namespace has no InferencePool {name} with a selector and a port."


def _of_pool(name: str, pools: Iterable[Object]) -> tuple[Mapping[str, str], int] | None:
    """(labels, port) of an InferencePool."""
    pool: Object = next((one for one in pools if one["metadata"]["name"] == name), {})
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels")
    ports = spec.get("targetPorts") or ()
    return (labels, int(ports[0]["number"])) if labels and ports else None


def _of_service(live: Object | None) -> tuple[Mapping[str, str], int] | None:
    """(labels, port) of the Service of external engines."""
    if live is None or EXTERNAL_LABEL not in labels_of(live):
        return None
    return live["spec"]["selector"], int(live["spec"]["ports"][0]["port"])


Claim = tuple[str, str, str]
"""Ingress class (empty: the default one), host, path."""


def claims_of(service: Object) -> frozenset[Claim]:
    """What the Ingress of a FairInferenceService asks for. What cannot be read asks for nothing: `SpecValid` reports it."""
    ingress = _mapping(_mapping(_mapping(service.get("spec")).get("exposure")).get("ingress"))
    hosts = [ingress.get("host"), *_listed(ingress.get("additionalHosts"))]
    paths = _listed(ingress.get("paths")) or ["/"]
    class_name = str(ingress.get("className") or "")
    return frozenset(
        (class_name, host, path)
        for host in hosts
        for path in paths
        if isinstance(host, str) and isinstance(path, str)
    )


def host_taken(service: Object, others: Iterable[Object]) -> Note | None:
    """The first claim of the service that an older service has, too; `others` may include the service."""
    claims = claims_of(service)
    if not claims:
        return None
    for other in sorted(others, key=_age):
        if _age(other) >= _age(service):
            return None
        both = sorted(claims & claims_of(other))
        if both:
            _, host, path = both[0]
            metadata = other["metadata"]
            owner = f"{metadata['namespace']}/{metadata['name']}"
            message = (
                f"spec.exposure.ingress: the older service {owner} has host {host} with path {path}, so there is no "
                "Ingress. Choose another host, path or class."
            )
            return Note(reasons.HOST_TAKEN, message)
    return None


def _age(service: Object) -> tuple[str, str, str]:
    """Sorts services from the oldest to the newest."""
    metadata = service["metadata"]
    created = str(metadata.get("creationTimestamp", ""))
    return created, str(metadata["namespace"]), str(metadata["name"])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
