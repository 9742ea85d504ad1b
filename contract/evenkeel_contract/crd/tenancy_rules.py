"""The rules of `spec.tenancy` in CEL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evenkeel_contract.crd.rule import SHORT_DURATION, Rule, on_field
from evenkeel_contract.identityheaders import NAMES_NO_TENANT, NO_PROXY, IdentityHeader
from evenkeel_contract.signedkeys import SELF_SERVICE_NEEDS_TOKENS
from evenkeel_contract.spec.credentials import JwtIssuer, SelfService, SignedKeys
from evenkeel_contract.spec.resources import Tenancy
from evenkeel_contract.tokenissuers import NO_KEYS, NO_TENANT

TENANCY_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    IdentityHeader: (
        Rule(
            mirrors="identity_headers_name_no_tenant",
            rule="has(self.preset) || has(self.tenant) || (has(self.client) && has(self.defaultTenant))",
            message=NAMES_NO_TENANT,
        ),
    ),
    SignedKeys: (
        on_field(
            "maxLifetime",
            "must be from 1m to 87840h (10 years)",
            mirrors="credentials_live_beyond_reason",
            rule=f"!self.maxLifetime.matches({SHORT_DURATION}) || "
            "(duration(self.maxLifetime) >= duration('1m') && "
            "duration(self.maxLifetime) <= duration('87840h'))",
        ),
        Rule(
            mirrors="own_keys_live_beyond_reason",
            rule=f"!has(self.selfService) || !self.selfService.lifetime.matches({SHORT_DURATION}) || "
            f"!self.maxLifetime.matches({SHORT_DURATION}) || "
            "duration(self.selfService.lifetime) <= duration(self.maxLifetime)",
            message="selfService.lifetime: must be at most maxLifetime",
            field="selfService.lifetime",
        ),
    ),
    SelfService: (
        on_field(
            "lifetime",
            "must be at least 1h",
            mirrors="own_keys_live_beyond_reason",
            rule=f"!self.lifetime.matches({SHORT_DURATION}) || "
            "duration(self.lifetime) >= duration('1h')",
        ),
    ),
    JwtIssuer: (
        on_field(
            "jwksURL",
            NO_KEYS.format(other="secretRef"),
            mirrors="issuers_lack_keys",
            rule="has(self.jwksURL) != has(self.secretRef)",
        ),
        on_field(
            "tenantClaim",
            NO_TENANT,
            mirrors="issuers_name_no_tenant",
            rule="has(self.tenantClaim) || (has(self.tenantOf) && size(self.tenantOf) > 0)",
        ),
        on_field(
            "leeway",
            "must be at most 10m",
            mirrors="credentials_live_beyond_reason",
            rule=f"!self.leeway.matches({SHORT_DURATION}) || "
            "duration(self.leeway) <= duration('10m')",
        ),
    ),
    Tenancy: (
        on_field(
            "identityHeaders",
            NO_PROXY,
            mirrors="identity_headers_have_no_proxy",
            rule="!has(self.identityHeaders) || size(self.identityHeaders) == 0 || "
            "(has(self.trustedProxies) && size(self.trustedProxies) > 0)",
        ),
        Rule(
            mirrors="own_keys_have_no_issuer",
            rule="!has(self.signedKeys) || !has(self.signedKeys.selfService) || "
            "(has(self.jwt) && size(self.jwt) > 0)",
            message=f"signedKeys.selfService: {SELF_SERVICE_NEEDS_TOKENS}",
            field="signedKeys.selfService",
        ),
    ),
}
"""Rules for objects of a class."""
