"""Signing keys from a file: a Secret of Kubernetes, a file of `evenkeel up`, or one of `evenkeel route`."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from evenkeel_contract.signedkeys import YEAR_S, salvage_signing_keys
from evenkeel_contract.values import Duration

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
    max_lifetime_s: float | None = None
    """Routers refuse keys that live longer. None: the file does not say."""
    tenants: frozenset[str] | None = None
    """Tenants whose keys the routers of this file accept. None: any, or the file does not say."""

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
    found = _found(documents)
    good, bad = salvage_signing_keys(found.keys)
    if bad:
        raise SigningKeysError(f"{source}: {bad[0]}")
    if not good:
        raise SigningKeysError(
            f"{source} has no signing keys; give a Secret (kubectl get secret NAME --output yaml), or a file with "
            "signedKeys of `evenkeel route` or `evenkeel up`"
        )
    return replace(found, keys=good)


def _found(documents: list[dict[str, Any]]) -> SigningKeys:
    """What the documents say; no file has been checked yet."""
    for document in documents:
        signed = document.get("signedKeys")
        if isinstance(signed, dict):
            listed = signed.get("keys") or ()
            keys = {str(one.get("id")): str(one.get("secret")) for one in listed}
            given = signed.get("maxLifetimeS", YEAR_S)
            longest_s = given if isinstance(given, int) else None
            return SigningKeys(ROUTE_NAMESPACE, keys, longest_s, _tenants_of_route(document))
    secrets = [one for one in documents if one.get("kind") == "Secret"]
    tenancy = next(filter(_named_secret, map(_tenancy, documents)), {})
    named = _named_secret(tenancy)
    for secret in secrets:
        metadata = secret.get("metadata") or {}
        if named is None or metadata.get("name") == named:
            namespace = str(metadata.get("namespace", ROUTE_NAMESPACE))
            return SigningKeys(namespace, dict(_entries(secret)), _longest_s(tenancy))
    return SigningKeys(ROUTE_NAMESPACE, {})


def _tenants_of_route(document: Mapping[str, Any]) -> frozenset[str] | None:
    """The tenants of a file of `evenkeel route`; None if it accepts others."""
    if document.get("undeclaredTenants", "Reject") != "Reject":
        return None
    return frozenset(
        str(one.get("name")) for one in document.get("tenants") or () if isinstance(one, dict)
    )


def _longest_s(tenancy: Mapping[str, Any]) -> float | None:
    """`signedKeys.maxLifetime`; None without `signedKeys`."""
    signed = tenancy.get("signedKeys")
    if not isinstance(signed, dict):
        return None
    given = signed.get("maxLifetime")
    try:
        return YEAR_S if given is None else Duration.from_plain(given).seconds
    except ValueError as error:
        raise SigningKeysError(f"maxLifetime {error}") from error


def _tenancy(document: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.tenancy` of a service or a gateway; empty for others."""
    spec = document.get("spec")
    found = spec.get("tenancy") if isinstance(spec, dict) else None
    return found if isinstance(found, dict) else {}


def _named_secret(tenancy: Mapping[str, Any]) -> str | None:
    """The Secret with signing keys that a service or a gateway names."""
    found: Any = tenancy
    for name in ("signedKeys", "secretRef", "name"):
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
