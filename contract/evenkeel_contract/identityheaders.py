"""Headers by which trusted proxies name the tenant and the client of a request (design §5.1).

A service and a RouterConfig have the same entries. A preset stands for the names that a program sends; `expanded` gives the
names of all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from evenkeel_contract.key import MAX_NAME_BYTES
from evenkeel_contract.names import CLIENT_HEADERS
from evenkeel_contract.values import PRINTABLE, Length, Pattern

HeaderName = Annotated[
    str, Pattern(r"[A-Za-z0-9_-]{1,64}", "the name of a header such as x-team"), Length(1, 64)
]
TenantName = Annotated[str, Length(1, MAX_NAME_BYTES), PRINTABLE]
IDENTITY_HEADERS: Final = 16
"""Most entries of a service."""


class IdentityPreset(Enum):
    """Programs whose headers are known."""

    LITELLM = "LiteLLM"
    OPEN_WEBUI = "OpenWebUI"
    LLMD = "LLMD"
    ENVOY = "Envoy"


class UndeclaredTenants(Enum):
    """Handling of a request whose tenant is not declared."""

    REJECT = "Reject"
    SHARE = "Share"  # all such tenants are clients of one tenant
    ACCEPT = "Accept"  # each is a tenant of its own


UNDECLARED: Final = "undeclared"
"""The tenant of all undeclared tenants with `Share`; a declared tenant of that name sets its weight and limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityHeader:
    """Headers of one proxy that name the tenant and the client of a request."""

    preset: IdentityPreset | None = None
    """Program whose headers are meant. LiteLLM: its team and user (`add_user_information_to_llm_headers`). OpenWebUI: its user's
    e-mail address, as a client of the tenant `open-webui`. LLMD: the fairness id, as the tenant. Envoy: `x-tenant-id` and `x-user-id`,
    which its configuration must set. Other fields of the entry replace what the preset sets."""
    tenant: HeaderName | None = None
    """Header with the name of the tenant."""
    client: HeaderName | None = None
    """Header with the name of the client. Without it, the client is `default`."""
    default_tenant: TenantName | None = None
    """Tenant of a request that has the client's header only. If not set, such a request has no identity."""


SomeHeaders = Annotated[tuple[IdentityHeader, ...], Length(1, IDENTITY_HEADERS)]


@dataclass(frozen=True, slots=True)
class Headers:
    """One entry with all names, in lower case."""

    tenant: str
    """Header of the tenant's name; empty if there is none."""
    client: str
    """Header of the client's name; empty if there is none."""
    default_tenant: str
    """Tenant without the tenant's header; empty if there is none."""


_FAIRNESS_IDS: Final = tuple(name for name in CLIENT_HEADERS if name.endswith("-fairness-id"))
PRESETS: Final[Mapping[IdentityPreset, tuple[Headers, ...]]] = {
    # litellm/proxy/litellm_pre_call_utils.py: `add_headers_to_llm_call` (1.106.2)
    IdentityPreset.LITELLM: (
        Headers("x-litellm-user_api_key_team_alias", "x-litellm-user_api_key_user_id", ""),
    ),
    # open_webui/env.py: `FORWARD_USER_INFO_HEADER_USER_EMAIL` (0.12.4)
    IdentityPreset.OPEN_WEBUI: (Headers("", "x-openwebui-user-email", "open-webui"),),
    IdentityPreset.LLMD: tuple(Headers(name, "", "") for name in _FAIRNESS_IDS),
    # Envoy sends what its configuration says; its documentation of limits by usage uses these names.
    IdentityPreset.ENVOY: (Headers("x-tenant-id", "x-user-id", ""),),
}


def expanded(entries: Iterable[IdentityHeader]) -> Iterator[Headers]:
    """The names of all entries, in order."""
    for entry in entries:
        for known in PRESETS[entry.preset] if entry.preset else (Headers("", "", ""),):
            yield Headers(
                (entry.tenant or known.tenant).lower(),
                (entry.client or known.client).lower(),
                entry.default_tenant or known.default_tenant,
            )


def names_no_tenant(entry: IdentityHeader) -> bool:
    """Whether no request could get a tenant by an entry."""
    given = entry.preset or entry.tenant
    return given is None and (entry.client is None or entry.default_tenant is None)


NAMES_NO_TENANT: Final = "names no tenant; set preset, or tenant, or both client and defaultTenant"
NO_PROXY: Final = (
    "needs trustedProxies, since headers of other senders are ignored; add the proxy's network"
)
