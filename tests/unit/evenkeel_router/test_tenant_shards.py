"""Tenants in shards: what a router decodes, what it keeps, and what it revokes."""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    RouterConfig,
    TenantConfig,
)
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_contract.tenantshards import (
    INDEX_ENTRY,
    PREFIX,
    SHARD_ENTRY,
    Index,
    shard_name,
    write_index,
    write_shard,
    write_tenant,
)
from evenkeel_router.app import background
from evenkeel_router.cluster import secret_watch
from evenkeel_router.cluster.secret_watch import SecretSource
from evenkeel_router.cluster.tenant_shards import STEP, TenantTable

from tests.support.kube_api import KubeApi, Plain, kube_api
from tests.support.routers import applying, config_for, until


@pytest.fixture
async def server() -> AsyncIterator[KubeApi]:
    async with kube_api() as found:
        yield found


def tenant(number: int, *, weight: int = 1) -> TenantConfig:
    return TenantConfig(
        namespace="ns",
        name=f"t{number}",
        weight=weight,
        clients=(ClientConfig(name="c"),),
        api_keys=(ApiKeyConfig(name="k", client="c", sha256=f"{number:064x}"),),
    )


def secret(name: str, entry: str, data: bytes) -> Plain:
    return {"metadata": {"name": name}, "data": {entry: base64.b64encode(data).decode()}}


