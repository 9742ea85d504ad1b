"""InferenceTenants as they are read, the Secrets that hold their keys, and their status."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import USE_LABEL
from evenkeel_contract.render import serves
from evenkeel_contract.spec.resources import (
    ApiKey,
    ConditionStatus,
    FairInferenceService,
    InferenceTenant,
    ServedBy,
    TenantCondition,
    TenantStatus,
)
from evenkeel_contract.validate import salvage_tenant
from evenkeel_contract.values import Fault

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Object, entries_of, labels_of, without_status
from evenkeel_operator.core.status import Verdict, conditions, generation_of, kstatus, spec_verdict


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A Secret that a resource names, without its contents."""

    hashes: Mapping[str, str]
    """Entry → SHA-256 of the key in it."""
    labelled: bool
    """Whether the Secret has the label `evenkeel.dev/use`."""


@dataclass(frozen=True, slots=True)
class KeyFindings:
    """The keys of one tenant that are not accepted."""

    missing: tuple[str, ...] = ()
    """Keys whose Secret or entry is missing."""
    unlabelled: Mapping[str, str] = field(default_factory=dict)
    """Key in a Secret that may not be used → that Secret."""
    clashing: Mapping[str, str] = field(default_factory=dict)
    """Key that another tenant has → that tenant."""


NO_FINDINGS: Final = KeyFindings()


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
    keys: tuple[ApiKey, ...] = ()
    """The keys that it names, also if its spec has faults."""
    names_keys: bool = True
    """Whether the list of keys itself is valid; if not, nothing is known of them."""

    @property
    def age(self) -> tuple[str, str]:
        """Sorts tenants from the oldest to the newest."""
        return self.created, self.name


def read_tenant_resource(raw: Object) -> Tenant:
    """The tenant of an InferenceTenant."""
    resource, faults = salvage_tenant(without_status(raw))
    metadata = raw["metadata"]
    return Tenant(
        str(metadata["namespace"]),
        str(metadata["name"]),
        str(metadata.get("creationTimestamp", "")),
        None if faults else resource,
        faults,
        resource.spec.api_keys,
        all(not fault.path.startswith("spec.apiKeys") for fault in faults),
    )


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


def tenant_status(
    raw: Object,
    *,
    tenant: InferenceTenant | None,
    faults: Sequence[Fault],
    found: KeyFindings,
    services: Iterable[FairInferenceService],
    now: str,
) -> dict[str, Any]:
    """The status of the InferenceTenant `raw`. `found`: its keys that are not accepted."""
    home = "" if tenant is None else tenant.metadata.namespace
    serving = (
        item.metadata.name + ("" if (place := item.metadata.namespace) == home else f".{place}")
        for item in services
        if tenant is not None and serves(item, tenant)
    )
    status = TenantStatus(
        observed_generation=generation_of(raw),
        conditions=conditions(
            (ready := _keys_verdict(faults, found), spec_verdict(faults), _stalled(faults, ready)),
            raw,
            now=now,
        ),
        services=tuple(ServedBy(name=name) for name in sorted(serving)),
    )
    plain: dict[str, Any] = to_plain(status)
    return plain


def _stalled(faults: Sequence[Fault], ready: Verdict) -> Verdict:
    """What tools that follow kstatus take for a failure. A Secret that is missing may come."""
    needs_a_person = ready.reason in (reasons.SECRET_NOT_LABELLED, reasons.KEYS_CLASH)
    stalled = spec_verdict(faults) if faults else ready if needs_a_person else None
    return kstatus(stalled, None)[1]


def _keys_verdict(faults: Sequence[Fault], found: KeyFindings) -> Verdict:
    ready = TenantCondition.READY
    if faults:
        message = "The spec is invalid; routers use the last valid one."
        return Verdict(ready, ConditionStatus.FALSE, reasons.INVALID, message)
    if found.missing:
        message = f"No Secret has the keys {', '.join(found.missing)}; they are rejected."
        return Verdict(ready, ConditionStatus.FALSE, reasons.KEYS_MISSING, message)
    if found.unlabelled:
        message = " ".join(lacks_label(secret) for secret in sorted(set(found.unlabelled.values())))
        return Verdict(ready, ConditionStatus.FALSE, reasons.SECRET_NOT_LABELLED, message)
    if found.clashing:
        listed = ", ".join(
            f"{key} (tenant {owner})" for key, owner in sorted(found.clashing.items())
        )
        message = f"These keys are already in use: {listed}. They are rejected; choose other keys."
        return Verdict(ready, ConditionStatus.FALSE, reasons.KEYS_CLASH, message)
    return Verdict(ready, ConditionStatus.TRUE, reasons.KEYS_KNOWN, "Routers accept all keys.")
