"""Signing keys from a file: a Secret of Kubernetes, a file of `evenkeel up`, or one of `evenkeel route`."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evenkeel_contract.signedkeys import salvage_signing_keys

from evenkeel_cli.yamlfile import YamlFault, parse_documents

STDIN: Final = "-"
ROUTE_NAMESPACE: Final = "default"


class SigningKeysError(Exception):
    """The file has no signing keys; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The signing keys of a service."""

    namespace: str
    """Namespace of the service and of its tenants."""
    keys: Mapping[str, str]
    """Id → signing key."""

    def newest(self, wanted: str | None) -> str:
        """The id of the key that signs: the last one, unless another is wanted. Raises `SigningKeysError`."""
        if wanted is not None and wanted not in self.keys:
            listed = ", ".join(sorted(self.keys))
            raise SigningKeysError(f"there is no signing key {wanted!r}; the file has {listed}")
        return wanted or max(self.keys)


def read_signing_keys(source: str) -> SigningKeys:
    """Read a file, or standard input for `-`; raises `SigningKeysError`."""
    try:
        data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
        documents = [
            one.data for one in parse_documents(data, source) if isinstance(one.data, dict)
        ]
    except OSError as error:
        raise SigningKeysError(f"{source} cannot be read: {error.strerror or error}") from error
    except YamlFault as error:
        raise SigningKeysError(str(error)) from error
    namespace, entries = _found(documents)
    good, bad = salvage_signing_keys(entries)
    if bad:
        raise SigningKeysError(f"{source}: {bad[0]}")
    if not good:
        raise SigningKeysError(
            f"{source} has no signing keys; give a Secret (kubectl get secret NAME --output yaml), or a file with "
            "signedKeys of `evenkeel route` or `evenkeel up`"
        )
    return SigningKeys(namespace, good)


def _found(documents: list[dict[str, Any]]) -> tuple[str, Mapping[str, str]]:
    """(namespace, id → signing key) of the documents."""
    for document in documents:
        signed = document.get("signedKeys")
        if isinstance(signed, dict):
            listed = signed.get("keys") or ()
            keys = {str(one.get("id")): str(one.get("secret")) for one in listed}
            return ROUTE_NAMESPACE, keys
    secrets = [one for one in documents if one.get("kind") == "Secret"]
    named = next(filter(None, map(_named_secret, documents)), None)
    for secret in secrets:
        metadata = secret.get("metadata") or {}
        if named is None or metadata.get("name") == named:
            return str(metadata.get("namespace", ROUTE_NAMESPACE)), dict(_entries(secret))
    return ROUTE_NAMESPACE, {}


def _named_secret(document: dict[str, Any]) -> str | None:
    """The Secret with signing keys that a service names."""
    found: Any = document
    for name in ("spec", "tenancy", "signedKeys", "secretRef", "name"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _entries(secret: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, text in (secret.get("stringData") or {}).items():
        yield name, str(text).strip()
    for name, text in (secret.get("data") or {}).items():
        try:
            yield name, base64.b64decode(str(text), validate=True).decode().strip()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise SigningKeysError(f"entry {name} of the Secret is not text in Base64") from error
