"""The tenants of a router: decoded only where they changed, whether they are in the RouterConfig or in shards.

A tenant whose JSON is as it was keeps its object, so that whatever compares configurations compares addresses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import msgspec
from evenkeel_contract.decode import salvage
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.routerconfig import RouterConfig, TenantConfig
from evenkeel_contract.routerdocument import check_router_config
from evenkeel_contract.tenantshards import Index, read_tenant
from evenkeel_contract.values import Fault, without_echoes

STEP: Final = 64
"""Unchanged tenants that are looked up in one step. A changed one is a step of its own."""

Loaded = tuple[RouterConfig | None, tuple[Fault, ...]]


class _Tenancy(msgspec.Struct):
    tenants: list[msgspec.Raw] = []


class _Document(msgspec.Struct):
    tenancy: _Tenancy = msgspec.field(default_factory=_Tenancy)


@dataclass(slots=True)
class TenantTable:
    """What one router decoded last."""

    _core: RouterConfig | None = None
    """The RouterConfig without tenants; the last valid one."""
    _plain: Mapping[str, Any] | None = None
    _faults: tuple[Fault, ...] = ()
    _decoded: dict[str, dict[bytes, TenantConfig]] = field(default_factory=dict)
    """Shard → its tenants by their JSON. One table of all would grow, and be given back, in one piece."""
    _config: RouterConfig | None = None

    def load(
        self, document: bytes, index: Index | None, shards: Mapping[str, Iterable[bytes]]
    ) -> Generator[None, None, Loaded]:
        """The configuration and its faults, in steps. Without an index, the tenants are those of the document.

        An invalid tenant stays as it was, and so does an invalid rest: what is revoked is revoked all the same.
        """
        try:
            plain = msgspec.json.decode(document)
            inline = msgspec.json.decode(document, type=_Document).tenancy.tenants
        except UNREADABLE as error:
            return None, (Fault("", f"is not JSON: {error}"),)
        yield
        self._load_core(plain)
        yield
        faults = list(self._faults)
        if index is None:
            shards = {"": map(bytes, inline)}
        else:
            shards = {name: shards[name] for name in index.shards if name in shards}
        tenants = yield from self._tenants(shards, faults)
        if index is not None and (index.revoked_tenants or index.revoked_keys):
            tenants = yield from _remaining(tenants, index)
        if self._core is None:
            return None, tuple(faults)
        known, core = self._config, self._core
        whole = tuple(tenants)
        del tenants
        yield
        config = replace(core, tenancy=replace(core.tenancy, tenants=whole))
        self._config = known if known == config else config
        return self._config, tuple(faults)

    def _load_core(self, plain: Any) -> None:
        if isinstance(plain, dict) and isinstance(plain.get("tenancy"), dict):
            tenancy = {name: one for name, one in plain["tenancy"].items() if name != "tenants"}
            plain = {**plain, "tenancy": tenancy}
        if plain == self._plain:
            return
        self._plain = plain
        core, faults = salvage(RouterConfig, plain)
        faults += tuple(without_echoes(check_router_config(core), faults))
        self._faults = faults
        if not faults:
            self._core = core

    def _tenants(
        self, shards: Mapping[str, Iterable[bytes]], faults: list[Fault]
    ) -> Generator[None, None, list[TenantConfig]]:
        found: list[TenantConfig] = []
        invalid: dict[tuple[str, str], int] = {}
        numbers = count()
        for name, raws in shards.items():
            decoded: dict[bytes, TenantConfig] = {}
            for raw, number in zip(raws, numbers, strict=False):
                tenant = self._known(name, raw)
                if tenant is None:
                    tenant, own = read_tenant(raw)
                    yield
                if tenant is None:
                    path = f"tenancy.tenants[{number}]"
                    faults += [replace(one, path=f"{path}.{one.path}") for one in own]
                    invalid[_name_in(raw)] = len(found)
                    continue
                decoded[raw] = tenant
                found.append(tenant)
                if not number % STEP:
                    yield
            self._decoded[name] = decoded
        # Another number of shards has other names, and the same tenants.
        for name in self._decoded.keys() - shards.keys():
            del self._decoded[name]
            yield
        if invalid and self._config is not None:
            yield from _put_back(found, self._config.tenancy.tenants, invalid)
        return found

    def _known(self, shard: str, raw: bytes) -> TenantConfig | None:
        """A tenant that was decoded before, from whichever shard."""
        tables = self._decoded
        if (table := tables.get(shard)) and (tenant := table.get(raw)):
            return tenant
        return next((tenant for table in tables.values() if (tenant := table.get(raw))), None)


def _remaining(
    tenants: Iterable[TenantConfig], index: Index
) -> Generator[None, None, list[TenantConfig]]:
    found = []
    for number, tenant in enumerate(tenants):
        left = index.remaining(tenant)
        if left is not None:
            found.append(left)
        if not number % STEP:
            yield
    return found


def _put_back(
    tenants: list[TenantConfig],
    before: Iterable[TenantConfig],
    places: dict[tuple[str, str], int],
) -> Generator[None, None, None]:
    """Tenants with an invalid spec stay as they were `before`. `places`: namespace and name → the place among `tenants`."""
    kept = {}
    for number, tenant in enumerate(before):
        name = (tenant.namespace, tenant.name)
        if name in places:
            kept[name] = tenant
        if not number % STEP:
            yield
    for name, place in reversed(
        places.items()
    ):  # the last first: what is put in moves what follows
        if name in kept:
            tenants.insert(place, kept[name])


def _name_in(raw: bytes) -> tuple[str, str]:
    """Namespace and name in the JSON of an invalid tenant."""
    plain: Any = None
    with suppress(*UNREADABLE):
        plain = msgspec.json.decode(raw)
    own = plain if isinstance(plain, dict) else {}
    return str(own.get("namespace", "")), str(own.get("name", ""))
