"""The rules of `spec.exposure` and `spec.tenancy` across their fields, which services and gateways share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from evenkeel_contract.identityheaders import NAMES_NO_TENANT, NO_PROXY, names_no_tenant
from evenkeel_contract.signedkeys import (
    MAX_LIFETIME_S,
    MIN_OWN_LIFETIME_S,
    OUTLIVES_MAXIMUM,
    SELF_SERVICE_NEEDS_TOKENS,
)
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.tokenissuers import MAX_LEEWAY_S, NO_KEYS, NO_TENANT
from evenkeel_contract.values import Fault, show

_Owner: TypeAlias = FairInferenceService | FairInferenceGateway

OWNED_PREFIXES: Final = ("evenkeel.dev/", "app.kubernetes.io/")
"""Beginnings of labels and annotations of generated objects."""


def exposed_twice(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    if exposure.ingress is not None and exposure.http_route is not None:
        yield Fault(
            "spec.exposure.httpRoute",
            "is set together with spec.exposure.ingress; remove one of the two",
            about=("spec.exposure.ingress",),
        )


def exposure_takes_what_is_ours(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    for name, part in (("ingress", exposure.ingress), ("httpRoute", exposure.http_route)):
        if part is None:
            continue
        for field, given in (("annotations", part.annotations), ("labels", part.labels)):
            for key in given:
                if key.startswith(OWNED_PREFIXES):
                    path = f"spec.exposure.{name}.{field}[{show(key)}]"
                    yield Fault(path, "is set by Evenkeel; choose another name")


# What controllers insert into their own configuration as it is: of ingress-nginx, NGINX, HAProxy (haproxy.org), HAProxy Ingress.
_CODE: Final = re.compile(r".*-snippets?|(haproxy-)?ingress\.(github\.io|kubernetes\.io)/config-.*")


def exposure_annotations_are_code(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    for name, part in (("ingress", exposure.ingress), ("httpRoute", exposure.http_route)):
        for key in {} if part is None else part.annotations:
            if _CODE.fullmatch(key):
                yield Fault(
                    f"spec.exposure.{name}.annotations[{show(key)}]",
                    "is text that the controller adds to its own configuration, which all hosts share; set it in the controller",
                )


EXPOSURE_RULES: Final[Sequence[Callable[[_Owner], Iterable[Fault]]]] = (
    exposed_twice,
    exposure_takes_what_is_ours,
    exposure_annotations_are_code,
)


def identity_headers_have_no_proxy(service: _Owner) -> Iterator[Fault]:
    tenancy = service.spec.tenancy
    if tenancy.identity_headers and not tenancy.trusted_proxies:
        yield Fault(
            "spec.tenancy.identityHeaders", NO_PROXY, about=("spec.tenancy.trustedProxies",)
        )


def identity_headers_name_no_tenant(service: _Owner) -> Iterator[Fault]:
    for index, entry in enumerate(service.spec.tenancy.identity_headers):
        if names_no_tenant(entry):
            yield Fault(f"spec.tenancy.identityHeaders[{index}]", NAMES_NO_TENANT)


def issuers_lack_keys(service: _Owner) -> Iterator[Fault]:
    for index, issuer in enumerate(service.spec.tenancy.jwt):
        if (issuer.jwks_URL is None) == (issuer.secret_ref is None):
            yield Fault(f"spec.tenancy.jwt[{index}].jwksURL", NO_KEYS.format(other="secretRef"))


def issuers_name_no_tenant(service: _Owner) -> Iterator[Fault]:
    for index, issuer in enumerate(service.spec.tenancy.jwt):
        if issuer.tenant_claim is None and not issuer.tenant_of:
            yield Fault(f"spec.tenancy.jwt[{index}].tenantClaim", NO_TENANT)


def credentials_live_beyond_reason(service: _Owner) -> Iterator[Fault]:
    tenancy = service.spec.tenancy
    if tenancy.signed_keys is not None and not (
        60 <= tenancy.signed_keys.max_lifetime.seconds <= MAX_LIFETIME_S
    ):
        path = "spec.tenancy.signedKeys.maxLifetime"
        yield Fault(path, f"must be from 1m to {MAX_LIFETIME_S // 3600}h (10 years)")
    for index, issuer in enumerate(tenancy.jwt):
        if issuer.leeway.seconds > MAX_LEEWAY_S:
            yield Fault(f"spec.tenancy.jwt[{index}].leeway", "must be at most 10m")


def own_keys_have_no_issuer(service: _Owner) -> Iterator[Fault]:
    tenancy = service.spec.tenancy
    if tenancy.signed_keys is not None and tenancy.signed_keys.self_service and not tenancy.jwt:
        path = "spec.tenancy.signedKeys.selfService"
        yield Fault(path, SELF_SERVICE_NEEDS_TOKENS, about=("spec.tenancy.jwt",))


def own_keys_live_beyond_reason(service: _Owner) -> Iterator[Fault]:
    signed = service.spec.tenancy.signed_keys
    if signed is None or signed.self_service is None:
        return
    path = "spec.tenancy.signedKeys.selfService.lifetime"
    seconds = signed.self_service.lifetime.seconds
    if seconds < MIN_OWN_LIFETIME_S:
        yield Fault(path, "must be at least 1h")
    elif seconds > signed.max_lifetime.seconds:
        longest = f"maxLifetime ({signed.max_lifetime.text})"
        maximum = "spec.tenancy.signedKeys.maxLifetime"
        yield Fault(path, OUTLIVES_MAXIMUM.format(longest=longest), about=(maximum,))


TENANCY_RULES: Final[Sequence[Callable[[_Owner], Iterable[Fault]]]] = (
    identity_headers_have_no_proxy,
    identity_headers_name_no_tenant,
    credentials_live_beyond_reason,
    own_keys_have_no_issuer,
    own_keys_live_beyond_reason,
    issuers_lack_keys,
    issuers_name_no_tenant,
)
