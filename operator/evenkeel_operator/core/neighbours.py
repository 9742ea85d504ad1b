"""What objects of others mean for a service. Pure.

An InferencePool selects engines of another owner: its selector and its port take the place of those of the spec. The
specification: https://gateway-api-inference-extension.sigs.k8s.io/api-types/inferencepool

A host belongs to one namespace. An ingress controller merges the Ingresses of one host, and the longest path gets a request, so a
service of another namespace with a longer path would get requests that are not its own, with their keys. The service whose Ingress
or HTTPRoute has the host keeps it; if none has it yet, the older one gets it. The owner may share the host with other
namespaces by an annotation. Within a namespace, and among those that share, services differ in class, host or path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from evenkeel_contract.names import EXTERNAL_LABEL, SHARE_HOST
from evenkeel_contract.render import is_shared
from evenkeel_contract.spec.parts import External, PodSelector, Runtime, ScaleTarget
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object, annotations_of, labels_of
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


def target_taken(service: Object, target: ScaleTarget, others: Iterable[Object]) -> Note | None:
    """A note if another service of the namespace scales the same object: the older one keeps it. `others` may include the service.

    Two scalers would change the number in turn, each to its own bounds.
    """
    for other in sorted(others, key=_age):
        if _is_same(other, service):
            return None
        if "deletionTimestamp" not in other["metadata"] and _scales(other) == _named(target):
            message = (
                f"spec.engine.external.scaleTargetRef: service {_identity(other)[1]} scales {target.kind} {target.name} too, and is "
                "older, so this one does not. Remove spec.autoscaling from one of them."
            )
            return Note(reasons.FOREIGN_SCALER, message)
    return None


def _scales(service: Object) -> tuple[str, str] | None:
    """(kind, name) of the object of another owner that the newest spec scales."""
    spec = _mapping(service.get("spec"))
    engine = _mapping(spec.get("engine"))
    ref = _mapping(_mapping(engine.get("external")).get("scaleTargetRef"))
    scales = engine.get("runtime") == Runtime.EXTERNAL.value and spec.get("autoscaling") and ref
    return (str(ref.get("kind")), str(ref.get("name"))) if scales else None


def _named(target: ScaleTarget) -> tuple[str, str]:
    return target.kind, target.name


Claim = tuple[str, str, str]
"""Entrance (an Ingress class, empty for the default one, or a gateway), host, path."""


def claims_of(service: Object, default_class: str = "") -> frozenset[Claim]:
    """What Ingress and HTTPRoute of a FairInferenceService ask for. What cannot be read asks for nothing: `SpecValid` reports it.

    `default_class`: the cluster's default Ingress class; empty if it is unknown.
    """
    exposure = _mapping(_mapping(service.get("spec")).get("exposure"))
    ingress, route = (_mapping(exposure.get(name)) for name in ("ingress", "httpRoute"))
    found = _claims(
        (str(ingress.get("className") or default_class),),
        [ingress.get("host"), *_listed(ingress.get("additionalHosts"))],
        ingress,
    )
    gateways = [_mapping(ref) for ref in _listed(route.get("parentRefs"))]
    own = str(_mapping(service.get("metadata")).get("namespace"))
    entrances = (f"{ref.get('namespace') or own}/{ref.get('name')}" for ref in gateways)
    return found | _claims(entrances, _listed(route.get("hostnames")), route)


def _claims(
    entrances: Iterable[str], hosts: Iterable[Any], part: Mapping[str, Any]
) -> frozenset[Claim]:
    paths = _listed(part.get("paths")) or ["/"]
    found = product(entrances, hosts, paths)
    return frozenset(
        (entrance, host, path)
        for entrance, host, path in found
        if isinstance(host, str) and isinstance(path, str)
    )


def hosts_held(service: Object) -> frozenset[str]:
    """The hosts that the service had after its last pass: its Ingress or HTTPRoute names them."""
    hosts = _listed(_mapping(service.get("status")).get("hosts"))
    return frozenset(host for host in hosts if isinstance(host, str))


def hosts_of(service: Object) -> frozenset[str]:
    """The hosts that the newest spec asks for, or that the service has by the spec in use."""
    return hosts_held(service) | {host for _, host, _ in claims_of(service)}


def overlap(some: Iterable[str], others: Collection[str]) -> Iterator[tuple[str, str]]:
    """Pairs of hosts that are the same, or of which one is a wildcard that covers the other."""
    for one, other in product(some, others):
        covers = (
            wild.startswith("*.") and wild[2:] == name.partition(".")[2]
            for wild, name in ((one, other), (other, one))
        )
        if one == other or any(covers):
            yield one, other


def host_taken(
    service: Object, others: Iterable[Object], *, default_class: str = ""
) -> Note | None:
    """The first host of the service that belongs to another one; `others` may include the service.

    The exposure of `service` must be that of the spec in use, since it is what would be created.
    """
    claims = claims_of(service, default_class)
    hosts = sorted({host for _, host, _ in claims})
    if not hosts:
        return None
    for other in sorted(others, key=_age):
        if _is_same(other, service):
            continue
        for host, of_other in overlap(hosts, hosts_of(other)):
            first = (of_other not in hosts_held(other), _age(other))
            if first > (host not in hosts_held(service), _age(service)):
                continue
            clash = _clash(service, other, host, claims & claims_of(other, default_class))
            if clash is not None:
                return Note(reasons.HOST_TAKEN, clash)
    return None


def _clash(service: Object, owner: Object, host: str, both: Collection[Claim]) -> str | None:
    """Why the service may not use a host of the owner."""
    (namespace, name), own = _identity(owner), _identity(service)[0]
    shared = namespace == own or is_shared(annotations_of(owner), SHARE_HOST, own)
    if not shared:
        return (
            f"spec.exposure: host {host} belongs to namespace {namespace} (service {name}), so there is no Ingress and no "
            f"HTTPRoute. Choose another host, or let its owner share it: "
            f"`kubectl annotate fis -n {namespace} {name} {SHARE_HOST}={own}`."
        )
    paths = sorted(path for _, claimed, path in both if claimed == host)
    if not paths:
        return None
    return (
        f"spec.exposure: service {namespace}/{name} has host {host} with path {paths[0]}, so there is no Ingress and no "
        "HTTPRoute. Choose another host, path or class."
    )


def _identity(service: Object) -> tuple[str, str]:
    """(namespace, name)."""
    return str(service["metadata"]["namespace"]), str(service["metadata"]["name"])


def _is_same(one: Object, other: Object) -> bool:
    kinds = {str(item.get("kind") or "FairInferenceService") for item in (one, other)}
    return len(kinds) == 1 and _identity(one) == _identity(other)


def _age(service: Object) -> tuple[str, str, str]:
    """Sorts services from the oldest to the newest."""
    return str(service["metadata"].get("creationTimestamp", "")), *_identity(service)


def default_class(listed: Object) -> str:
    """The name of the default one of the cluster's IngressClasses; of several, the newest, as the API server chooses."""
    marked = [
        one
        for one in listed.get("items") or ()
        if annotations_of(one).get("ingressclass.kubernetes.io/is-default-class") == "true"
    ]
    marked.sort(key=lambda one: str(one["metadata"]["name"]))
    marked.sort(key=lambda one: str(one["metadata"].get("creationTimestamp", "")), reverse=True)
    return str(marked[0]["metadata"]["name"]) if marked else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
