"""Reads the Secrets of a manifest: their entries as text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from evenkeel_contract.decode import salvage
from evenkeel_contract.spec.parts import DnsName
from evenkeel_contract.values import Fault

SecretEntries = Mapping[tuple[str, str, str], str]
"""(namespace, Secret, key in it) → its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    """The identity of a Secret; other fields are accepted and ignored."""

    OPEN: ClassVar[bool] = True

    name: DnsName
    namespace: DnsName = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """The fields of a Kubernetes Secret that API keys need."""

    api_version: str
    kind: str
    metadata: _Metadata
    type: str = "Opaque"
    immutable: bool = False
    string_data: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret of a file."""

    namespace: str
    name: str
    entries: Mapping[str, str]
    """Key → its text; without those that have a fault."""


def read_secret(data: object) -> tuple[Secret, Sequence[Fault]]:
    """Read a document of kind Secret: what is valid of it, and every fault. Never raises."""
    secret, faults = salvage(_Document, data)
    found = list(faults)
    faulty = {fault.path for fault in faults}
    entries = {
        key: text for key, text in secret.string_data.items() if f"stringData.{key}" not in faulty
    }
    for key, text in secret.data.items():
        try:
            if f"data.{key}" not in faulty:
                entries.setdefault(key, base64.b64decode(text, validate=True).decode())
        except (binascii.Error, UnicodeDecodeError, ValueError):
            found.append(
                Fault(f"data.{key}", "is not text in base64; use stringData for plain text")
            )
    return Secret(secret.metadata.namespace, secret.metadata.name, entries), found


def entries_of(secrets: SecretEntries, namespace: str, name: str) -> dict[str, str]:
    """The entries of one Secret."""
    return {ref[2]: text for ref, text in secrets.items() if ref[:2] == (namespace, name)}
