"""Which service has a host, if several services name it. Pure.

Two Ingresses of one class with the same host and path would get each other's requests, at the choice of the ingress
controller. The older service keeps them, so a new service in any namespace cannot take the requests of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.reasons import Note

Claim = tuple[str, str, str]
"""Ingress class (empty: the default one), host, path."""
_ALL: Final = ("/",)


def claims_of(service: Object) -> frozenset[Claim]:
    """What the Ingress of a FairInferenceService asks for. What cannot be read asks for nothing: `SpecValid` reports it."""
    ingress = _mapping(_mapping(_mapping(service.get("spec")).get("exposure")).get("ingress"))
    hosts = [ingress.get("host"), *_listed(ingress.get("additionalHosts"))]
    paths = _listed(ingress.get("paths")) or _ALL
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
