"""Reads a file of resources into a manifest: one service, its tenants and their API keys.

All faults are reported at once. A field that has no effect on one machine is not a fault: it becomes a warning (`ignored_fields`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from evenkeel_contract.gateway import Member, members_of, salvage_gateway, unknown_fallbacks
from evenkeel_contract.render import CredentialSecrets, KeyHashes, serves
from evenkeel_contract.signedkeys import salvage_signing_keys
from evenkeel_contract.spec.federation import FederationSecrets, secrets_of
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.parts import Runtime, SecretKeyRef
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant, Tenancy
from evenkeel_contract.tokenissuers import NO_KEY_SET, is_key_set
from evenkeel_contract.validate import salvage_service, salvage_tenant
from evenkeel_contract.values import Fault, did_you_mean, show, without_echoes

from evenkeel_cli.faults import FileFault, ManifestFaults
from evenkeel_cli.ignored_fields import OF_GATEWAY, ignored_fields
from evenkeel_cli.manifestrules import (
    arguments_that_simulators_refuse,
    repeated_name,
    runtime_faults,
)
from evenkeel_cli.secretdocument import SecretEntries, entries_of, read_secret
from evenkeel_cli.yamlfile import Document, Position, YamlFault, given_twice, parse_documents

_Resource = TypeVar("_Resource")

KINDS: Final = ("FairInferenceService", "InferenceTenant", "FairInferenceGateway", "Secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a valid file."""

    services: tuple[FairInferenceService, ...]
    """One service, or those behind the gateway."""
    tenants: tuple[InferenceTenant, ...]
    """The tenants that the service or the gateway serves."""
    secrets: SecretEntries
    warnings: tuple[str, ...]
    """One sentence for each field without effect."""
    gateway: FairInferenceGateway | None = None
    """What serves all services at one address; None with one service and no gateway."""

    @property
    def service(self) -> FairInferenceService:
        """The only service."""
        return self.services[0]

    @property
    def identity(self) -> tuple[str, str]:
        """Namespace and name of the gateway, or of the only service."""
        metadata = (self.gateway or self.service).metadata
        return metadata.namespace, metadata.name

    @property
    def tenancy(self) -> Tenancy:
        """Who may use the address."""
        return (self.gateway or self.service).spec.tenancy

    @property
    def members(self) -> tuple[Member, ...]:
        """The services behind the gateway, with the names of their models; none without a gateway."""
        return () if self.gateway is None else members_of(self.gateway, self.services).found

    @property
    def models(self) -> tuple[str, ...]:
        """What clients send as `model`, one name of each."""
        return tuple(one.offered[0] for one in self.members) or (self.service.spec.model.name,)

    def each(self) -> Iterator[Manifest]:
        """The manifest of each service alone."""
        return (replace(self, services=(service,), gateway=None) for service in self.services)

    @property
    def key_hashes(self) -> KeyHashes:
        """The hashes of the API keys, for the router's configuration."""
        return {ref: hashlib.sha256(key.encode()).hexdigest() for ref, key in self.secrets.items()}

    @property
    def credentials(self) -> CredentialSecrets:
        """What the Secrets that `spec.tenancy` names contain."""
        namespace, tenancy = self.identity[0], self.tenancy
        signed = tenancy.signed_keys
        entries = {} if signed is None else self.entries_of(namespace, signed.secret_ref.name)
        refs = [issuer.secret_ref for issuer in tenancy.jwt if issuer.secret_ref is not None]
        return CredentialSecrets(
            signing_keys=salvage_signing_keys(entries)[0],
            key_sets={
                (ref.name, ref.key): self.secrets[namespace, ref.name, ref.key] for ref in refs
            },
        )

    @property
    def cells(self) -> FederationSecrets | None:
        """What the Secrets that `spec.federation` of the service names contain; None without other cells."""
        federation = self.service.spec.federation
        if federation is None:
            return None
        namespace = self.service.metadata.namespace
        refs = (use.ref for use in secrets_of(federation))
        values = (self.secrets[namespace, ref.name, ref.key].strip() for ref in refs)
        return FederationSecrets(*values)

    def entries_of(self, namespace: str, name: str) -> dict[str, str]:
        """The entries of one Secret."""
        return entries_of(self.secrets, namespace, name)

    def api_keys(self) -> Iterator[tuple[str, str]]:
        """(`tenant/client`, API key) of every key, in the file's order."""
        for tenant in self.tenants:
            for key in tenant.spec.api_keys:
                ref = (tenant.metadata.namespace, key.secret_ref.name, key.secret_ref.key)
                yield f"{tenant.metadata.name}/{key.client}", self.secrets[ref]


