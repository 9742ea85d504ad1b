"""The names of tenant and client in headers of a trusted proxy (DESIGN section 5).

Without `tenancy.identityHeaders`, one header has both: `tenant`, `tenant/client` or `namespace/tenant/client`. With it, each name has a
header of its own. Such a value is one name, whatever characters it has: names are escaped where they are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from evenkeel_contract.identityheaders import Headers, IdentityHeader, expanded
from evenkeel_contract.key import MAX_NAME_BYTES
from evenkeel_contract.names import CLIENT_HEADERS
from multidict import CIMultiDict, istr

from evenkeel_router.api.errors import Refusal, invalid

DEFAULT_CLIENT: Final = "default"
"""The client where only a tenant is named."""
_CODE: Final = "invalid_header"


class Named(NamedTuple):
    """Whom a request claims to be from."""

    namespace: str
    """Namespace of the tenant; empty: the service's."""
    tenant: str
    client: str
    source: str
    """The header with the tenant's name, for messages."""


class IdentityHeaders:
    """The headers that identify the client of a request from a trusted proxy."""

    def __init__(self, entries: Sequence[IdentityHeader] | None) -> None:
        self._entries: Sequence[Headers] = tuple(expanded(entries or ()))
        own = dict.fromkeys(
            name for entry in self._entries for name in (entry.tenant, entry.client) if name
        )
        self.are_configured = bool(own)
        """Whether they are of `identityHeaders`: then they decide before a key does."""
        self.names: Mapping[istr, str] = {istr(name): name for name in own or CLIENT_HEADERS}
        """Each header as headers are looked up, and as text."""

    def of(self, headers: CIMultiDict[str]) -> list[tuple[str, str]]:
        """Each of them that a request has, name and value."""
        return [
            (name, value)
            for key, name in self.names.items()
            if key in headers
            for value in headers.getall(key)
        ]

    def named(self, given: Sequence[tuple[str, str]]) -> Named | None:
        """Whom the headers name; None if no entry has a tenant. Raises `Refusal`."""
        if not self.are_configured:
            return joined(*given[0])
        values = dict(given)
        if len(values) != len(given):
            name = next(name for i, (name, _) in enumerate(given) if name in dict(given[:i]))
            message = f"More than one header identifies the client ({name}); send one."
            raise invalid(message, code="duplicate_header", param=name)
        named = (_of_entry(entry, values) for entry in self._entries)
        return next((one for one in named if one is not None), None)


def _of_entry(entry: Headers, values: Mapping[str, str]) -> Named | None:
    # An empty value is a missing one: proxies send one where they have no name.
    tenant, client = values.get(entry.tenant, ""), values.get(entry.client, "")
    if not tenant and client and entry.default_tenant:
        return Named("", entry.default_tenant, _checked(entry.client, client), entry.client)
    if not tenant:
        return None
    name = _checked(entry.client, client) if client else DEFAULT_CLIENT
    return Named("", _checked(entry.tenant, tenant), name, entry.tenant)


def _checked(header: str, value: str) -> str:
    if not value.isprintable():
        raise invalid(
            f"The header {header} contains control characters or is not UTF-8.",
            code=_CODE,
            param=header,
        )
    if len(value.encode()) > MAX_NAME_BYTES:
        message = f"The header {header} is longer than {MAX_NAME_BYTES} bytes."
        raise invalid(message, code=_CODE, param=header)
    return value


def joined(header: str, value: str) -> Named:
    """Whom a header names: `tenant`, `tenant/client` or `namespace/tenant/client`. Raises `Refusal`."""
    if not value.isprintable() or not value.isascii() or " " in value:
        message = (
            f"The header {header} contains spaces, control characters or non-ASCII characters."
        )
        raise _malformed(header, message)
    parts = value.split("/")
    if len(parts) > 3 or not all(parts):
        message = f"The header {header} must be tenant, tenant/client or namespace/tenant/client."
        raise _malformed(header, message)
    namespace = parts.pop(0) if len(parts) == 3 else ""
    return Named(namespace, parts[0], parts[1] if len(parts) == 2 else DEFAULT_CLIENT, header)


def _malformed(header: str, message: str) -> Refusal:
    return invalid(message, code=_CODE, param=header)
