"""The tenants of a namespace and the hashes of their keys, for the RouterConfig.

A tenant with an invalid spec keeps the routers' last valid configuration of it. Of two tenants with the same key, the
older one keeps it: otherwise a new tenant could lock out another one. A key in a Secret without the label
`evenkeel.dev/use` is not accepted, unless it was accepted before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import USE_LABEL
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
from evenkeel_operator.core.objects import Object, entries_of, labels_of, without_status
from evenkeel_operator.core.status import Verdict, conditions, generation_of, spec_verdict


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A Secret that a resource names, without its contents."""

    hashes: Mapping[str, str]
    """Entry → SHA-256 of the key in it."""
    labelled: bool
    """Whether the Secret has the label `evenkeel.dev/use`."""


SecretHashes = Mapping[str, NamedSecret | None]
"""Secret of the namespace; None: there is no such Secret."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One InferenceTenant as it was read."""

    namespace: str
    name: str
    created: str
    """Creation time of the tenant in RFC 3339."""
    resource: InferenceTenant | None
    """The tenant; None if it has faults."""
    faults: tuple[Fault, ...]

    @property
    def age(self) -> tuple[str, str]:
        """Sorts tenants from the oldest to the newest."""
        return self.created, self.name


def read_tenants(raw: Iterable[Object]) -> tuple[Tenant, ...]:
    """Tenants, sorted by name."""
    found = []
    for item in sorted(raw, key=lambda item: str(item["metadata"]["name"])):
        resource, faults = parse_tenant(without_status(item))
        created = str(item["metadata"].get("creationTimestamp", ""))
        namespace, name = str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
        found.append(Tenant(namespace, name, created, resource, faults))
    return tuple(found)


def unreadable(config: RouterConfig | None, namespace: str) -> tuple[Tenant, ...]:
    """The tenants of a namespace that routers know, where none can be read: `keep_faulty` keeps them."""
    known = () if config is None else config.tenancy.tenants
    names = [item.name for item in known if item.namespace == namespace]
    return tuple(Tenant(namespace, name, "", None, ()) for name in names)


def secrets_named_by(tenants: Iterable[Tenant]) -> frozenset[str]:
    """The Secrets that hold their keys."""
    good = (tenant.resource for tenant in tenants if tenant.resource is not None)
    return frozenset(key.secret_ref.name for item in good for key in item.spec.api_keys)


def read_secret(secret: Object) -> NamedSecret:
    """Whether it may be used, and the SHA-256 of each entry. The entries themselves are not kept.

    White space at both ends is not part of a key: `echo key > file` adds a line break that clients do not send.
    """
    keys = {name: entry.strip() for name, entry in entries_of(secret).items()}
    hashes = {name: hashlib.sha256(key).hexdigest() for name, key in keys.items() if key}
    return NamedSecret(hashes, labels_of(secret).get(USE_LABEL) == "true")


def lacks_label(secret: str) -> str:
    """The sentences about a Secret that may not be used."""
    return (
        f"Secret {secret} lacks the label {USE_LABEL}=true, so Evenkeel reads no new value from it. "
        f"Add it: `kubectl label secret {secret} {USE_LABEL}=true`."
    )


@dataclass(frozen=True, slots=True)
class Roster:
    """The tenants with a valid spec, with the keys that are accepted."""

    tenants: tuple[InferenceTenant, ...]
    """Tenants without the keys that are not accepted."""
    hashes: KeyHashes
    clashing: Mapping[tuple[str, str], str]
    """(tenant, key) of a key that an older tenant has, → that tenant."""
    missing: frozenset[tuple[str, str]]
    """(tenant, key) of keys whose Secret or entry is missing."""
    unlabelled: Mapping[tuple[str, str], str]
    """(tenant, key) of a key in a Secret that may not be used, → that Secret."""


