"""Issuers of JSON Web Tokens (RFC 7519) whose tokens identify clients: a company's Keycloak, Entra ID, Okta, Dex and the like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from evenkeel_contract.identityheaders import TenantName
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.values import PRINTABLE, Length, Range, UniqueBy, Url

MAX_ISSUERS: Final = 16
LEEWAY_S: Final = 60
MAX_LEEWAY_S: Final = 600
MAX_KEY_SET_BYTES: Final = 256 * 1024
"""Longest JSON Web Key Set (RFC 7517 section 5)."""

Text = Annotated[str, Length(1, 1024), PRINTABLE]
Claim = Annotated[str, Length(1, 256), PRINTABLE]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """The tenant of the members of a group."""

    group: Text
    """Name of the group, as the token has it."""
    tenant: TenantName
    """Tenant of its members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssuerConfig:
    """An issuer whose tokens identify clients."""

    issuer: Text
    """Value of the claim `iss`."""
    audience: Text
    """Value that the claim `aud` must have or contain."""
    jwks_URL: Annotated[str, Url(), Length(1, 2048)] | None = None
    """Address of the issuer's keys. The router reads it again when a token names a key that it does not know."""
    jwks: Annotated[str, Length(2, MAX_KEY_SET_BYTES)] | None = None
    """The keys themselves, as a JSON Web Key Set."""
    tenant_claim: Claim | None = None
    """Claim with the tenant's name. A dot leads into an object: `org.name`."""
    client_claim: Claim = "sub"
    """Claim with the client's name."""
    groups_claim: Claim = "groups"
    """Claim with the list of groups that `tenantOf` compares."""
    tenant_of: Annotated[tuple[GroupRule, ...], Length(0, 256)] = ()
    """Tenants by group: the first rule whose group the token has decides, before `tenantClaim`."""
    allowed_tenants: Annotated[tuple[TenantName, ...], Length(0, 1000)] = ()
    """Tenants that the issuer may name. Empty: all."""
    leeway_s: Annotated[int, Range(0, MAX_LEEWAY_S)] = LEEWAY_S
    """How far the clocks of issuer and router may differ, in seconds."""


Issuers = Annotated[
    tuple[TokenIssuerConfig, ...], UniqueBy(("issuer", "audience")), Length(1, MAX_ISSUERS)
]

NO_KEYS: Final = "needs exactly one source of the issuer's keys; set jwksURL or {other}, not both"
NO_KEY_SET: Final = 'is no JSON Web Key Set, such as {"keys": [{"kty": "RSA", …}]}'
NO_TENANT: Final = "needs tenantClaim or tenantOf, since a client belongs to a tenant"


def issuer_faults(
    issuers: Iterable[TokenIssuerConfig],
) -> Iterator[tuple[int, str, str]]:
    """(index, field, message) of issuers whose fields do not fit together."""
    for index, issuer in enumerate(issuers):
        if (issuer.jwks_URL is None) == (issuer.jwks is None):
            yield index, "jwksURL", NO_KEYS.format(other="jwks")
        if issuer.tenant_claim is None and not issuer.tenant_of:
            yield index, "tenantClaim", NO_TENANT
        if issuer.jwks is not None and not is_key_set(issuer.jwks):
            yield index, "jwks", NO_KEY_SET


def is_key_set(text: str) -> bool:
    """Whether a text is a JSON Web Key Set with at least one key."""
    try:
        found = msgspec.json.decode(text)
    except UNREADABLE:
        return False
    keys = found.get("keys") if isinstance(found, dict) else None
    return isinstance(keys, list) and bool(keys) and all(isinstance(key, dict) for key in keys)
