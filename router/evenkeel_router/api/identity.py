"""Identifies the client of a request: by API key, by a header from a trusted proxy, or as anonymous (DESIGN section 5).

The strongest claim decides alone: an unknown key is refused, even if a weaker claim is present. If no tenant has an API
key, the headers of keys are ignored, because OpenAI's and Anthropic's clients always send one. Keys are looked up by their SHA-256, so
that neither the table nor the time of a look-up reveals them. OpenAI's `user` field is no identity, because any sender can
choose it.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec
from evenkeel_contract.key import MAX_SEED, ClientKey, ClientKeyError
from evenkeel_contract.names import CLIENT_HEADERS, OTHER_CLIENTS
from evenkeel_contract.reportbook import OTHERS
from evenkeel_contract.routerconfig import (
    Anonymous,
    CacheSharing,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_fairshare.ledger import Seed
from evenkeel_fairshare.tenancy import ClientWeight
from multidict import CIMultiDict, istr

from evenkeel_router.api.buckets import Buckets
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.tenant_change import STEP, TenantChange


class Paid(NamedTuple):
    """What a request was charged at replicas that failed it, or that it was taken back from (R11)."""

    input: bool = False
    output_tokens: int = 0
    booked: bool = True
    """Whether the ledger has the charge of the input. If not, the attempt that succeeds books it, and a failed request costs nothing."""


UNPAID: Final = Paid()
WHOLE: Final = 2**31
"""More output tokens than any request has."""


KEY_HEADERS: Final = ("x-api-key", "api-key")
"""Where Anthropic's and Azure's clients send their key."""
_AUTHORIZATION: Final = istr("Authorization")
_KEYS: Final = tuple(map(istr, KEY_HEADERS))
_IDENTITY: Final = tuple((name, istr(name)) for name in CLIENT_HEADERS)
_RARE: Final = (*_KEYS, *(key for _, key in _IDENTITY))
ANONYMOUS: Final = "anonymous"
"""Tenant and client of all requests without an identity. A tenant of that name sets their weight."""
DEFAULT_CLIENT: Final = "default"
"""The client where a header names only a tenant."""
_SHA256: Final = sha256()  # a copy of it takes half of the time of a new one
MAX_ADDRESS: Final = 64
"""Most characters of an address in `X-Forwarded-For`."""
_MAX_REMEMBERED: Final = 10_000  # undeclared clients and proxies, kept to save time

MAX_CLIENTS: Final = 1000  # with totals and series of their own; the others of a tenant share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client, with everything that later steps need, computed once."""

    identity: str
    """`namespace/tenant/client`, escaped."""
    tenant_identity: str
    tenant: str
    weight: float
    """Factor of Q^w: the tenant's weight times the client's."""
    tenant_weight: float
    client_weight: float
    key: str
    """The client key, as replicas receive it."""
    limits: TenantLimits
    cache_salt: str = ""
    """Requests with different salts share no cached prefix (`tenancy.cacheSharing`); empty: there is no border."""

    def keyed(self, seed: Seed, paid: Paid) -> str:
        """The client key with the seeds for a replica that does not know the client (R5), and what was charged (R11)."""
        # The grammar has this order: weights, seeds, `;f`.
        text = self.key
        if seed.client:
            text += f";s={seed.client:.0f}"
        if seed.tenant:
            text += f";t={seed.tenant:.0f}"
        if paid.input:
            text += f";f={paid.output_tokens}" if paid.output_tokens else ";f"
        return text


class Claims(msgspec.Struct, frozen=True):
    """The headers of a request that identify its client."""

    authorization: Sequence[str]
    """Every `Authorization` header."""
    keys: Sequence[str] = ()
    """Every header that is an API key and nothing else (`KEY_HEADERS`)."""
    named: Sequence[tuple[str, str]] = ()
    """Every identity header, name and value."""
    peer: str = ""
    """The address of the other end; empty if it has none."""


