"""A file of resources → a manifest: one service, its tenants, their API keys. Every fault at once.

Place in the flow: YAML documents → **manifest** → `up`, `demo`. What a cluster would do and one machine cannot
is no fault: it becomes a warning that names the field (`locally`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from evenkeel_contract.decode import decode
from evenkeel_contract.faults import Fault, did_you_mean, show
from evenkeel_contract.render import KeyHashes, serves
from evenkeel_contract.spec import FairInferenceService, InferenceTenant, Runtime
from evenkeel_contract.spec.common import DnsName
from evenkeel_contract.validate import parse_service, parse_tenant

from evenkeel_cli.locally import not_honoured
from evenkeel_cli.yamlfile import Document, YamlFault, parse_documents

KINDS: Final = ("FairInferenceService", "InferenceTenant", "Secret")

SecretEntries = Mapping[tuple[str, str, str], str]
"""(namespace, Secret, key in it) → its text."""


class ManifestFaults(ValueError):
    """A file that cannot be run; `lines` name every fault: `file:line: document N (…) path: message`."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretMetadata:
    """Where a Secret is; all else passes."""

    OPEN: ClassVar[bool] = True

    name: DnsName
    namespace: DnsName = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A Kubernetes Secret, as far as API keys need it."""

    api_version: str
    kind: str
    metadata: SecretMetadata
    type: str = "Opaque"
    immutable: bool = False
    string_data: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a file asks for, without faults."""

    service: FairInferenceService
    tenants: tuple[InferenceTenant, ...]
    """Those that the service serves."""
    secrets: SecretEntries
    warnings: tuple[str, ...]
    """What is not honoured, each naming its field."""

    @property
    def key_hashes(self) -> KeyHashes:
        """What a router may know of the API keys."""
        return {ref: hashlib.sha256(key.encode()).hexdigest() for ref, key in self.secrets.items()}

    def api_keys(self) -> Iterator[tuple[str, str]]:
        """(`tenant/client`, API key) of every key, in the file's order."""
        for tenant in self.tenants:
            for key in tenant.spec.api_keys:
                ref = (tenant.metadata.namespace, key.secret_ref.name, key.secret_ref.key)
                yield f"{tenant.metadata.name}/{key.client}", self.secrets[ref]