def accepted_keys(config: RouterConfig | None) -> frozenset[tuple[str, str, str]]:
    """(tenant, key, SHA-256) of the keys that routers accept with this configuration."""
    tenants = () if config is None else config.tenancy.tenants
    return frozenset((item.name, key.name, key.sha256) for item in tenants for key in item.api_keys)


def make_roster(
    tenants: Sequence[Tenant],
    secrets: SecretHashes,
    *,
    known: Collection[tuple[str, str, str]] = (),
) -> Roster:
    """All valid tenants of a namespace with the hashes of their keys.

    `known` are the `accepted_keys` so far. They stay although their Secret has no label: earlier operators asked for
    none, and an upgrade must not lock out clients.
    """
    good, hashes, missing = [], {}, set()
    clashing: dict[tuple[str, str], str] = {}
    unlabelled: dict[tuple[str, str], str] = {}
    owners: dict[str, str] = {}
    for tenant in sorted(tenants, key=lambda tenant: tenant.age):
        if tenant.resource is None:
            continue
        accepted = []
        for key in tenant.resource.spec.api_keys:
            claim, ref = (tenant.name, key.name), key.secret_ref
            secret = secrets.get(ref.name)
            sha256 = None if secret is None else secret.hashes.get(ref.key)
            if secret is not None and not secret.labelled:
                unlabelled[claim] = ref.name
                if (*claim, sha256) not in known:
                    continue
            if sha256 is None:
                missing.add(claim)
            elif sha256 in owners:
                clashing[claim] = owners[sha256]
            else:
                owners[sha256] = tenant.name
                hashes[tenant.resource.metadata.namespace, ref.name, ref.key] = sha256
                accepted.append(key)
        spec = replace(tenant.resource.spec, api_keys=tuple(accepted))
        good.append(replace(tenant.resource, spec=spec))
    return Roster(tuple(good), hashes, clashing, frozenset(missing), unlabelled)


def keep_faulty(
    config: RouterConfig, before: RouterConfig | None, tenants: Sequence[Tenant]
) -> tuple[TenantConfig, ...]:
    """The tenants of `config`, and of `before` those whose spec is invalid now. Each key is the oldest tenant's."""
    faulty = {(one.namespace, one.name) for one in tenants if one.resource is None}
    known = () if before is None else before.tenancy.tenants
    ages = {tenant.name: tenant.age for tenant in tenants}
    kept = (item for item in known if (item.namespace, item.name) in faulty)
    everyone = [*config.tenancy.tenants, *kept]
    found, taken = [], set[str]()
    for item in sorted(everyone, key=lambda item: ages[item.name]):
        keys = tuple(key for key in item.api_keys if key.sha256 not in taken)
        taken |= {key.sha256 for key in keys}
        found.append(replace(item, api_keys=keys))
    return tuple(sorted(found, key=lambda item: item.name))


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
    home = "" if tenant is None else tenant.metadata.namespace
    serving = (
        item.metadata.name + ("" if (place := item.metadata.namespace) == home else f".{place}")
        for item in services
        if tenant is not None and serves(item, tenant)
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
    unlabelled = sorted(
        {secret for (tenant, _), secret in roster.unlabelled.items() if tenant == name}
    )
    if unlabelled:
        message = " ".join(lacks_label(secret) for secret in unlabelled)
        return Verdict(ready, ConditionStatus.FALSE, reasons.SECRET_NOT_LABELLED, message)
    clashing = sorted(
        (key, owner) for (tenant, key), owner in roster.clashing.items() if tenant == name
    )
    if clashing:
        listed = ", ".join(f"{key} (tenant {owner})" for key, owner in clashing)
        message = f"These keys are already in use: {listed}. They are rejected; choose other keys."
        return Verdict(ready, ConditionStatus.FALSE, reasons.KEYS_CLASH, message)
    return Verdict(ready, ConditionStatus.TRUE, reasons.KEYS_KNOWN, "Routers accept all keys.")
