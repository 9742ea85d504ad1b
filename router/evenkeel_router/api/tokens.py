"""JSON Web Tokens of an issuer as identities (RFC 7519, RFC 8725).

The type of the issuer's key decides which algorithms a token may name, so neither `none` nor a MAC by a public key is accepted. Keys for
MACs count only where an administrator gave them, never where they were read from an address. Headers that name keys (`jwk`,
`jku`, `x5u`) are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from evenkeel_contract.key import MAX_NAME_BYTES, ClientKey
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.revocations import RevocationList
from evenkeel_contract.tokenissuers import TokenIssuerConfig
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey, import_key

from evenkeel_router.api.identity_headers import Named
from evenkeel_router.api.signed_keys import CredentialRefused
from evenkeel_router.api.token_keys import KeySets, KeysWanted, PlainKey, read_key_set

MAX_TOKEN: Final = 8192
"""Longest token in characters; the head of a request has the same bound for a line."""
_MAX_TRIES: Final = 8
"""Keys that are tried for a token that names none."""
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
    "oct": ("HS256", "HS384", "HS512"),
}
_REGISTRY: Final = jws.JWSRegistry(
    algorithms=[one for all_ in _ALGORITHMS.values() for one in all_]
)
Key = OctKey | RSAKey | ECKey | OKPKey


class Tokens:
    """The issuers of a service."""

    def __init__(
        self,
        issuers: Sequence[TokenIssuerConfig],
        key_sets: KeySets,
        revocations: RevocationList,
        *,
        namespace: str,
    ) -> None:
        self._issuers = [
            _Issuer(config, key_sets, revocations, namespace=namespace) for config in issuers
        ]

    def verified(self, text: str, now_s: float) -> tuple[Named, float]:
        """(whom a token names, when it ends); raises `CredentialRefused`, and `KeysWanted` if it needs a key that was not read."""
        if len(text) > MAX_TOKEN:
            raise CredentialRefused("too_long", f"a token of {len(text)} characters")
        header, claims = _unverified(text)
        named = [one for one in self._issuers if one.config.issuer == claims.get("iss")]
        audiences = claims.get("aud")
        listed = audiences if isinstance(audiences, list) else [audiences]
        fits = [one for one in named if one.config.audience in listed]
        if not fits:
            reason = "wrong_audience" if named else "unknown_issuer"
            raise CredentialRefused(
                reason, f"iss {_short(claims.get('iss'))}, aud {_short(audiences)}"
            )
        return fits[0].verified(text, header, now_s)


class _Issuer:
    def __init__(
        self,
        config: TokenIssuerConfig,
        key_sets: KeySets,
        revocations: RevocationList,
        *,
        namespace: str,
    ) -> None:
        self.config = config
        self._key_sets = key_sets
        self._revocations = revocations
        self._namespace = namespace
        self._given = None if config.jwks is None else read_key_set(config.jwks)
        self._imported: tuple[Sequence[PlainKey], list[tuple[PlainKey, Key]]] = ((), [])

    def verified(self, text: str, header: Mapping[str, Any], now_s: float) -> tuple[Named, float]:
        """(whom the token names, when it ends)."""
        claims = self._signed(text, header)
        try:
            ends_s = self._ends_s(claims, now_s)
            tenant, client = self._names(claims)
        except CredentialRefused as refusal:
            refusal.whose = f"{self.config.issuer} {_name(claims, 'sub') or ''}".strip()
            raise
        whose = ClientKey(self._namespace, tenant, client).identity
        if self._revocations.revokes_identity(whose, _number(claims.get("iat")) or 0.0):
            raise CredentialRefused("revoked", "its identity is revoked", whose=whose)
        allowed = self.config.allowed_tenants
        if allowed and tenant not in allowed:
            raise CredentialRefused("tenant_not_allowed", f"tenant {_short(tenant)}", whose=whose)
        return Named("", tenant, client, "authorization"), ends_s

    def _signed(self, text: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims, once their signature was checked."""
        algorithm = header.get("alg")
        kid = header.get("kid")
        error: Exception | None = None
        for key in self._candidates(str(algorithm), kid):
            try:
                payload = jws.deserialize_compact(
                    text, key, algorithms=[str(algorithm)], registry=_REGISTRY
                ).payload
                return _object(payload)
            except (JoseError, ValueError, TypeError) as fault:  # what joserfc raises for bad input
                error = fault
        detail = f"alg {_short(algorithm)}, kid {_short(kid)}"
        if error is None:
            raise CredentialRefused("algorithm", detail)
        raise CredentialRefused("bad_signature", detail) from error

    def _candidates(self, algorithm: str, kid: object) -> list[Key]:
        """Keys that may have signed: those that the header names, of the type that the algorithm needs."""
        keys = self._keys()
        if kid is not None:
            keys = [one for one in keys if one[0].get("kid") == kid]
            if not keys:
                raise self._wanted(f"no key {_short(kid)}")
        fits = [key for plain, key in keys if algorithm in _algorithms_of(plain)]
        return fits[:_MAX_TRIES]

    def _keys(self) -> list[tuple[PlainKey, Key]]:
        if self._given is not None:
            plain: Sequence[PlainKey] | None = self._given
        else:
            assert self.config.jwks_URL is not None  # checked with the configuration
            found = self._key_sets.of(self.config.jwks_URL)
            plain = found and [key for key in found if key.get("kty") != "oct"]
        if plain is None:
            raise self._wanted("its issuer's keys were not read")
        if self._imported[0] != plain:
            self._imported = plain, list(_imported(plain))
        return self._imported[1]

    def _wanted(self, detail: str) -> CredentialRefused:
        url = self.config.jwks_URL
        if url is None:
            return CredentialRefused("unknown_issuer_key", detail)
        return KeysWanted(url, detail, has_keys=self._key_sets.of(url) is not None)

    def _ends_s(self, claims: Mapping[str, Any], now_s: float) -> float:
        leeway_s = self.config.leeway_s
        ends = _number(claims.get("exp"))
        if ends is None:
            raise CredentialRefused("no_expiry", "the claim exp is missing or no number")
        if now_s >= ends + leeway_s:
            detail = f"it ended {now_s - ends:.0f} s ago; compare the clocks of issuer and router"
            raise CredentialRefused("expired", detail)
        for name in ("nbf", "iat"):
            if name not in claims:
                continue
            begins = _number(claims[name])
            if begins is None:
                raise CredentialRefused("malformed", f"the claim {name} is no number")
            if now_s < begins - leeway_s:
                detail = f"{name} is {begins - now_s:.0f} s from now; compare the clocks of issuer and router"
                raise CredentialRefused("not_yet_valid", detail)
        return float(ends + leeway_s)

    def _names(self, claims: Mapping[str, Any]) -> tuple[str, str]:
        """(tenant, client)."""
        groups = _claim(claims, self.config.groups_claim)
        listed = groups if isinstance(groups, list) else [groups]
        rules = (rule.tenant for rule in self.config.tenant_of if rule.group in listed)
        tenant = next(rules, None)
        if tenant is None and self.config.tenant_claim is not None:
            tenant = _name(claims, self.config.tenant_claim)
        if tenant is None:
            raise CredentialRefused("no_tenant", "no group and no claim names a tenant")
        client = _name(claims, self.config.client_claim)
        if client is None:
            detail = f"the claim {self.config.client_claim} is missing or no name"
            raise CredentialRefused("no_client", detail)
        return tenant, client


