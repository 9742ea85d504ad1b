"""All tenants of a namespace and the keys that are accepted, kept up to date tenant by tenant.

A tenant with an invalid spec keeps the routers' last valid configuration of it. Of two tenants with the same key, the
older one keeps it: otherwise a new tenant could lock out another one. A key in a Secret without the label
`evenkeel.dev/use` is not accepted, unless it was accepted before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Final, Generic, Self, TypeVar, cast

from evenkeel_contract.names import SHARE_TENANT
from evenkeel_contract.render import tenant_config
from evenkeel_contract.routerconfig import ApiKeyConfig, TenantConfig
from evenkeel_contract.spec.parts import SecretKeyRef
from evenkeel_contract.spec.resources import ApiKey
from evenkeel_contract.tenantshards import slot_of, write_tenant

from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.tenants import KeyFindings, NamedSecret, Tenant, read_tenant_resource


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """One tenant as routers get it. The services of a namespace share one object, so that comparing is cheap."""

    config: TenantConfig
    raw: bytes
    """JSON of the tenant in a shard."""
    slot: int

    @classmethod
    def of(cls, config: TenantConfig) -> Grant:
        """The grant of a configuration."""
        return cls(config, write_tenant(config), slot_of(config.name))


Grants = Mapping[str, Grant]


@dataclass(frozen=True, slots=True)
class Unread:
    """A Secret that could not be read: nothing is known of its keys."""


UNREAD: Final = Unread()
MAX_SHARED: Final = 1000
_NOTHING: Final[Mapping[str, Any]] = {}
_Part = TypeVar("_Part")
Secrets = Mapping[str, NamedSecret | Unread | None]


def _compact_key(key: ApiKey) -> ApiKey:
    """The same key, whose names are one string each wherever they are the same."""
    ref = SecretKeyRef(name=intern(key.secret_ref.name), key=intern(key.secret_ref.key))
    return ApiKey(name=intern(key.name), client=intern(key.client), secret_ref=ref)


_Value = TypeVar("_Value", bound=Hashable)


class _Several(Generic[_Value]):
    """Names, each with one value or several. A single one is in a tuple: a set takes four times as much, and there may be tens of
    thousands of names."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[_Value, ...] | set[_Value]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def of(self, name: str) -> Collection[_Value]:
        """The values of a name, perhaps none."""
        return self._found.get(name, ())

    def add(self, name: str, value: _Value) -> None:
        """One value more."""
        found = self._found.setdefault(name, (value,))
        if isinstance(found, set):
            found.add(value)
        elif value not in found:
            self._found[name] = {*found, value}

    def discard(self, name: str, value: _Value) -> None:
        """One value less, if the name has it. A name without values is none."""
        found = self._found.get(name, ())
        if isinstance(found, set):
            found.discard(value)
        if not found or found == (value,):
            self._found.pop(name, None)


