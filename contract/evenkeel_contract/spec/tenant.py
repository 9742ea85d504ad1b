"""InferenceTenant: a tenant of the FairInferenceServices of a namespace, its weight and its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from evenkeel_contract.constraints import Length, Pattern, UniqueBy
from evenkeel_contract.quantities import CountOrPercent
from evenkeel_contract.spec.common import (
    ApiVersion,
    ClientName,
    Count,
    Metadata,
    SecretKeyRef,
    Weight,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client of the tenant that has its own weight."""

    name: ClientName
    """Name of the client, unique within the tenant."""
    weight: Weight = 1
    """Share of the client relative to other clients of the tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that identifies a client."""

    name: ClientName
    """Name of the key, used in logs and for key rotation. It is not the key itself."""
    client: ClientName
    """Name of the client that the key identifies. It must be one of `spec.clients`."""
    secret_ref: SecretKeyRef
    """Secret entry that holds the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRateLimits:
    """Limits of the whole tenant. They count over all routers of a service."""

    requests_per_minute: Count = 0
    """Most requests per minute, over all routers. The router refuses more with status 429. 0 means no limit."""
    tokens_per_minute: Count = 0
    """Most tokens per minute, input and output together, over all routers. The router refuses more with status 429. 0 means no limit."""
    max_concurrent: Count = 0
    """Most requests in flight, over all routers. The router refuses more with status 429. 0 means no limit."""
    burst: CountOrPercent = CountOrPercent.from_plain("10%")
    """Most requests, and most tokens, that the tenant may use at once after a pause. A percentage of each limit per minute, or a number. At least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """The desired state of a tenant."""

    weight: Weight = 1
    """Share of the tenant relative to other tenants of the service. It does not depend on the number of its clients."""
    default_client_weight: Weight = 1
    """Weight of clients that are not in `clients`."""
    clients: Annotated[tuple[Client, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """Clients that have their own weight, and the clients that API keys name."""
    api_keys: Annotated[tuple[ApiKey, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """API keys that identify clients."""
    limits: TenantRateLimits = field(default_factory=TenantRateLimits)
    """Limits of the whole tenant, over all routers of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceTenant:
    """InferenceTenant is a tenant that shares the services of its namespace. Administrators own it, not the tenant."""

    api_version: ApiVersion
    """Group and version of this schema."""
    kind: Annotated[str, Pattern("InferenceTenant", "InferenceTenant")]
    """Kind of the resource: InferenceTenant."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: TenantSpec = field(default_factory=TenantSpec)
    """The desired state, written by administrators."""
    status: Mapping[str, object] = field(default_factory=dict)
    """The observed state, written by the operator."""
