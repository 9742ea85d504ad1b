"""Identifies the client of a request: by API key, by a header from a trusted proxy, or as anonymous (DESIGN section 5).

The strongest claim decides alone: an unknown key is refused, even if a weaker claim is present. If no tenant has an API
key, the headers of keys are ignored, because OpenAI's and Anthropic's clients always send one. Keys are looked up by their SHA-256, so
that neither the table nor the time of a look-up reveals them. OpenAI's `user` field is no identity, because any sender can
choose it.

With `identityHeaders`, headers of a trusted proxy are the strongest claim: the key of such a request is the proxy's own, and
LiteLLM's proxy always sends one (docs/design/identity.md).
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import unquote

from evenkeel_contract.identityheaders import UNDECLARED, UndeclaredTenants
from evenkeel_contract.key import MAX_SEED, ClientKey, ClientKeyError
from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.reportbook import OTHERS
from evenkeel_contract.revocations import RevocationList
from evenkeel_contract.routerconfig import (
    Anonymous,
    CacheSharing,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_contract.signedkeys import is_signed_key
from evenkeel_fairshare.ledger import Seed
from evenkeel_fairshare.tenancy import ClientWeight
from multidict import CIMultiDict, istr

from evenkeel_router.api.buckets import Buckets
from evenkeel_router.api.claims import (
    KEY_HEADERS,
    Claims,
    bearer,
    duplicate,
    missing_key,
    token_required,
)
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.identity_headers import DEFAULT_CLIENT, IdentityHeaders, Named
from evenkeel_router.api.own_keys import KeyUses
from evenkeel_router.api.own_limits import default_of, with_ceilings
from evenkeel_router.api.proxies import MAX_ADDRESS, Proxies, network_of, without_port
from evenkeel_router.api.signed_keys import CredentialRefused, SignedKeys
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


_AUTHORIZATION: Final = istr("Authorization")
_KEYS: Final = tuple(map(istr, KEY_HEADERS))
ANONYMOUS: Final = "anonymous"
"""Tenant and client of all requests without an identity. A tenant of that name sets their weight."""
_SHA256: Final = sha256()  # a copy of it takes half of the time of a new one
_MAX_REMEMBERED: Final = 10_000  # undeclared clients and proxies, kept to save time
_NO_LIMITS: Final = TenantLimits()
"""Limits of all undeclared tenants: one object, because admission compares it to see whether limits changed."""

MAX_CLIENTS: Final = 1000  # with totals and series of their own; the others of a tenant share one


Clock = Callable[[], float]
Verifier = Callable[[str, float], tuple[Named, float]]
"""Takes a token and the time; returns whom it names, and when it ends. Raises `CredentialRefused`."""


def _no_clock() -> float:
    return 0.0


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
    own_limits: TenantLimits | None = None
    """Limits of this client beside its tenant's; None: it has none."""
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


