"""The tenants of a namespace and the hashes of their keys, for the RouterConfig.

A tenant with an invalid spec keeps the routers' last valid configuration of it. A key that two tenants claim is
accepted for neither.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel_contract.decode import to_plain
from evenkeel_contract.render import KeyHashes, serves
from evenkeel_contract.routerconfig import RouterConfig, TenantConfig
from evenkeel_contract.spec.resources import (
    ConditionStatus,
    FairInferenceService,
    InferenceTenant,
    ServedBy,
    TenantCondition,
    TenantStatus,
)
from evenkeel_contract.validate import parse_tenant
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object, entries_of, without_status
from evenkeel_operator.core.status import Verdict, conditions, generation_of, spec_verdict

SecretHashes = Mapping[str, Mapping[str, str] | None]
"""Secret of the namespace → entry → SHA-256 of the key in it; None: there is no such Secret."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One InferenceTenant as it was read."""

    name: str
    resource: InferenceTenant | None
    """None where it has faults."""
    faults: tuple[Fault, ...]


def read_tenants(raw: Iterable[Object]) -> tuple[Tenant, ...]:
    """By name."""
    found = []
    for item in sorted(raw, key=lambda item: str(item["metadata"]["name"])):
        resource, faults = parse_tenant(without_status(item))
        found.append(Tenant(str(item["metadata"]["name"]), resource, faults))
    return tuple(found)


def secrets_named_by(tenants: Iterable[Tenant]) -> frozenset[str]:
    """The Secrets that hold their keys."""
    good = (tenant.resource for tenant in tenants if tenant.resource is not None)
    return frozenset(key.secret_ref.name for item in good for key in item.spec.api_keys)


def hash_entries(secret: Object) -> dict[str, str]:
    """Entry → SHA-256 of its key. The key itself is not kept.

    White space at both ends is not part of a key: `echo key > file` adds a line break that clients do not send.
    """
    keys = {name: entry.strip() for name, entry in entries_of(secret).items()}
    return {name: hashlib.sha256(key).hexdigest() for name, key in keys.items() if key}


@dataclass(frozen=True, slots=True)
class Roster:
    """The tenants with a valid spec, and their keys."""

    tenants: tuple[InferenceTenant, ...]
    hashes: KeyHashes
    clashing: frozenset[tuple[str, str]]
    """(tenant, key) of duplicate keys, which `hashes` omits."""
    missing: frozenset[tuple[str, str]]
    """(tenant, key) of keys whose Secret or entry is missing."""


def make_roster(tenants: Sequence[Tenant], secrets: SecretHashes) -> Roster:
    """All valid tenants of a namespace with the hashes of their keys."""
    good = tuple(tenant.resource for tenant in tenants if tenant.resource is not None)
    claims = {
        (item.metadata.name, key.name): (
            item.metadata.namespace,
            key.secret_ref.name,
            key.secret_ref.key,
        )
        for item in good
        for key in item.spec.api_keys
    }
    found = {claim: (secrets.get(ref[1]) or {}).get(ref[2]) for claim, ref in claims.items()}
    counts = Counter(sha256 for sha256 in found.values() if sha256 is not None)
    clashing = {claim for claim, sha256 in found.items() if sha256 and counts[sha256] > 1}
    return Roster(
        tenants=good,
        hashes={
            claims[claim]: sha256
            for claim, sha256 in found.items()
            if sha256 is not None and claim not in clashing
        },
        clashing=frozenset(clashing),
        missing=frozenset(claim for claim, sha256 in found.items() if sha256 is None),
    )


def keep_faulty(
    config: RouterConfig, before: RouterConfig | None, tenants: Sequence[Tenant]
) -> tuple[TenantConfig, ...]:
    """The tenants of `config`, and of `before` those whose spec is invalid now."""
    faulty = {tenant.name for tenant in tenants if tenant.resource is None}
    known = () if before is None else before.tenancy.tenants
    taken = {key.sha256 for item in config.tenancy.tenants for key in item.api_keys}
    kept = [
        item
        for item in known
        # A valid tenant may have the key now; the old entry would map one key to two tenants.
        if item.name in faulty and taken.isdisjoint(key.sha256 for key in item.api_keys)
    ]
    return tuple(sorted((*config.tenancy.tenants, *kept), key=lambda item: item.name))


def tenant_status(
    raw: Object,
    *,
    tenant: InferenceTenant | None,
    faults: Sequence[Fault],
    roster: Roster,
    services: Iterable[FairInferenceService],
    now: str,
) -> dict[str, Any]:
    """The status of the InferenceTenant `raw`."""
    serving = (
        () if tenant is None else (item.metadata.name for item in services if serves(item, tenant))
    )
    status = TenantStatus(
        observed_generation=generation_of(raw),
        conditions=conditions(
            (_keys_verdict(str(raw["metadata"]["name"]), faults, roster), spec_verdict(faults)),
            raw,
            now=now,
        ),
        services=tuple(ServedBy(name=name) for name in sorted(serving)),
    )
    plain: dict[str, Any] = to_plain(status)
    return plain


def _keys_verdict(name: str, faults: Sequence[Fault], roster: Roster) -> Verdict:
    ready = TenantCondition.READY
    if faults:
        message = "The spec is invalid; routers use the last valid one."
        return Verdict(ready, ConditionStatus.FALSE, reasons.INVALID, message)
    missing = sorted(key for tenant, key in roster.missing if tenant == name)
    if missing:
        message = f"No Secret has the keys {', '.join(missing)}; they are rejected."
        return Verdict(ready, ConditionStatus.FALSE, reasons.KEYS_MISSING, message)
    clashing = sorted(key for tenant, key in roster.clashing if tenant == name)
    if clashing:
        message = f"The keys {', '.join(clashing)} are used more than once; they are rejected."
        return Verdict(ready, ConditionStatus.FALSE, reasons.KEYS_CLASH, message)
    return Verdict(ready, ConditionStatus.TRUE, reasons.KEYS_KNOWN, "Routers accept all keys.")