def claims_of(headers: CIMultiDict[str], peer: str) -> Claims:
    """The headers that identify the sender. `peer`: see `Claims`."""
    authorization = headers.getall(_AUTHORIZATION, ())
    if not any(map(headers.__contains__, _RARE)):
        return Claims(authorization)
    named: list[tuple[str, str]] = []
    for name, key in _IDENTITY:
        if key in headers:
            named.extend((name, value) for value in headers.getall(key))
    keys: list[str] = []
    for key_header in filter(headers.__contains__, _KEYS):
        keys += headers.getall(key_header)
    return Claims(authorization, keys, named, peer)


class Directory:
    """All clients that may use the service. Immutable, but for caches."""

    def __init__(self, tenancy: TenancyConfig, *, namespace: str, salt_key: str = "") -> None:
        """`salt_key`: a secret of the service's routers, which the salts of the engines' caches are derived from."""
        self._namespace = namespace
        self._sharing = tenancy.cache_sharing
        self._salt_key = salt_key.encode()
        self._shares = tenancy.anonymous is Anonymous.SHARE
        self._proxies = Proxies(tenancy.trusted_proxies)
        self._tenants: Buckets[tuple[str, str], TenantConfig] = Buckets()
        self._by_key: Buckets[bytes, tuple[TenantConfig, str]] = Buckets()
        """SHA-256 → tenant and client. Most keys of many tenants are never used: `Client`s are made when they are."""
        self._clients: OrderedDict[bytes, Client] = OrderedDict()
        self._by_name: OrderedDict[str, Client] = OrderedDict()
        self._by_authorization: dict[bytes, Client] = {}
        """SHA-256 of a whole `Authorization` header with a valid key → its client: most headers need not be read again."""
        for tenant in tenancy.tenants:
            self._add(tenant)
        self.anonymous = self._shared() if self._shares else None
        """The client of all requests without an identity; None if they are refused."""

    def changed(self, change: TenantChange) -> Generator[None, None, Directory]:
        """This directory with changed tenants, in steps. The other settings are the same."""
        found = copy(self)
        found._tenants, found._by_key = self._tenants.fork(), self._by_key.fork()
        found._clients, found._by_name = self._clients.copy(), self._by_name.copy()
        found._by_authorization = {}  # a header with a revoked key may be in it
        yield
        for before in change.before:
            found._remove(before)
            yield
        for after in change.after:
            found._add(after)
            yield
        gone = {tenant_identity(one) for one in (*change.before, *change.after)}
        yield
        for number, (named, client) in enumerate(list(found._by_name.items())):
            if client.tenant_identity in gone:
                del found._by_name[named]
            if not number % STEP:
                yield
        found.anonymous = found._shared() if self._shares else None
        return found

    def _add(self, tenant: TenantConfig) -> None:
        self._tenants.put((tenant.namespace, tenant.name), tenant)
        for key in tenant.api_keys:
            self._by_key.put(bytes.fromhex(key.sha256), (tenant, key.client))

    def _remove(self, tenant: TenantConfig) -> None:
        self._tenants.drop((tenant.namespace, tenant.name))
        for key in tenant.api_keys:
            digest = bytes.fromhex(key.sha256)
            known = self._by_key.get(digest)
            if known is not None and known[0] is tenant:
                self._by_key.drop(digest)
                self._clients.pop(digest, None)

    def identify(self, claims: Claims) -> Client:
        """The client; raises `Refusal`. An identity header from an untrusted peer is ignored."""
        if self._by_key and len(claims.authorization) == 1 and not (claims.keys or claims.named):
            known = self._by_authorization.get(_digest(claims.authorization[0]))
            if known is not None:
                return known
        if len(claims.authorization) > 1:
            raise _duplicate("authorization")
        if len(claims.named) > 1:
            raise _duplicate(claims.named[1][0])
        if self._by_key and (claims.authorization or claims.keys):
            return self._by_api_key(claims)
        if claims.named and self._proxies.trusts(claims.peer):
            return self._by_header(*claims.named[0])
        if self.anonymous is not None:
            return self.anonymous
        raise _missing_key()

    def trusts(self, peer: str) -> bool:
        """Whether the address is a trusted proxy's."""
        return self._proxies.trusts(peer)

    def sender_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """The address that a request was sent from; of an IPv6 address, its /64 network.

        It is the peer's. Behind trusted proxies it is the last address in `forwarded` (the values of `X-Forwarded-For`) that is no
        trusted proxy's: all addresses before it are the sender's own words.
        """
        address = peer
        if forwarded and self._proxies.trusts(peer):
            for named in reversed(",".join(forwarded).split(",")):
                address = _without_port(named.strip()[:MAX_ADDRESS]) or address
                if not self._proxies.trusts(address):
                    break
        return network_of(address)

    def identify_named(self, claims: Claims) -> Client:
        """The client, like `identify`; refuses a request that would be anonymous."""
        client = self.identify(claims)
        if client is self.anonymous:
            raise _missing_key()
        return client

    def spoofed(self, claims: Claims) -> bool:
        """Whether an untrusted peer sent an identity header."""
        return bool(claims.named) and not self._proxies.trusts(claims.peer)

    def _by_api_key(self, claims: Claims) -> Client:
        key = _bearer(claims.authorization[0]) if claims.authorization else claims.keys[0]
        if claims.keys and any(other != key for other in claims.keys):
            raise _duplicate(KEY_HEADERS[0])
        digest = _digest(key.strip())
        client = self._clients.get(digest)
        if client is None:
            entry = self._by_key.get(digest)
            if entry is None:
                message = "The API key is unknown to this service."
                raise Refusal(Outcome.UNAUTHENTICATED, message, code="invalid_api_key")
            client = self._clients[digest] = self._client(*entry)
            if len(self._clients) > _MAX_REMEMBERED:
                self._clients.popitem(last=False)
        if claims.authorization:
            if len(self._by_authorization) >= _MAX_REMEMBERED:
                self._by_authorization.clear()
            self._by_authorization[_digest(claims.authorization[0])] = client
        return client

    def _by_header(self, header: str, value: str) -> Client:
        client = self._by_name.get(value)
        if client is None:
            client = self._by_name[value] = self._read(header, value)
            if len(self._by_name) > _MAX_REMEMBERED:
                self._by_name.popitem(last=False)
        return client

    def _read(self, header: str, value: str) -> Client:
        """The client that a header names: `tenant`, `tenant/client` or `namespace/tenant/client`."""
        if not value.isprintable() or not value.isascii() or " " in value:
            message = (
                f"The header {header} contains spaces, control characters or non-ASCII characters."
            )
            raise invalid(message, code="invalid_header", param=header)
        parts = value.split("/")
        if len(parts) > 3 or not all(parts):
            message = (
                f"The header {header} must be tenant, tenant/client or namespace/tenant/client."
            )
            raise invalid(message, code="invalid_header", param=header)
        namespace = parts.pop(0) if len(parts) == 3 else self._namespace
        name = parts[1] if len(parts) == 2 else DEFAULT_CLIENT
        tenant = self._tenants.get((namespace, parts[0]))
        if tenant is None:
            message = f"Tenant {parts[0]!r} does not exist in namespace {namespace!r}."
            raise Refusal(Outcome.FORBIDDEN, message, code="unknown_tenant", param=header)
        try:
            return self._client(tenant, name)
        except ClientKeyError as error:
            message = f"The header {header}: {error}."
            raise invalid(message, code="invalid_header", param=header) from error

    def _shared(self) -> Client:
        tenant = self._tenants.get((self._namespace, ANONYMOUS))
        return self._client(
            tenant or TenantConfig(namespace=self._namespace, name=ANONYMOUS), ANONYMOUS
        )

    def _client(self, tenant: TenantConfig, name: str) -> Client:
        client = client_of(tenant, name)
        border = {
            CacheSharing.SERVICE: "",
            CacheSharing.TENANT: client.tenant_identity,
            CacheSharing.CLIENT: client.identity,
        }[self._sharing]
        if not border:
            return client
        salt = hmac.digest(self._salt_key, border.encode(), "sha256").hex()[:32]
        return replace(client, cache_salt=salt)


