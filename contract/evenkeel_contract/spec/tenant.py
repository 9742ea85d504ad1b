"""InferenceTenant: who shares the FairInferenceServices of a namespace, and with what weight."""

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
    """A client with a weight of its own within the tenant."""

    name: ClientName
    """Unique within the tenant."""
    weight: Weight = 1
    """Its share relative to other clients of the tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that identifies a client."""

    name: ClientName
    """Of the key, for logs and rotation; not the key itself."""
    client: ClientName
    """One of `clients`."""
    secret_ref: SecretKeyRef
    """Where the key is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRateLimits:
    """Limits of the whole tenant. They count over all routers of a service."""

    requests_per_minute: Count = 0
    """Requests that the tenant may start per minute. The router refuses more (429). 0: no limit."""
    tokens_per_minute: Count = 0
    """Input and output tokens that the tenant may use per minute. The router refuses more (429). 0: no limit."""
    max_concurrent: Count = 0
    """Requests that the tenant may have in flight at once. The router refuses more (429). 0: no limit."""
    burst: CountOrPercent = CountOrPercent.from_plain("10%")
    """What the tenant may use at once after a pause: a percentage of each limit per minute, or a number of requests and of tokens. At least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """What is wanted."""

    weight: Weight = 1
    """The tenant's share of a service relative to other tenants', however many clients it has (R9)."""
    default_client_weight: Weight = 1
    """Of clients that are not listed."""
    clients: Annotated[tuple[Client, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """Clients with a weight of their own, and those that API keys name."""
    api_keys: Annotated[tuple[ApiKey, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """The keys that identify clients."""
    limits: TenantRateLimits = field(default_factory=TenantRateLimits)
    """Limits of the whole tenant, over all routers of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceTenant:
    """One tenant (short name: itn). Owned by administrators, not by the tenant."""

    api_version: ApiVersion
    """The group and version of this schema."""
    kind: Annotated[str, Pattern("InferenceTenant", "InferenceTenant")]
    """InferenceTenant."""
    metadata: Metadata
    """Name and labels."""
    spec: TenantSpec = field(default_factory=TenantSpec)
    """What is wanted."""
    status: Mapping[str, object] = field(default_factory=dict)
    """Written by the operator; not read here."""