def _imported(plain: Sequence[PlainKey]) -> Iterator[tuple[PlainKey, Key]]:
    """The keys that can be used. Issuers also publish keys for encryption, and of types that are not known here."""
    for key in plain:
        if key.get("use", "sig") != "sig" or not _algorithms_of(key):
            continue
        try:
            public = {name: value for name, value in key.items() if name not in ("use", "key_ops")}
            yield key, import_key(public)  # type: ignore[arg-type]
        except (JoseError, ValueError, TypeError):
            continue


def _algorithms_of(key: PlainKey) -> tuple[str, ...]:
    """The algorithms that a key's type, and its own `alg`, allow."""
    known = _ALGORITHMS.get(str(key.get("kty")), ())
    own = key.get("alg")
    return known if own is None else tuple(one for one in known if one == own)


def _unverified(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(header, claims), before the signature is checked: to find the issuer."""
    try:
        parts = jws.extract_compact(text.encode())
        return parts.headers(), _object(parts.payload)
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise CredentialRefused("malformed", "it cannot be read") from error


def _object(payload: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(payload)
    except UNREADABLE as error:
        raise ValueError("no JSON") from error
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by its path: names of claims may have dots themselves."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _name(claims: Mapping[str, Any], claim: str) -> str | None:
    found = _claim(claims, claim)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    is_name = isinstance(found, str) and found and found.isprintable()
    return found if is_name and len(found.encode()) <= MAX_NAME_BYTES else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _short(value: object) -> str:
    """A value of the sender for the log."""
    return repr(value)[:80]