class Proxies:
    """The networks whose identity headers are trusted."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network, strict=False) for network in networks]
        self._known: dict[str, bool] = {}

    def trusts(self, peer: str) -> bool:
        """Whether the address belongs to one of them. No address (a Unix socket) is not trusted."""
        known = self._known.get(peer)
        if known is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            known = self._known[peer] = self._is_inside(peer)
        return known

    def _is_inside(self, peer: str) -> bool:
        try:
            address = ip_address(peer.partition("%")[0])  # without an IPv6 zone
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # an IPv4 address on a dual-stack socket
        return any(address in network for network in self._networks)


def _without_port(address: str) -> str:
    """The address of `1.2.3.4:56` or `[2001:db8::1]:56`, as some proxies write them."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


@lru_cache(4096)
def network_of(address: str) -> str:
    """The address itself, or the first 64 bits of an IPv6 address: one host may use all addresses that begin so. Without a slash."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address.replace("/", "")
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, 64), strict=False).network_address)
    return str(found)


def client_of(tenant: TenantConfig, name: str) -> Client:
    """A client of a tenant, declared or not; raises `ClientKeyError` for a name that does not fit into a key."""
    declared = {client.name: client.weight for client in tenant.clients}
    weight = declared.get(name, tenant.default_client_weight)
    key = ClientKey(
        namespace=tenant.namespace,
        tenant=tenant.name,
        client=name,
        tenant_weight=tenant.weight,
        client_weight=weight,
    )
    # The key must have room for the largest seeds and charges.
    replace(
        key,
        seed=-MAX_SEED,
        tenant_seed=-MAX_SEED,
        retried_by_fleet=True,
        paid_output_tokens=MAX_SEED,
    ).encode()
    return Client(
        identity=key.identity,
        tenant_identity=key.tenant_identity,
        tenant=tenant.name,
        weight=ClientWeight(tenant.weight, weight).fleet,
        tenant_weight=float(tenant.weight),
        client_weight=float(weight),
        key=key.encode(),
        limits=tenant.limits,
    )


def tenant_identity(tenant: TenantConfig) -> str:
    """`namespace/tenant`, escaped."""
    return ClientKey(tenant.namespace, tenant.name, DEFAULT_CLIENT).tenant_identity


@lru_cache(4096)  # every answer about clients needs the names of all of them
def names_of(identity: str) -> tuple[str, str]:
    """(tenant, client) of an identity, unescaped; the client is `OTHER_CLIENTS` for a tenant's other clients."""
    tenant, _, name = identity.rpartition("/")
    client = OTHER_CLIENTS if name == OTHERS else unquote(name)
    return unquote(tenant.rpartition("/")[2]), client


def other_clients(tenant: str) -> str:
    """The identity of a tenant's other clients together. No client has it: its last part is not escaped as names are."""
    return f"{tenant}/{OTHERS}"


def _digest(text: str) -> bytes:
    digest = _SHA256.copy()
    digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.digest()


def _bearer(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        message = "The Authorization header must have the form 'Bearer <key>'."
        raise Refusal(Outcome.UNAUTHENTICATED, message, code="invalid_api_key")
    return key.strip()


def _missing_key() -> Refusal:
    message = (
        "The API key is missing. Send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
    )
    return Refusal(Outcome.UNAUTHENTICATED, message, code="missing_api_key")


def _duplicate(header: str) -> Refusal:
    message = f"More than one header identifies the client ({header}); send one."
    return invalid(message, code="duplicate_header", param=header)
