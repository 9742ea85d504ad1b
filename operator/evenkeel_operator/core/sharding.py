"""The tenants of one service in Secrets: what routers have now, what they should have, what is revoked first. Pure.

While all tenants fit, they are in the RouterConfig. Beyond that, an index names shards (`evenkeel_contract.tenantshards`),
and the RouterConfig keeps the oldest tenants for routers of a version that knows no shards.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from evenkeel_contract.decode import salvage, to_plain
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.routerconfig import RouterConfig, TenantConfig
from evenkeel_contract.routerdocument import check_router_config
from evenkeel_contract.tenantshards import (
    CAPACITY_BYTES,
    MAX_REVOKED,
    MAX_SHARD_BYTES,
    MAX_SHARDS,
    PREFIX,
    Index,
    loads,
    shard_count,
    shard_name,
    write_index,
    write_shard,
)
from evenkeel_contract.values import without_echoes

from evenkeel_operator.core.objects import digest_of
from evenkeel_operator.core.roster import Grant

MAX_CONFIG_BYTES: Final = 1_000_000
"""Most bytes of a RouterConfig: a Secret holds 1 MiB of decoded data."""
INLINE_AGAIN_BYTES: Final = 800_000
"""Longest RouterConfig with which shards are given up again."""
NEARLY_FULL: Final = 0.8
"""Part of a limit from which a condition and an alert report it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The content of one shard."""

    digest: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """The configuration that the routers of a service have."""

    plain: Mapping[str, Any] = field(default_factory=dict)
    """The RouterConfig as plain data, without its tenants; empty where there is none."""
    core: RouterConfig | None = None
    """The RouterConfig without its tenants, decoded; None where there is none, or an invalid one."""
    inline: tuple[Grant, ...] = ()
    """The tenants in the RouterConfig."""
    index: Index | None = None
    """The index; None while all tenants are in the RouterConfig."""
    shards: Mapping[str, Shard] = field(default_factory=dict)
    """The shards that the index names."""

    @property
    def grants(self) -> Iterator[Grant]:
        """All tenants that routers may accept, revoked ones included."""
        if self.index is None:
            yield from self.inline
        for shard in self.shards.values():
            yield from shard.grants

    def tenants(self, names: Iterable[str]) -> dict[str, TenantConfig]:
        """Some of the tenants that routers accept."""
        wanted = frozenset(names)
        if not wanted:
            return {}
        index = self.index or Index()
        found = (index.remaining(one.config) for one in self.grants if one.config.name in wanted)
        return {one.name: one for one in found if one is not None}


Intern = Callable[[Iterable[bytes]], tuple[Grant, ...]]
"""Grants of JSON that routers have; those of tenants that are as they should be are the roster's objects."""


def read_config(data: bytes, intern: Intern) -> LiveConfig:
    """A RouterConfig of a Secret."""
    try:
        # Thousands of tenants are not made into plain data.
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        rest = msgspec.json.decode(parts.pop("tenancy", b"{}"), type=dict[str, msgspec.Raw])
        raws = msgspec.json.decode(rest.pop("tenants", b"[]"), type=list[msgspec.Raw])
        plain = {name: msgspec.json.decode(part) for name, part in parts.items()}
        tenancy = {name: msgspec.json.decode(part) for name, part in rest.items()}
    except UNREADABLE:
        return LiveConfig()
    plain["tenancy"] = tenancy
    core, faults = salvage(RouterConfig, plain)
    faults += tuple(without_echoes(check_router_config(core), faults))
    return LiveConfig(plain, None if faults else core, intern(map(bytes, raws)))


def write_config(plain: Mapping[str, Any], tenants: Iterable[Grant]) -> bytes:
    """A RouterConfig with these tenants. Equal input gives equal bytes."""
    raws = [msgspec.Raw(grant.raw) for grant in tenants]
    tenancy = {**plain.get("tenancy", {}), "tenants": raws}
    return msgspec.json.encode({**plain, "tenancy": tenancy}) + b"\n"


@dataclass(frozen=True, slots=True)
class Revoked:
    """Tenants and keys that routers accept and must not."""

    tenants: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """SHA-256 of keys of other tenants."""

    def __bool__(self) -> bool:
        return bool(self.tenants or self.keys)


