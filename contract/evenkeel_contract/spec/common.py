"""What several parts of both resources share: metadata, references, templates, field types."""

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
    40  # leaves room for the suffixes of what is generated; a name ends at 63
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
    """The parts of Kubernetes' metadata that matter here; all else passes."""

    OPEN: ClassVar[bool] = True
    """Unknown fields are no faults: a cluster adds its own."""

    name: Annotated[str, DNS_LABEL, Length(1, MAX_RESOURCE_NAME)]
    """Unique among the resources of its kind in the namespace."""
    namespace: Annotated[str, DNS_LABEL] = "default"
    """Resources see others of their own namespace only."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What selectors match."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Notes that nothing selects by."""
    generation: Count = 0
    """Counted by the cluster: rises with every change of the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKeyRef:
    """One entry of a Secret in the same namespace."""

    name: DnsName
    """The Secret's name."""
    key: Annotated[str, Pattern(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret")]
    """The entry's key in the Secret's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """What to lay over the generated pods (strategic merge). Checked by the cluster, not here."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    """Labels and annotations to add."""
    spec: Mapping[str, object] = field(default_factory=dict)
    """Node selector, tolerations, affinity, environment, volumes, resources and the like."""
