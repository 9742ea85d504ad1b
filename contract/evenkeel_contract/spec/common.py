"""Parts that both resources use: metadata, references, pod templates, field types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from evenkeel_contract.constraints import (
    DNS_LABEL,
    DNS_NAME,
    PRINTABLE,
    Length,
    Pattern,
    Range,
)
from evenkeel_contract.key import MAX_NAME_BYTES, MAX_WEIGHT
from evenkeel_contract.names import API_VERSION

MAX_RESOURCE_NAME: Final = (
    40  # generated objects append suffixes, and Kubernetes allows 63 characters
)

Weight = Annotated[int, Range(1, MAX_WEIGHT)]
Count = Annotated[int, Range(0, 2**31 - 1)]
Positive = Annotated[int, Range(1, 2**31 - 1)]
Percent = Annotated[int, Range(1, 100)]
ClientName = Annotated[str, Length(1, MAX_NAME_BYTES), PRINTABLE]
DnsName = Annotated[str, DNS_NAME, Length(1, 253)]
Text = Annotated[str, Length(1, 1024), PRINTABLE]
ApiVersion = Annotated[str, Pattern(API_VERSION.replace(".", r"\."), API_VERSION)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The parts of Kubernetes' metadata that Evenkeel reads. Other parts are accepted and ignored."""

    OPEN: ClassVar[bool] = True
    """Unknown fields are accepted: a cluster adds its own."""

    name: Annotated[str, DNS_LABEL, Length(1, MAX_RESOURCE_NAME)]
    """The name, unique among resources of this kind in the namespace."""
    namespace: Annotated[str, DNS_LABEL] = "default"
    """The namespace. A service uses only tenants of its own namespace."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels for selectors."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations. Selectors do not use them."""
    generation: Count = 0
    """A number that the API server increases with every change of the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKeyRef:
    """Refers to one entry of a Secret in the same namespace."""

    name: DnsName
    """Name of the Secret."""
    key: Annotated[str, Pattern(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret")]
    """Key of the entry in the Secret's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """Changes the generated pods by a strategic merge. The API server checks the result."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    """Labels and annotations to add to the pods."""
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of the pod spec to add or replace, such as node selector, tolerations, environment or resources."""