def revoked(
    live: LiveConfig,
    wanted: Callable[[TenantConfig], Grant | None],
    *,
    settled: Collection[Grant] = frozenset(),
) -> Revoked:
    """What routers accept and `wanted` has not: whole tenants, and keys. `settled`: grants that `wanted` is known to have."""
    index, tenants, keys = live.index or Index(), dict[str, None](), dict[str, None]()
    everyone = (*live.inline, *(live.grants if live.index is not None else ()))
    for grant in (grant for grant in everyone if grant not in settled):
        name = grant.config.name
        now = wanted(grant.config)
        if now is grant:
            continue
        if now is None:
            tenants[name] = None
            continue
        allowed = {key.sha256 for key in now.config.api_keys}
        for key in grant.config.api_keys:
            if key.sha256 not in allowed:
                keys[key.sha256] = None
    if not tenants and not keys:
        return Revoked()
    inline = {grant.config.name for grant in live.inline}
    known_tenants, known_keys = index.revoked_tenants, index.revoked_keys
    inline_keys = {key.sha256 for grant in live.inline for key in grant.config.api_keys}
    return Revoked(
        tuple(one for one in tenants if one in inline or one not in known_tenants),
        tuple(one for one in keys if one in inline_keys or one[:PREFIX] not in known_keys),
    )


def config_without(live: LiveConfig, gone: Revoked) -> LiveConfig | None:
    """What the RouterConfig holds without what is revoked; None if it has nothing of it."""
    left = Index(
        revoked_tenants=frozenset(gone.tenants),
        revoked_keys=frozenset(key[:PREFIX] for key in gone.keys),
    )
    found, changed = [], False
    for grant in live.inline:
        remaining = left.remaining(grant.config)
        changed |= remaining is not grant.config
        if remaining is not None:
            found.append(grant if remaining is grant.config else Grant.of(remaining))
    return LiveConfig(live.plain, live.core, tuple(found)) if changed else None


def index_without(live: LiveConfig, gone: Revoked) -> Index | None:
    """The index with what is revoked. Beyond its room, shards that still hold such tenants are left out."""
    if live.index is None:
        return None
    before = live.index
    tenants = before.revoked_tenants.union(gone.tenants)
    keys = before.revoked_keys.union(key[:PREFIX] for key in gone.keys)
    if len(tenants) + len(keys) <= MAX_REVOKED:
        return Index(shards=before.shards, revoked_tenants=tenants, revoked_keys=keys)
    clean = {
        name: digest
        for name, digest in before.shards.items()
        if not any(
            grant.config.name in tenants
            or any(key.sha256[:PREFIX] in keys for key in grant.config.api_keys)
            for grant in live.shards[name].grants
        )
    }
    return Index(shards=clean)


Content = Callable[[], bytes]
AgeOf = Callable[[str], tuple[str, str]]
"""A tenant's name → what sorts tenants from the oldest to the newest."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The Secrets of a service's configuration: entries by digest, with what makes their content."""

    config: str
    """Digest of the RouterConfig."""
    index: str | None = None
    """Digest of the index; None while all tenants are in the RouterConfig."""
    shards: Mapping[str, Shard] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)
    """Digest → the content, in Base64 once it is called. Made only for what is written."""
    left_out: tuple[str, ...] = ()
    """Tenants for which there is no room, the youngest first."""
    fill: float = 0.0
    """The largest part of a limit that is used."""
    read_back: LiveConfig = field(default_factory=LiveConfig)
    """What the RouterConfig holds, as one would read it."""