class Roster:
    """The tenants of one namespace."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.grants: dict[str, Grant] = {}
        """Tenants with a valid spec, with their accepted keys."""
        self._everyone: tuple[Grant, ...] | None = None
        """All grants, by name; None after a change."""
        self.findings: dict[str, KeyFindings] = {}
        self.secrets: dict[str, NamedSecret | Unread | None] = {}
        """Every Secret that a tenant names. None: there is no such Secret."""
        self.version = 0
        """Grows with each change."""
        self._claims = _Several[tuple[str, str]]()
        """SHA-256 → ages of the tenants that have the key."""
        self._claimed: dict[str, tuple[str, ...]] = {}
        self._namers = _Several[str]()
        """Secret → the tenants that name it."""
        self._named: dict[str, tuple[str, ...]] = {}
        self._changed: set[str] = set()
        self.unread: set[str] = set()
        """Named Secrets that were not read yet, or could not be."""
        self._shared: dict[Any, Any] = {}
        """Parts that many tenants have in common: equal ones are one object."""
        self.special: set[str] = set()
        """Tenants whose present configuration at the routers counts: an invalid spec, or a Secret that may not be used or
        could not be read."""

    @classmethod
    def unreadable(cls, namespace: str, known: Iterable[TenantConfig]) -> Self:
        """A namespace whose tenants cannot be read: all that routers know stay."""
        found = cls()
        for one in known:
            if one.namespace == namespace:
                found.tenants[one.name] = Tenant(
                    namespace, one.name, "", None, (), names_keys=False
                )
        found.special = set(found.tenants)
        return found

    @property
    def everyone(self) -> tuple[Grant, ...]:
        """All grants, by name: one object for all services that take every tenant."""
        if self._everyone is None:
            self._everyone = tuple(self.grants[name] for name in sorted(self.grants))
        return self._everyone

    def age_of(self, name: str) -> tuple[str, str]:
        """Sorts tenants from the oldest to the newest."""
        return self.tenants[name].age

    def named_by(self, secret: str) -> frozenset[str]:
        """The tenants that name a Secret."""
        return frozenset(self._namers.of(secret))

    def put(self, raw: Object) -> None:
        """A new or changed InferenceTenant. `settle` has the effect."""
        tenant = self._compact(read_tenant_resource(raw))
        self.tenants[tenant.name] = tenant
        self._name(tenant.name, frozenset(key.secret_ref.name for key in tenant.keys))
        self._changed.add(tenant.name)

    def _compact(self, tenant: Tenant) -> Tenant:
        """The same tenant in less memory: there may be tens of thousands."""
        if tenant.resource is None:
            return tenant
        metadata, spec = tenant.resource.metadata, tenant.resource.spec
        metadata = replace(
            metadata,
            namespace=intern(metadata.namespace),
            name=intern(metadata.name),
            labels=metadata.labels or _NOTHING,
            annotations={k: v for k, v in metadata.annotations.items() if k == SHARE_TENANT}
            or _NOTHING,
        )
        keys = tuple(map(_compact_key, spec.api_keys))
        spec = replace(
            spec, api_keys=keys, clients=self._share(spec.clients), limits=self._share(spec.limits)
        )
        resource = replace(
            tenant.resource,
            api_version=self._share(tenant.resource.api_version),
            kind=intern(tenant.resource.kind),
            metadata=metadata,
            spec=spec,
            status=_NOTHING,
        )
        return replace(
            tenant,
            namespace=metadata.namespace,
            name=metadata.name,
            created=intern(tenant.created),
            resource=resource,
            keys=keys,
        )

    def _share(self, part: _Part) -> _Part:
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return cast(_Part, self._shared.setdefault(part, part))

    def remove(self, name: str) -> None:
        """The InferenceTenant is gone."""
        if self.tenants.pop(name, None) is not None:
            self._name(name, frozenset())
            self._changed.add(name)

    def learn(self, secret: str, found: NamedSecret | Unread | None) -> None:
        """A Secret was read, or could not be."""
        if secret not in self._namers:
            return
        if found is not UNREAD:
            self.unread.discard(secret)
        if secret not in self.secrets or self.secrets[secret] != found:
            self.secrets[secret] = found
            self._changed.update(self._namers.of(secret))

    def _name(self, tenant: str, secrets: frozenset[str]) -> None:
        before = frozenset(self._named.pop(tenant, ()))
        for secret in before - secrets:
            self._namers.discard(secret, tenant)
            if secret not in self._namers:
                self.secrets.pop(secret, None)
                self.unread.discard(secret)
        for secret in secrets - before:
            if secret not in self._namers:
                self.unread.add(secret)
            self._namers.add(secret, tenant)
        if secrets:
            self._named[tenant] = tuple(secrets)

    def settle(self) -> frozenset[str]:
        """Bring grants and findings up to date. Returns the tenants for which something changed."""
        if not self._changed:
            return frozenset()
        affected = set(self._changed)
        for name in self._changed:
            affected |= self._claim(name)
        self._changed.clear()
        for name in affected:
            self._resolve(name)
        self.version += 1
        self._everyone = None
        return frozenset(affected)

    def _claim(self, name: str) -> set[str]:
        """Claim the keys of a tenant. Returns the other tenants that get or lose a key by it."""
        tenant = self.tenants.get(name)
        before, after = frozenset(self._claimed.pop(name, ())), frozenset[str]()
        if tenant is not None and tenant.resource is not None:
            found = (self._sha256(key.secret_ref.name, key.secret_ref.key) for key in tenant.keys)
            after = frozenset(sha256 for sha256 in found if sha256)
        others = set[str]()
        for sha256 in before | after:
            for age in [age for age in self._claims.of(sha256) if age[1] == name]:
                self._claims.discard(sha256, age)
            others.update(other for _, other in self._claims.of(sha256))
            if tenant is not None and sha256 in after:
                self._claims.add(sha256, tenant.age)
        if after:
            self._claimed[name] = tuple(after)
        return others

    def _sha256(self, secret: str, entry: str) -> str | None:
        """The hash of a key that may be used."""
        found = self.secrets.get(secret)
        usable = isinstance(found, NamedSecret) and found.labelled
        return found.hashes.get(entry) if usable else None  # type: ignore[union-attr]

    def owner(self, sha256: str) -> tuple[str, str] | None:
        """Age and name of the tenant that has a key; None if no valid tenant has it."""
        return min(self._claims.of(sha256), default=None)

    def _resolve(self, name: str) -> None:
        tenant = self.tenants.get(name)
        self.special.discard(name)
        self.findings.pop(name, None)
        if tenant is None or tenant.resource is None:
            self.grants.pop(name, None)
            if tenant is not None:
                self.special.add(name)
            return
        missing, unlabelled, clashing = [], dict[str, str](), dict[str, str]()
        accepted, hashes, taken = [], {}, set[str]()
        for key in tenant.keys:
            ref = key.secret_ref
            found = self.secrets.get(ref.name)
            if found is UNREAD or (isinstance(found, NamedSecret) and not found.labelled):
                self.special.add(name)
                if found is not UNREAD:
                    unlabelled[key.name] = ref.name
                continue
            sha256 = self._sha256(ref.name, ref.key)
            owner = self.owner(sha256) if sha256 else None
            if sha256 is None or owner is None:
                missing.append(key.name)
            elif owner[1] != name or sha256 in taken:
                clashing[key.name] = owner[1]
            else:
                taken.add(sha256)
                hashes[tenant.resource.metadata.namespace, ref.name, ref.key] = sha256
                accepted.append(key)
        spec = replace(tenant.resource.spec, api_keys=tuple(accepted))
        config = tenant_config(replace(tenant.resource, spec=spec), hashes)
        config = replace(
            config, clients=self._share(config.clients), limits=self._share(config.limits)
        )
        grant = Grant.of(config)
        known = self.grants.get(name)
        self.grants[name] = known if known is not None and known.raw == grant.raw else grant
        if missing or unlabelled or clashing:
            self.findings[name] = KeyFindings(tuple(sorted(missing)), unlabelled, clashing)

    def known(self, raw: bytes, name: str) -> Grant | None:
        """The grant of a tenant, if that has this JSON: it is as it should be."""
        grant = self.grants.get(name)
        return grant if grant is not None and grant.raw == raw else None

    def overlay(self, present: Callable[[str], TenantConfig | None]) -> dict[str, Grant]:
        """Grants of one service that differ from `grants`. `present`: a tenant as its routers have it now.

        A special tenant keeps keys that routers accept. Each key is the oldest tenant's.
        """
        found, taken = dict[str, Grant](), set[str]()
        kept = [
            (self.tenants[name], before)
            for name in self.special
            if (before := present(name)) is not None
        ]
        for tenant, before in sorted(kept, key=lambda one: one[0].age):
            base = self.grants[tenant.name].config if tenant.name in self.grants else before
            own = base.api_keys if base is not before else ()
            keys = [*own, *self._kept_keys(tenant, before, {key.name for key in own})]
            mine = []
            for key in sorted(keys, key=lambda key: key.name):
                owner = self.owner(key.sha256)
                if key.sha256 in taken or (owner is not None and owner < tenant.age):
                    continue
                taken.add(key.sha256)
                mine.append(key)
                if owner is not None and owner[1] != tenant.name:
                    self._take_away(found, owner[1], key.sha256)
            clients = {client.name for client in base.clients}
            mine = [key for key in mine if key.client in clients]
            found[tenant.name] = Grant.of(replace(base, api_keys=tuple(mine)))
        return found

    def _kept_keys(
        self, tenant: Tenant, before: TenantConfig, own: set[str]
    ) -> Iterator[ApiKeyConfig]:
        """Keys that routers have and that the tenant still names: a Secret that is known must still hold them."""
        named = {key.name: key for key in tenant.keys}
        for key in before.api_keys:
            if key.name in own or (key.name not in named and tenant.names_keys):
                continue
            ref = named[key.name].secret_ref if key.name in named else None
            secret = self.secrets.get(ref.name, UNREAD) if ref is not None else UNREAD
            if isinstance(secret, Unread) or (
                secret is not None and ref is not None and secret.hashes.get(ref.key) == key.sha256
            ):
                yield key

    def _take_away(self, found: dict[str, Grant], name: str, sha256: str) -> None:
        before = (found.get(name) or self.grants[name]).config
        keys = tuple(key for key in before.api_keys if key.sha256 != sha256)
        found[name] = Grant.of(replace(before, api_keys=keys))