def load_manifest(path: Path) -> Manifest:
    """Read a file; raises `ManifestFaults` with every fault of all its documents."""
    return parse_manifest(read_file(path), str(path))


def parse_manifest(data: bytes, name: str) -> Manifest:
    """Like `load_manifest`, from the bytes of a file called `name`."""
    reader = _ManifestReader(name)
    reader.add_all(data)
    return reader.finish()


def load_resources(path: Path) -> tuple[str, ...]:
    """Check a file for a cluster; raises `ManifestFaults`, or returns a note for each document of another kind.

    It may have any number of services, and tenants may refer to Secrets that are not in the file.
    """
    reader = _ManifestReader(str(path), cluster=True)
    reader.add_all(read_file(path))
    return reader.finish_resources()


def read_file(path: Path) -> bytes:
    """The bytes of a file; raises `ManifestFaults`."""
    try:
        return path.read_bytes()
    except OSError as error:
        fault = FileFault(file=str(path), message=f"cannot be read: {error.strerror or error}")
        raise ManifestFaults([fault]) from error


@dataclass(frozen=True, slots=True)
class _PartialResource(Generic[_Resource]):
    """A resource with its faults; faulty fields have default values."""

    document: Document
    resource: _Resource
    faults: Sequence[Fault]


class _ManifestReader:
    """Collects the resources of a file with their faults, then the faults between them.

    It keeps faulty resources too, so that it can report every fault of the file at once.
    """

    def __init__(self, name: str, *, cluster: bool = False) -> None:
        self.name = name
        self.cluster = cluster
        self.warnings: list[str] = []
        self.secrets: dict[tuple[str, str, str], str] = {}
        self._found: list[tuple[Position, FileFault]] = []
        """Every fault and its position."""
        self._services: list[_PartialResource[FairInferenceService]] = []
        self._tenants: list[_PartialResource[InferenceTenant]] = []
        self._gateways: list[_PartialResource[FairInferenceGateway]] = []
        self._unknown_kind = False
        """A document has an unknown kind: it may be the missing service."""
        self._unknown_secret = False
        """A document may be a missing Secret: its name or its kind is invalid."""
        self._faulty_secrets: set[tuple[str, str]] = set()
        """Secrets (namespace, name) with faulty entries."""

    def add_all(self, data: bytes) -> None:
        """Add every document; raises `ManifestFaults` if the bytes are not YAML."""
        try:
            documents = parse_documents(data, self.name)
        except YamlFault as error:
            fault = FileFault(file=self.name, line=error.line, message=error.message)
            raise ManifestFaults([fault]) from error
        for document in documents:
            self._add(document)

    def _add(self, document: Document) -> None:
        for position, key in document.repeated:
            fault = FileFault(file=self.name, line=position.line, message=given_twice(key))
            self._found.append((position, fault))
        data = document.data if isinstance(document.data, Mapping) else {}
        kind = data.get("kind")
        faults: Sequence[Fault]
        if kind == "FairInferenceService":
            service, faults = salvage_service(document.data)
            self._services.append(_PartialResource(document, service, faults))
            if not self.cluster:
                self.warnings += ignored_fields(data)
        elif kind == "InferenceTenant":
            tenant, faults = salvage_tenant(document.data)
            self._tenants.append(_PartialResource(document, tenant, faults))
        elif kind == "FairInferenceGateway":
            gateway, faults = salvage_gateway(document.data)
            self._gateways.append(_PartialResource(document, gateway, faults))
            if not self.cluster:
                self.warnings += ignored_fields(data, OF_GATEWAY)
        elif kind == "Secret" and not self.cluster:
            faults = self._add_secret(document.data)
        else:
            faults = self._other(document, kind)
            self._unknown_kind = self._unknown_kind or bool(faults)
            if faults and not {"data", "stringData"}.isdisjoint(data):
                self._unknown_secret = True
        self._report(document, faults)

    def _report(self, document: Document, faults: Iterable[Fault]) -> None:
        for fault in faults:
            position = document.position_of(fault.path)
            located = FileFault(
                file=self.name,
                line=position.line,
                document=document.number,
                resource=_title(document.data),
                path=fault.path,
                message=fault.message,
            )
            self._found.append((position, located))

    def _check(self, read: _PartialResource[Any], found: Iterable[Fault]) -> None:
        """Report further faults of a resource, except those that follow from an earlier fault."""
        self._report(read.document, without_echoes(found, read.faults))

    def _add_secret(self, data: object) -> Sequence[Fault]:
        secret, faults = read_secret(data)
        for key, text in secret.entries.items():
            self.secrets[secret.namespace, secret.name, key] = text
        if any(fault.path.startswith("metadata") for fault in faults):
            self._unknown_secret = True
        elif faults:
            self._faulty_secrets.add((secret.namespace, secret.name))
        return faults

    def _other(self, document: Document, kind: object) -> Sequence[Fault]:
        if not isinstance(document.data, Mapping):
            return [
                Fault("", f"must be a resource with apiVersion and kind, not {show(document.data)}")
            ]
        if not isinstance(kind, str):
            return [Fault("kind", f"must be one of {', '.join(KINDS)}, not {show(kind)}")]
        if guess := did_you_mean(kind, KINDS):
            return [Fault("kind", f"{show(kind)} is unknown{guess}")]
        if not (self.cluster and kind in KINDS):
            self.warnings.append(f"document {document.number}: kind {kind} is ignored")
        return []

    def finish_resources(self) -> tuple[str, ...]:
        """The notes; raises `ManifestFaults` with the faults of each resource on its own."""
        names: set[tuple[str, str]] = set()
        for service in self._services:
            self._check(service, arguments_that_simulators_refuse(service.resource))
            self._check(service, repeated_name(service.resource, names))
        names = set()
        for tenant in self._tenants:
            self._check(tenant, repeated_name(tenant.resource, names))
        names = set()
        for gateway in self._gateways:
            self._check(gateway, repeated_name(gateway.resource, names))
        if not self._services and not self._tenants and not self._gateways and not self._found:
            message = (
                "contains no FairInferenceService, no FairInferenceGateway and no InferenceTenant"
            )
            self._found.append((Position(0, 0), FileFault(file=self.name, message=message)))
        self._raise_faults()
        return tuple(self.warnings)

    def _raise_faults(self) -> None:
        if self._found:
            self._found.sort(key=lambda found: found[0])  # stable: in the order of the file
            raise ManifestFaults([fault for _, fault in self._found])

    def finish(self) -> Manifest:
        self._check_references()
        self._raise_faults()
        services = tuple(read.resource for read in self._services)
        gateway = self._gateways[0].resource if self._gateways else None
        first = services[0] if gateway is None else gateway
        tenants = [read.resource for read in self._tenants]
        served = tuple(tenant for tenant in tenants if serves(first, tenant))
        for tenant in tenants:
            if tenant not in served:
                self.warnings.append(
                    f"InferenceTenant {tenant.metadata.namespace}/{tenant.metadata.name} is not "
                    f"served: it has another namespace, or spec.tenancy.selector does not match it"
                )
        return Manifest(
            services=services,
            gateway=gateway,
            tenants=served,
            secrets=self.secrets,
            warnings=tuple(self.warnings),
        )

    def _check_references(self) -> None:
        if not self._services and not self._unknown_kind:
            fault = FileFault(file=self.name, message="contains no FairInferenceService")
            self._found.append((Position(0, 0), fault))
        for further in self._gateways[1:]:
            message = "a file may contain one FairInferenceGateway only; remove this one"
            self._report(further.document, [Fault("kind", message)])
        if not self._gateways:
            for extra in self._services[1:]:
                message = "several services need a FairInferenceGateway in the file; add it, or remove this service"
                self._report(extra.document, [Fault("kind", message)])
        for gateway in self._gateways[:1]:
            self._check(gateway, self._models_of(gateway.resource))
            self._check(gateway, self._credentials(gateway.resource))
        names: set[tuple[str, str]] = set()
        for read in self._services:
            self._check(read, repeated_name(read.resource, names))
            self._check(read, runtime_faults(read.resource))
            self._check(read, arguments_that_simulators_refuse(read.resource))
            self._check(read, self._secrets_of(read.resource))
        seen: set[tuple[str, str]] = set()
        owners: dict[str, str] = {}
        for tenant in self._tenants:
            self._check(tenant, repeated_name(tenant.resource, seen))
            self._check(tenant, self._keys(tenant.resource, owners))

    def _models_of(self, gateway: FairInferenceGateway) -> Iterator[Fault]:
        """The file must contain the services of the gateway, and no others."""
        members = members_of(gateway, [read.resource for read in self._services])
        for index, name in members.missing:
            if not self._unknown_kind:
                message = (
                    f"no FairInferenceService {gateway.metadata.namespace}/{name} in this file"
                )
                yield Fault(
                    f"spec.models[{index}].serviceRef.name", message, about=("metadata.namespace",)
                )
        for service, name, other in members.clashing:
            message = f"{show(name)} is a model of {other} and of {service}; give one of them another name"
            yield Fault("spec.models", message)
        if not members.missing and not members.clashing:
            for model, name in unknown_fallbacks(members.found):
                message = f"{show(name)} is no other model, so {model} cannot fall back to it"
                yield Fault("spec.models", message)
        known = {one.service.metadata.name for one in members.found}
        known |= {service for service, _, _ in members.clashing}
        for read in self._services:
            if read.resource.metadata.name not in known:
                message = f"has no model of service {show(read.resource.metadata.name)}; add it, or remove the service"
                yield Fault("spec.models", message)

    def _secrets_of(self, service: FairInferenceService) -> Iterator[Fault]:
        """The file must contain the Secrets with the address of the ledger's store and the token for a model to be fetched."""
        namespace, redis = service.metadata.namespace, service.spec.router.state.redis
        if redis is not None:
            path = "spec.router.state.redis.urlSecretRef"
            yield from self._missing(path, namespace, redis.url_secret_ref)
        yield from self._credentials(service)
        yield from self._cells_of(service)
        token = service.spec.model.token_secret_ref
        if token is not None and service.spec.engine.runtime is not Runtime.SIMULATOR:
            yield from self._missing("spec.model.tokenSecretRef", namespace, token)

    def _cells_of(self, service: FairInferenceService) -> Iterator[Fault]:
        """The file must contain the token and the certificates of other cells."""
        federation, namespace = service.spec.federation, service.metadata.namespace
        if federation is None:
            return
        if self._gateways:
            message = "routers of several services have no other cells; remove it, or the gateway"
            yield Fault("spec.federation", message)
        for name, ref, is_usable, problem in secrets_of(federation):
            path = f"spec.federation.{name}"
            yield from self._missing(path, namespace, ref)
            entry = self.secrets.get((namespace, ref.name, ref.key))
            if entry is not None and not is_usable(entry.strip()):
                yield Fault(path, f"names an entry that {problem}")

    def _credentials(self, service: FairInferenceService | FairInferenceGateway) -> Iterator[Fault]:
        """The file must contain the signing keys and the keys of issuers."""
        namespace, tenancy = service.metadata.namespace, service.spec.tenancy
        for index, issuer in enumerate(tenancy.jwt):
            if issuer.secret_ref is not None:
                path = f"spec.tenancy.jwt[{index}].secretRef"
                yield from self._missing(path, namespace, issuer.secret_ref)
                ref = (namespace, issuer.secret_ref.name, issuer.secret_ref.key)
                if ref in self.secrets and not is_key_set(self.secrets[ref]):
                    yield Fault(path, f"names an entry that {NO_KEY_SET}")
        if tenancy.signed_keys is None or self._unknown_secret:
            return
        name = tenancy.signed_keys.secret_ref.name
        good, bad = salvage_signing_keys(entries_of(self.secrets, namespace, name))
        if (bad or not good) and (namespace, name) not in self._faulty_secrets:
            why = bad[0] if bad else f"no Secret {namespace}/{name} with a signing key in this file"
            yield Fault("spec.tenancy.signedKeys.secretRef", why, about=("metadata.namespace",))

    def _missing(self, path: str, namespace: str, ref: SecretKeyRef) -> Iterator[Fault]:
        secret = (namespace, ref.name)
        known = (*secret, ref.key) in self.secrets
        if not known and not self._unknown_secret and secret not in self._faulty_secrets:
            yield Fault(
                path,
                f"no Secret {'/'.join(secret)} with an entry {ref.key!r} in this file; "
                f"add a document of kind Secret with stringData",
                about=("metadata.namespace",),
            )

    def _keys(self, tenant: InferenceTenant, owners: dict[str, str]) -> Iterator[Fault]:
        """Faults of a tenant's API keys; `owners` maps each key to its first user."""
        for index, key in enumerate(tenant.spec.api_keys):
            path = f"spec.apiKeys[{index}].secretRef"
            ref = key.secret_ref
            text = self.secrets.get((tenant.metadata.namespace, ref.name, ref.key))
            if text is None:
                yield from self._missing(path, tenant.metadata.namespace, ref)
                continue
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                yield Fault(path, "the key must be ASCII without spaces or control characters")
            owner = owners.setdefault(text, f"{tenant.metadata.name}/{key.name}")
            if owner != f"{tenant.metadata.name}/{key.name}":
                yield Fault(path, f"has the same key as {owner}; one key identifies one client")


def _title(data: object) -> str:
    if not isinstance(data, Mapping):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    words = [word for word in (data.get("kind"), name) if isinstance(word, str)]
    text = " ".join(words)
    return text if text.isprintable() and len(text) <= 100 else ""