class Planner:
    """Lays out the tenants of one service. Remembers the digests of what it laid out last."""

    def __init__(self) -> None:
        self._config: tuple[bytes, LiveConfig, str] | None = None
        """The RouterConfig without tenants; what the whole one holds, and its digest."""
        self._shards: dict[str, Shard] = {}

    def lay_out(
        self,
        core: RouterConfig,
        everyone: tuple[Grant, ...],
        live: LiveConfig,
        *,
        age_of: AgeOf,
        base: str | None = None,
    ) -> Layout:
        """`everyone`: all tenants, by name. `base`: what names of Secrets begin with, if not with the service's name."""
        plain = to_plain(core)
        head = write_config(plain, ())
        room = MAX_CONFIG_BYTES if live.index is None else INLINE_AGAIN_BYTES
        length = len(head) + sum(len(grant.raw) + 1 for grant in everyone)
        contents: dict[str, Content] = {}
        if length <= room:
            config, read_back = self._lay_out_config(core, plain, head, everyone, contents=contents)
            fill = length / CAPACITY_BYTES
            return Layout(config, contents=contents, fill=fill, read_back=read_back)
        fitting, left_out = _fitting(everyone, age_of)
        shards = self._lay_out_shards(base or core.service, fitting, live, contents)
        document = write_index(Index(shards={name: one.digest for name, one in shards.items()}))
        index = digest_of(_encoded(document))
        contents[index] = lambda: document
        inline = _oldest(everyone, age_of, MAX_CONFIG_BYTES - len(head))
        config, read_back = self._lay_out_config(core, plain, head, inline, contents=contents)
        total = sum(len(grant.raw) + 1 for grant in everyone)
        largest = max(loads(_sizes(fitting), MAX_SHARDS), default=0)
        fill = max(total / CAPACITY_BYTES, largest / MAX_SHARD_BYTES, len(head) / MAX_CONFIG_BYTES)
        return Layout(config, index, shards, contents, left_out, fill, read_back)

    def _lay_out_config(
        self,
        core: RouterConfig,
        plain: Mapping[str, Any],
        head: bytes,
        grants: tuple[Grant, ...],
        *,
        contents: dict[str, Content],
    ) -> tuple[str, LiveConfig]:
        known = self._config
        if known is None or known[0] != head or known[1].inline != grants:
            digest = digest_of(_encoded(write_config(plain, grants)))
            is_same = known is not None and known[0] == head
            rest = known[1] if known and is_same else _written(core, head)
            known = self._config = head, replace(rest, inline=grants), digest
        contents[known[2]] = lambda: write_config(plain, grants)
        return known[2], known[1]

    def _lay_out_shards(
        self,
        service: str,
        grants: Sequence[Grant],
        live: LiveConfig,
        contents: dict[str, Content],
    ) -> dict[str, Shard]:
        count = shard_count(_sizes(grants), len(live.index.shards) if live.index else 1)
        parts: list[list[Grant]] = [[] for _ in range(count)]
        for grant in grants:
            parts[grant.slot % count].append(grant)
        found = {}
        for number, part in enumerate(parts):
            name, wanted = shard_name(service, number, count), tuple(part)
            known = (self._shards.get(name), live.shards.get(name))
            shard = next((one for one in known if one is not None and one.grants == wanted), None)
            if shard is None:
                digest = digest_of(_encoded(write_shard(grant.raw for grant in wanted)))
                shard = Shard(digest, wanted)
            found[name] = shard
            contents[shard.digest] = _writer(wanted)
        self._shards = found
        return found


def _written(core: RouterConfig, head: bytes) -> LiveConfig:
    """What a RouterConfig without tenants holds, as `read_config` would find it."""
    plain = msgspec.json.decode(head)
    plain["tenancy"].pop("tenants")
    return LiveConfig(plain, core)


def _writer(grants: tuple[Grant, ...]) -> Content:
    return lambda: write_shard(grant.raw for grant in grants)


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _sizes(grants: Iterable[Grant]) -> list[tuple[int, int]]:
    return [(grant.slot, len(grant.raw)) for grant in grants]


def _by_age(everyone: tuple[Grant, ...], age_of: AgeOf) -> list[Grant]:
    return sorted(everyone, key=lambda grant: age_of(grant.config.name))


def _oldest(everyone: tuple[Grant, ...], age_of: AgeOf, room: int) -> tuple[Grant, ...]:
    """The oldest tenants that fit, by name."""
    kept = set()
    for grant in _by_age(everyone, age_of):
        room -= len(grant.raw) + 1
        if room < 0:
            break
        kept.add(grant.config.name)
    return tuple(grant for grant in everyone if grant.config.name in kept)


def _fitting(
    everyone: tuple[Grant, ...], age_of: AgeOf
) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """All tenants that fit into the largest number of shards, by name, and the names of the others. The oldest go first."""
    sizes = _sizes(everyone)
    if sum(size + 1 for _, size in sizes) <= CAPACITY_BYTES and (
        max(loads(sizes, MAX_SHARDS)) <= MAX_SHARD_BYTES
    ):
        return everyone, ()
    used, total, left_out = [0] * MAX_SHARDS, 0, []
    for grant in _by_age(everyone, age_of):
        size, slot = len(grant.raw) + 1, grant.slot % MAX_SHARDS
        if total + size > CAPACITY_BYTES or used[slot] + size > MAX_SHARD_BYTES:
            left_out.append(grant.config.name)
        else:
            total += size
            used[slot] += size
    without = frozenset(left_out)
    kept = tuple(grant for grant in everyone if grant.config.name not in without)
    return kept, tuple(reversed(left_out))