class Service:
    """What an operator writes."""

    def __init__(self, server: KubeApi) -> None:
        self.server = server
        self.core = config_for()
        self.digests: dict[str, str] = {}

    def write(self, *tenants: TenantConfig) -> None:
        core = replace(self.core, tenancy=replace(self.core.tenancy, tenants=tenants))
        self.server.secrets.put(secret("conf", "router.json", dump_router_config(core)))

    def shard(self, number: int, *tenants: TenantConfig) -> None:
        name = shard_name("conf", number, 2)
        data = write_shard(map(write_tenant, tenants))
        self.server.shards[name] = secret(name, SHARD_ENTRY, data)
        self.digests[name] = f"{len(self.digests)}-{hash(data)}"

    def index(self, *, tenants: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> None:
        document = write_index(
            Index(
                shards=dict(self.digests),
                revoked_tenants=frozenset(tenants),
                revoked_keys=frozenset(keys),
            )
        )
        self.server.index.put(secret("conf-tenants", INDEX_ENTRY, document))


def names(config: RouterConfig) -> list[str]:
    return sorted(one.name for one in config.tenancy.tenants)


async def test_an_index_replaces_the_tenants_of_the_configuration(server: KubeApi) -> None:
    service, applied = Service(server), list[RouterConfig]()
    service.write(tenant(1))
    service.shard(0, tenant(1), tenant(2))
    service.shard(1, tenant(3))
    service.index()
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    async with background(source.run()):
        first = await source.first()
        assert names(first) == ["t1", "t2", "t3"]
        async with background(source.watch(applying(applied), lambda _: None)):
            server.reads.clear()
            service.shard(1, tenant(3, weight=5))
            service.index()
            await until(lambda: len(applied) == 1, "the change")
            assert server.reads == [shard_name("conf", 1, 2)]
            before = {one.name: one for one in first.tenancy.tenants}
            after = {one.name: one for one in applied[0].tenancy.tenants}
            assert after["t1"] is before["t1"]  # not decoded again
            assert after["t3"].weight == 5
            server.index.delete("conf-tenants")
            await until(lambda: len(applied) == 2, "the end of the index")
            assert names(applied[1]) == ["t1"]


async def test_what_is_revoked_goes_although_a_shard_cannot_be_read(
    server: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_watch, "RETRY_S", 0.01)
    service, applied = Service(server), list[RouterConfig]()
    service.write()
    service.shard(0, tenant(1), tenant(2))
    service.shard(1, tenant(3))
    service.index()
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    async with background(source.run()):
        await source.first()
        async with background(source.watch(applying(applied), lambda _: None)):
            lost = server.shards.pop(shard_name("conf", 1, 2))
            service.digests[shard_name("conf", 1, 2)] = "new"
            service.index(tenants=("t2",), keys=(f"{3:064x}"[:PREFIX],))
            await until(lambda: len(applied) == 1, "the revocation")
            assert names(applied[0]) == ["t1", "t3"]
            assert {one.name: one.api_keys for one in applied[0].tenancy.tenants}["t3"] == ()
            server.shards[lost["metadata"]["name"]] = lost
            service.index()
            await until(lambda: names(applied[-1]) == ["t1", "t2", "t3"], "all again")


async def test_a_start_waits_until_all_shards_can_be_read(
    server: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_watch, "RETRY_S", 0.01)
    service = Service(server)
    service.write(tenant(1))
    service.shard(0, tenant(1))
    service.index()
    lost = server.shards.pop(shard_name("conf", 0, 2))
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    async with background(source.run()):
        first = asyncio.create_task(source.first())
        await until(lambda: len(server.reads) > 1, "a second attempt")
        assert not first.done()
        server.shards[lost["metadata"]["name"]] = lost
        assert names(await first) == ["t1"]


async def test_without_the_right_to_read_an_index_there_is_none(server: KubeApi) -> None:
    """As with an operator of an older version, whose Role names one Secret."""
    service = Service(server)
    service.write(tenant(1))
    server.index.refuse = 403
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    async with background(source.run()):
        assert names(await source.first()) == ["t1"]


def load(table: TenantTable, document: bytes) -> tuple[RouterConfig | None, list[str]]:
    steps = table.load(document, None, {})
    while True:
        try:
            next(steps)
        except StopIteration as end:
            config, faults = end.value
            return config, [str(fault) for fault in faults]


def test_an_invalid_tenant_stays_as_it_was_and_others_change() -> None:
    core = config_for()

    def document(*tenants: TenantConfig) -> bytes:
        return dump_router_config(replace(core, tenancy=replace(core.tenancy, tenants=tenants)))

    table = TenantTable()
    first, _ = load(table, document(tenant(1), tenant(2), tenant(3)))
    assert first is not None
    bad = document(tenant(1, weight=7), tenant(2, weight=8)).replace(b'"weight": 8', b'"weight": 0')
    config, faults = load(table, bad)
    assert config is not None
    assert {one.name: one.weight for one in config.tenancy.tenants} == {"t1": 7, "t2": 1}
    assert len(faults) == 1
    assert faults[0].startswith("tenancy.tenants[1].weight: must be")


def test_an_unknown_field_keeps_the_rest_and_revokes_all_the_same() -> None:
    core = config_for()
    table = TenantTable()
    both = replace(core, tenancy=replace(core.tenancy, tenants=(tenant(1), tenant(2))))
    load(table, dump_router_config(both))
    one = replace(core, model="m2", tenancy=replace(core.tenancy, tenants=(tenant(1),)))
    newer = dump_router_config(one).replace(b'"model":', b'"futureField": 1, "model":')
    config, faults = load(table, newer)
    assert config is not None
    assert (names(config), config.model) == (["t1"], core.model)
    assert any("futureField" in fault for fault in faults)


def in_shards(tenants: list[TenantConfig], number: int) -> dict[str, list[bytes]]:
    """Shards with the same number of tenants each."""
    raws = [write_tenant(one) for one in tenants]
    size = -(-len(raws) // number)
    return {f"{number}-{at}": raws[at * size : (at + 1) * size] for at in range(number)}


def load_shards(
    table: TenantTable, shards: dict[str, list[bytes]], step: Callable[[], None] = lambda: None
) -> tuple[TenantConfig, ...]:
    """What a table has of these shards; `step` is called after each step."""
    steps = table.load(
        dump_router_config(config_for()), Index(shards=dict.fromkeys(shards, "")), shards
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            step()
            config, _ = end.value
            return tuple(config.tenancy.tenants)
        step()


def test_tenants_keep_their_objects_in_another_number_of_shards() -> None:
    table, tenants = TenantTable(), [tenant(number) for number in range(30)]
    first = load_shards(table, in_shards(tenants, 2))
    second = load_shards(table, in_shards([*tenants, tenant(30)], 4))
    assert len(second) == 31
    assert all(one is other for one, other in zip(first, second, strict=False))
    # Shards that are gone are not kept.
    third = load_shards(table, in_shards(tenants[:2], 1))
    assert load_shards(table, in_shards(tenants, 2))[2] is not first[2]
    assert third == first[:2]


def test_no_step_takes_or_gives_back_the_memory_of_all_tenants() -> None:
    tenants = [tenant(number) for number in range(4096)]
    tracemalloc.start()
    table = TenantTable()
    load_shards(table, in_shards(tenants, 16))
    tenants[2000] = tenant(2000, weight=7)
    shards, sizes = in_shards(tenants, 16), []
    load_shards(table, shards, lambda: sizes.append(tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    assert max(abs(after - before) for before, after in pairwise(sizes)) < 200_000


def test_an_invalid_tenant_among_many_is_looked_up_in_steps() -> None:
    table, tenants = TenantTable(), [tenant(number, weight=2) for number in range(2048)]
    load_shards(table, in_shards(tenants, 2))
    shards, steps = in_shards(tenants, 2), [0, 0]
    for turn in (0, 1):

        def step(turn: int = turn) -> None:
            steps[turn] += 1

        found = load_shards(table, shards, step)
        assert found == tuple(tenants)
        for place in (7, 8):
            shards["2-0"][place] = shards["2-0"][place].replace(b'"weight":2', b'"weight":0')
    assert steps[1] - steps[0] >= len(tenants) // STEP