class Directory:
    """All clients that may use the service. Immutable, but for caches."""

    def __init__(
        self,
        tenancy: TenancyConfig,
        *,
        namespace: str,
        salt_key: str = "",
        revocations: RevocationList | None = None,
        tokens: Verifier | None = None,
        uses: KeyUses | None = None,
        clock: Clock = _no_clock,
    ) -> None:
        """`salt_key`: a secret of the service's routers, which the salts of the engines' caches are derived from. `clock`: seconds
        since 1970, for credentials that end. `revocations` and the keys of `tokens` may change; then call `forget`. `uses` takes uses of
        keys that clients created."""
        self._namespace = namespace
        self._sharing = tenancy.cache_sharing
        self._salt_key = salt_key.encode()
        self._shares = tenancy.anonymous is Anonymous.SHARE
        self._proxies = Proxies(tenancy.trusted_proxies)
        self._undeclared = tenancy.undeclared_tenants or UndeclaredTenants.REJECT
        self._undeclared_weight = tenancy.undeclared_tenant_weight or 1
        self._headers = IdentityHeaders(tenancy.identity_headers)
        self._rare = (*_KEYS, *self._headers.names)
        self._by_name: OrderedDict[tuple[tuple[str, str], ...], Client] = OrderedDict()
        self._signed = None
        if tenancy.signed_keys is not None:
            known = RevocationList() if revocations is None else revocations
            self._signed = SignedKeys(tenancy.signed_keys, known, uses or KeyUses())
        self._tokens = tokens
        self._takes_others = self._signed is not None or tokens is not None
        """Whether credentials count that are in no list."""
        self._clock = clock
        self._verified: OrderedDict[bytes, tuple[Client, float]] = OrderedDict()
        """SHA-256 of a credential that was verified → its client, and the time at which it ends."""
        self._tenants: Buckets[tuple[str, str], TenantConfig] = Buckets()
        self._by_key: Buckets[bytes, tuple[TenantConfig, str]] = Buckets()
        """SHA-256 → tenant and client. Most keys of many tenants are never used: `Client`s are made when they are."""
        self._clients: OrderedDict[bytes, Client] = OrderedDict()
        self._by_authorization: dict[bytes, Client] = {}
        """SHA-256 of a whole `Authorization` header with a valid key → its client: most headers need not be read again."""
        for tenant in tenancy.tenants:
            self._add(tenant)
        self.anonymous = self._shared() if self._shares else None
        """The client of all requests without an identity; None if they are refused."""

    def claims_of(self, headers: CIMultiDict[str], peer: str) -> Claims:
        """The headers that identify the sender. `peer`: see `Claims`."""
        authorization = headers.getall(_AUTHORIZATION, ())
        if not any(map(headers.__contains__, self._rare)):
            return Claims(authorization)
        keys: list[str] = []
        for key_header in filter(headers.__contains__, _KEYS):
            keys += headers.getall(key_header)
        return Claims(authorization, keys, self._headers.of(headers), peer)

    def changed(self, change: TenantChange) -> Generator[None, None, Directory]:
        """This directory with changed tenants, in steps. The other settings are the same."""
        found = copy(self)
        found._tenants, found._by_key = self._tenants.fork(), self._by_key.fork()
        found._clients, found._by_name = self._clients.copy(), self._by_name.copy()
        found._by_authorization = {}  # a header with a revoked key may be in it
        found._verified = OrderedDict()  # and credentials of a changed tenant
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
            raise duplicate("authorization")
        if claims.named and (client := self._by_proxy(claims)) is not None:
            return client
        if (self._by_key or self._takes_others) and (claims.authorization or claims.keys):
            return self._by_api_key(claims)
        if self.anonymous is not None:
            return self.anonymous
        raise missing_key()

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
                address = without_port(named.strip()[:MAX_ADDRESS]) or address
                if not self._proxies.trusts(address):
                    break
        return network_of(address)

    def identify_named(self, claims: Claims) -> Client:
        """The client, like `identify`; refuses a request that would be anonymous."""
        client = self.identify(claims)
        if client is self.anonymous:
            raise missing_key()
        return client

    def identify_by_token(self, claims: Claims) -> Client:
        """The client, like `identify`; refuses all identities but those of a token."""
        client = self.identify(claims)
        text = bearer(claims.authorization[0]) if claims.authorization else ""
        verified = self._verified.get(_digest(text))
        # Of a trusted proxy's request the proxy names the client, whatever its token says.
        if verified is not None and verified[0] is client and not is_signed_key(text):
            return client
        raise token_required()

    def spoofed(self, claims: Claims) -> bool:
        """Whether an untrusted peer sent an identity header."""
        return bool(claims.named) and not self._proxies.trusts(claims.peer)

    def _by_api_key(self, claims: Claims) -> Client:
        key = bearer(claims.authorization[0]) if claims.authorization else claims.keys[0].strip()
        if claims.keys and any(other.strip() != key for other in claims.keys):
            raise duplicate(KEY_HEADERS[0])
        digest = _digest(key)
        client = self._clients.get(digest)
        if client is None:
            entry = self._by_key.get(digest)
            if entry is None:
                return self._by_credential(key, digest)
            client = self._clients[digest] = self._client(*entry)
            if len(self._clients) > _MAX_REMEMBERED:
                self._clients.popitem(last=False)
        if claims.authorization:
            if len(self._by_authorization) >= _MAX_REMEMBERED:
                self._by_authorization.clear()
            self._by_authorization[_digest(claims.authorization[0])] = client
        return client

    def _by_credential(self, credential: str, digest: bytes) -> Client:
        """The client of a credential that is in no list; raises `Refusal`."""
        known = self._verified.get(digest)
        if known is not None and self._clock() < known[1]:
            return known[0]
        if self._signed is not None and is_signed_key(credential):
            client, ends_s = self._of_signed_key(self._signed, credential)
        elif self._tokens is not None and credential.count(".") == 2:
            named, ends_s = self._tokens(credential, self._clock())
            client = self.client_named(named)
        else:
            raise CredentialRefused("unknown_key", "")
        self._verified[digest] = client, ends_s
        if len(self._verified) > _MAX_REMEMBERED:
            self._verified.popitem(last=False)
        return client

    def _of_signed_key(self, signed: SignedKeys, credential: str) -> tuple[Client, float]:
        """(client, the time from which the key is verified again: its end, or sooner)."""
        key, ends_s = signed.verified(credential, self._clock())
        named = Named(key.namespace, key.tenant, key.client, "authorization")
        client = self.client_named(named)
        own = with_ceilings(client.own_limits, key)
        if own != client.own_limits:
            # A copy of the tenant's limits: admission looks at them again where the object is another one.
            client = replace(client, own_limits=own, limits=replace(client.limits))
        return client, ends_s

    def forget(self) -> None:
        """Verify each credential again: revocations, or keys of issuers, have changed."""
        self._verified.clear()

    def _by_proxy(self, claims: Claims) -> Client | None:
        """The client that a trusted proxy names; None if the peer is no proxy, or if another claim decides."""
        configured = self._headers.are_configured
        if not configured and len(claims.named) > 1:
            raise duplicate(claims.named[1][0])
        if not self._proxies.trusts(claims.peer):
            return None
        keyed = claims.authorization or claims.keys
        if not configured and keyed and (self._by_key or self._takes_others):
            return None
        given = tuple(claims.named)
        client = self._by_name.get(given)
        if client is None and (named := self._headers.named(given)) is not None:
            client = self._remember(given, self.client_named(named))
        return client

    def client_named(self, named: Named) -> Client:
        """A client by its names, of a tenant that is declared or not; raises `Refusal`."""
        tenant, client = self._tenant_named(named)
        try:
            return self._client(tenant, client)
        except ClientKeyError as error:
            message = f"The header {named.source}: {error}."
            raise invalid(message, code="invalid_header", param=named.source) from error

    def _tenant_named(self, named: Named) -> tuple[TenantConfig, str]:
        """The tenant, and the name of the client in it."""
        namespace = named.namespace or self._namespace
        tenant = self._tenants.get((namespace, named.tenant))
        if tenant is not None:
            return tenant, named.client
        if self._undeclared is UndeclaredTenants.REJECT or namespace != self._namespace:
            message = f"Tenant {named.tenant!r} does not exist in namespace {namespace!r}."
            raise Refusal(Outcome.FORBIDDEN, message, code="unknown_tenant", param=named.source)
        shares = self._undeclared is UndeclaredTenants.SHARE
        name = UNDECLARED if shares else named.tenant
        tenant = self._tenants.get((namespace, name)) or TenantConfig(
            namespace=namespace, name=name, weight=self._undeclared_weight, limits=_NO_LIMITS
        )
        return tenant, named.tenant if shares else named.client

    def _remember(self, given: tuple[tuple[str, str], ...], client: Client) -> Client:
        self._by_name[given] = client
        if len(self._by_name) > _MAX_REMEMBERED:
            self._by_name.popitem(last=False)
        return client

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
        own_limits=default_of(tenant.limits),
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
