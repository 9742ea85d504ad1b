"""Tenants of a service in several Secrets, because one Secret holds 1 MiB.

While the tenants fit into the RouterConfig, they are in it and nothing else exists. Beyond that, an index names
*shards*. Each shard is a Secret with compressed JSON of some tenants, chosen by a hash of the name: a changed tenant
changes one shard. Routers without this module read the RouterConfig alone, which keeps as many tenants as fit.

The index also lists what is revoked. It is small, so it can be written although a shard cannot.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evenkeel_contract.decode import decode, to_camel
from evenkeel_contract.key import MAX_NAME_BYTES, MAX_WEIGHT
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_contract.values import Fault, show

INDEX_ENTRY: Final = "index.json"
SHARD_ENTRY: Final = "tenants.json.z"
MAX_SHARDS: Final = 64
SHARD_BYTES: Final = 700_000
"""Most bytes of JSON of a shard on average; with more, the number of shards doubles."""
MAX_SHARD_BYTES: Final = 1_150_000
"""Most bytes of JSON of one shard. Even random text of this length is below 1 MiB when it is compressed."""
CAPACITY_BYTES: Final = MAX_SHARDS * SHARD_BYTES
MAX_REVOKED: Final = 10_000
"""Most tenants and keys that an index lists as revoked."""
PREFIX: Final = 24
"""Hexadecimal digits by which the index names a revoked key: 96 bits."""


def index_name(service: str) -> str:
    """Name of the Secret with the index."""
    return f"{service}-tenants"


def shard_name(service: str, number: int, count: int) -> str:
    """Name of the Secret of one of `count` shards. Another count has other names, so that it replaces no shard that is in use."""
    return f"{service}-tenants-{count}-{number}"


def shard_names(service: str) -> tuple[str, ...]:
    """The names of all Secrets that can hold tenants, of the index first."""
    counts = [1 << n for n in range(MAX_SHARDS.bit_length())]
    shards = (shard_name(service, number, count) for count in counts for number in range(count))
    return (index_name(service), *shards)


def slot_of(tenant: str) -> int:
    """The tenant's shard is this number modulo the number of shards."""
    return zlib.crc32(tenant.encode())


class Index(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The shards that hold the tenants, and what of them is revoked."""

    shards: dict[str, str] = {}
    """Name of the Secret → digest of its content."""
    revoked_tenants: frozenset[str] = frozenset()
    revoked_keys: frozenset[str] = frozenset()
    """The first `PREFIX` digits of the SHA-256 of keys."""

    def remaining(self, tenant: TenantConfig) -> TenantConfig | None:
        """The tenant without its revoked keys; None if all of it is revoked."""
        if not self.revoked_tenants and not self.revoked_keys:
            return tenant
        if tenant.name in self.revoked_tenants:
            return None
        keys = tuple(k for k in tenant.api_keys if k.sha256[:PREFIX] not in self.revoked_keys)
        return (
            tenant
            if len(keys) == len(tenant.api_keys)
            else dataclasses.replace(tenant, api_keys=keys)
        )


def write_index(index: Index) -> bytes:
    """The document. Equal indices give equal bytes."""
    return msgspec.json.encode(index, order="deterministic")


def read_index(data: bytes) -> Index:
    """Read the document. Raises `ValueError`. Fields that a newer version added are ignored."""
    try:
        return msgspec.json.decode(data, type=Index)
    except UNREADABLE as error:
        raise ValueError(f"the index of tenants is invalid: {error}") from error


def write_tenant(tenant: TenantConfig) -> bytes:
    """One tenant in JSON, without the fields that have their default value."""
    return msgspec.json.encode(_without_defaults(tenant))


def _without_defaults(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            to_camel(field.name): _without_defaults(found)
            for field, found in pairs
            if found != _default_of(field)
        }
    return [_without_defaults(one) for one in value] if isinstance(value, tuple) else value


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def write_shard(tenants: Iterable[bytes]) -> bytes:
    """The content of a shard: its tenants in JSON, compressed. Equal input gives equal bytes."""
    return zlib.compress(b"[" + b",".join(tenants) + b"]", 6)


def read_shard(data: bytes) -> list[bytes]:
    """The tenants of a shard, each in JSON. Raises `ValueError`."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(data, 2 * MAX_SHARD_BYTES)
        if not inflate.eof:
            raise ValueError("a shard of tenants is cut off, or too long")
        return [bytes(one) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (*UNREADABLE, zlib.error) as error:
        raise ValueError(f"a shard of tenants is invalid: {error}") from error


def shard_count(sizes: Sequence[tuple[int, int]], before: int = 1) -> int:
    """The number of shards for tenants of these (slot, bytes). `before`: the present number, which stays while it is not
    far too large, so that a number of tenants near a border does not move all of them again and again."""
    count, total = 1, sum(size for _, size in sizes)
    while count < MAX_SHARDS and (
        total > count * SHARD_BYTES or max(loads(sizes, count)) > MAX_SHARD_BYTES
    ):
        count *= 2
    return before if count < before <= min(4 * count, MAX_SHARDS) else count


def loads(sizes: Iterable[tuple[int, int]], count: int) -> list[int]:
    """Bytes of JSON in each shard."""
    found = [0] * count
    for slot, size in sizes:
        found[slot % count] += size + 1
    return found


_Text = Annotated[str, Meta(pattern=rf"^[!-~]{{1,{MAX_NAME_BYTES}}}$")]
_Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    name: _Text
    weight: _Weight = 1


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    name: _Text
    client: _Text
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _Tenant(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The usual tenant. Anything else is decoded field by field, with the same result and all faults."""

    namespace: _Text
    name: _Text
    weight: _Weight = 1
    default_client_weight: _Weight = 1
    clients: tuple[_Client, ...] = ()
    api_keys: tuple[_Key, ...] = ()


_usual = msgspec.json.Decoder(_Tenant)
_NO_LIMITS: Final = TenantLimits()


def read_tenant(data: bytes) -> tuple[TenantConfig | None, tuple[Fault, ...]]:
    """One tenant, or None and its faults. Never raises."""
    try:
        found = _usual.decode(data)
    except UNREADABLE:
        return _read_carefully(data)
    names = {client.name for client in found.clients}
    keys = {key.name for key in found.api_keys}
    known = all(key.client in names for key in found.api_keys)
    if not known or len(names) < len(found.clients) or len(keys) < len(found.api_keys):
        return _read_carefully(data)
    tenant = TenantConfig(
        namespace=found.namespace,
        name=found.name,
        weight=found.weight,
        default_client_weight=found.default_client_weight,
        clients=tuple(ClientConfig(name=one.name, weight=one.weight) for one in found.clients),
        api_keys=tuple(
            ApiKeyConfig(name=one.name, client=one.client, sha256=one.sha256)
            for one in found.api_keys
        ),
        limits=_NO_LIMITS,
    )
    return tenant, ()


def _read_carefully(data: bytes) -> tuple[TenantConfig | None, tuple[Fault, ...]]:
    try:
        plain = msgspec.json.decode(data)
    except UNREADABLE as error:
        return None, (Fault("", f"is not JSON: {error}"),)
    tenant, faults = decode(TenantConfig, plain)
    if tenant is None:
        return None, faults
    names = {client.name for client in tenant.clients}
    lost = [key for key in tenant.api_keys if key.client not in names]
    faults = tuple(
        Fault(f"apiKeys[{key.name}].client", f"{show(key.client)} is not in clients")
        for key in lost
    )
    return (None if faults else tenant), faults
