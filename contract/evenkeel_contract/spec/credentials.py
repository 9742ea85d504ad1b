"""Credentials that name their client themselves: signed keys, and the tokens of an issuer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from evenkeel_contract.identityheaders import TenantName
from evenkeel_contract.signedkeys import MAX_OWN_KEYS, OWN_LIFETIME_S
from evenkeel_contract.spec.parts import DnsName, SecretKeyRef
from evenkeel_contract.tokenissuers import LEEWAY_S, Claim, GroupRule, Text
from evenkeel_contract.values import Duration, Length, Range, Url

_LIFETIME: Final = Duration.from_plain("8784h")
_OWN_LIFETIME: Final = Duration.from_plain(f"{OWN_LIFETIME_S // 3600}h")
_LEEWAY: Final = Duration.from_plain(f"{LEEWAY_S}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """Refers to a whole Secret in the same namespace."""

    name: DnsName
    """Name of the Secret. On Kubernetes it needs the label evenkeel.dev/use=true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfService:
    """Keys that clients create with a token of an issuer (`POST /v1/keys`)."""

    keys_per_client: Annotated[int, Range(1, MAX_OWN_KEYS)] = 1
    """Keys that each client may have at a time. During the renewal of one, its predecessor is valid too."""
    lifetime: Duration = _OWN_LIFETIME
    """Longest time from the creation of such a key to its end, at least 1h and at most `maxLifetime`. A new key lasts for at least half
    of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedKeys:
    """API keys that name their client and their end, so that they are in no list (`evenkeel keys create`)."""

    secret_ref: SecretRef
    """Secret with the signing keys. The name of an entry is the id of a signing key; its value has 32 characters or more. Keys that any
    of them signed are accepted."""
    max_lifetime: Duration = _LIFETIME
    """Longest time from the creation of an API key to its end. Keys that live longer are refused."""
    self_service: SelfService | None = None
    """Keys that clients create themselves, with a token of an issuer in `jwt`. If not set, only administrators create keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtIssuer:
    """An issuer of JSON Web Tokens that identify clients."""

    issuer: Text
    """Value of the claim `iss`."""
    audience: Text
    """Value that the claim `aud` must have or contain."""
    jwks_URL: Annotated[str, Url(), Length(1, 2048)] | None = None
    """Address of the issuer's keys. Routers read it again when a token names a key that they do not know."""
    secret_ref: SecretKeyRef | None = None
    """Secret entry with the issuer's keys, a JSON Web Key Set, instead of `jwksURL`."""
    tenant_claim: Claim | None = None
    """Claim with the tenant's name. A dot leads into an object: `org.name`."""
    client_claim: Claim = "sub"
    """Claim with the client's name."""
    groups_claim: Claim = "groups"
    """Claim with the list of groups that `tenantOf` compares."""
    tenant_of: Annotated[tuple[GroupRule, ...], Length(0, 256)] = ()
    """Tenants by group. The first rule whose group the token has decides, before `tenantClaim`."""
    allowed_tenants: Annotated[tuple[TenantName, ...], Length(0, 1000)] = ()
    """Tenants that the issuer may name. If empty, it may name all."""
    leeway: Duration = _LEEWAY
    """How far the clocks of issuer and routers may differ, at most 10m."""