def load_manifest(path: Path) -> Manifest:
    """Read a file; raises `ManifestFaults` with every fault of all its documents."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestFaults([f"{path}: cannot be read: {error.strerror or error}"]) from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, name: str) -> Manifest:
    """Like `load_manifest`, from the bytes of a file called `name`."""
    try:
        documents = parse_documents(data, name)
    except YamlFault as error:
        raise ManifestFaults([str(error)]) from error
    reading = _Reading(name)
    for document in documents:
        reading.add(document)
    return reading.finish()


class _Reading:
    """Collects the resources of a file and the faults of each, then what is wrong between them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.services: list[tuple[Document, FairInferenceService]] = []
        self.tenants: list[tuple[Document, InferenceTenant]] = []
        self.secrets: dict[tuple[str, str, str], str] = {}
        self.unread = False
        """Whether some resource could not be read, so that calling another one missing would mislead."""

    def add(self, document: Document) -> None:
        data = document.data if isinstance(document.data, Mapping) else {}
        kind = data.get("kind")
        faults: Sequence[Fault]
        if kind == "FairInferenceService":
            service, faults = parse_service(document.data)
            if service is not None:
                self.services.append((document, service))
                self.warnings += not_honoured(data)
        elif kind == "InferenceTenant":
            tenant, faults = parse_tenant(document.data)
            if tenant is not None:
                self.tenants.append((document, tenant))
        elif kind == "Secret":
            faults = self._add_secret(document.data)
        else:
            faults = self._other(document, kind)
        self.unread = self.unread or bool(faults)
        self.report(document, faults)

    def report(self, document: Document, faults: Sequence[Fault]) -> None:
        for fault in faults:
            line = document.line_of(fault.path)
            where = f"{self.name}:{line}: document {document.number}{_title(document.data)}"
            self.lines.append(f"{where} {fault}")

    def _add_secret(self, data: object) -> Sequence[Fault]:
        secret, faults = decode(Secret, data)
        if secret is None:
            return faults
        found: list[Fault] = []
        entries = dict(secret.string_data)
        for key, text in secret.data.items():
            try:
                entries.setdefault(key, base64.b64decode(text, validate=True).decode())
            except (binascii.Error, UnicodeDecodeError, ValueError):
                found.append(
                    Fault(f"data.{key}", "is not text in base64; stringData takes it plain")
                )
        for key, text in entries.items():
            self.secrets[(secret.metadata.namespace, secret.metadata.name, key)] = text
        return found

    def _other(self, document: Document, kind: object) -> Sequence[Fault]:
        if not isinstance(document.data, Mapping):
            return [
                Fault("", f"must be a resource with apiVersion and kind, not {show(document.data)}")
            ]
        if not isinstance(kind, str):
            return [Fault("kind", f"must be one of {', '.join(KINDS)}, not {show(kind)}")]
        if guess := did_you_mean(kind, KINDS):
            return [Fault("kind", f"{show(kind)} is unknown{guess}")]
        self.warnings.append(f"document {document.number}: kind {kind} is passed over")
        return []

    def finish(self) -> Manifest:
        self._between()
        if self.lines:
            raise ManifestFaults(self.lines)
        service = self.services[0][1]
        served = tuple(tenant for _, tenant in self.tenants if serves(service, tenant))
        for _, tenant in self.tenants:
            if tenant not in served:
                self.warnings.append(
                    f"InferenceTenant {tenant.metadata.namespace}/{tenant.metadata.name} is not "
                    f"served: another namespace, or not taken by spec.tenancy.selector"
                )
        return Manifest(
            service=service,
            tenants=served,
            secrets=self.secrets,
            warnings=tuple(self.warnings),
        )

    def _between(self) -> None:
        if not self.services and not self.unread:
            self.lines.append(f"{self.name}: has no FairInferenceService")
        for document, _ in self.services[1:]:
            self.report(
                document,
                [Fault("kind", "a file may hold one FairInferenceService; remove this one")],
            )
        for document, service in self.services[:1]:
            self.report(document, list(_not_local(service)))
        seen: set[tuple[str, str]] = set()
        owners: dict[str, str] = {}
        for document, tenant in self.tenants:
            identity = (tenant.metadata.namespace, tenant.metadata.name)
            if identity in seen:
                self.report(document, [Fault("metadata.name", f"{identity[1]!r} is given twice")])
            seen.add(identity)
            self.report(document, list(self._keys(tenant, owners)))

    def _keys(self, tenant: InferenceTenant, owners: dict[str, str]) -> Iterator[Fault]:
        """Faults of a tenant's API keys; `owners` remembers whose a key is."""
        for index, key in enumerate(tenant.spec.api_keys):
            path = f"spec.apiKeys[{index}].secretRef"
            ref = key.secret_ref
            text = self.secrets.get((tenant.metadata.namespace, ref.name, ref.key))
            if text is None and self.unread:
                continue
            if text is None:
                yield Fault(
                    path,
                    f"no Secret {tenant.metadata.namespace}/{ref.name} with an entry {ref.key!r} "
                    f"in this file; add a document of kind Secret with stringData",
                )
                continue
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                yield Fault(path, "the key must be ASCII without blanks or control characters")
            owner = owners.setdefault(text, f"{tenant.metadata.name}/{key.name}")
            if owner != f"{tenant.metadata.name}/{key.name}":
                yield Fault(path, f"holds the same key as {owner}; one key identifies one client")


def _not_local(service: FairInferenceService) -> Iterator[Fault]:
    if service.spec.engine.runtime is not Runtime.SIMULATOR:
        yield Fault(
            "spec.engine.runtime",
            f"{service.spec.engine.runtime.value} cannot run as a local process yet; "
            "use runtime: Simulator",
        )


def _title(data: object) -> str:
    if not isinstance(data, Mapping):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    words = [word for word in (data.get("kind"), name) if isinstance(word, str)]
    text = " ".join(words)
    return f" ({text})" if text.isprintable() and 0 < len(text) <= 100 else ""
