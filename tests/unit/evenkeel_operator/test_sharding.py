"""Tenants beyond one Secret: shards, what is revoked first, and what failing writes leave in force."""

from __future__ import annotations

import gc
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from evenkeel_contract.routerconfig import ReplicaConfig, TenantConfig
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_contract.tenantshards import (
    INDEX_ENTRY,
    PREFIX,
    SHARD_ENTRY,
    Index,
    index_name,
    read_index,
    read_shard,
    read_tenant,
)
from evenkeel_kube.client import ClusterError
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core import sharding
from evenkeel_operator.core.roster import Grant, Roster

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample, condition, told
from tests.support.routers import config_for, tenancy

COUNT = 60


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that 60 tenants exceed."""
    monkeypatch.setattr(sharding, "MAX_CONFIG_BYTES", 8_000)
    monkeypatch.setattr(sharding, "INLINE_AGAIN_BYTES", 6_000)


def tenant(number: int, **spec: Any) -> dict[str, Any]:
    keys = {"name": "k", "client": "c", "secretRef": {"name": "keys", "key": f"k{number}"}}
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "InferenceTenant",
        "metadata": {
            "name": f"t{number:03}",
            "namespace": "team-ml",
            "creationTimestamp": f"2026-01-01T00:{number:02}:00Z",
            "generation": 1,
        },
        "spec": {"clients": [{"name": "c"}], "apiKeys": [keys], **spec},
    }


def many(cluster: FakeCluster, count: int = COUNT) -> None:
    data = {f"k{n}": b64encode(f"key-{n}".encode()).decode() for n in range(count)}
    labels = {"evenkeel.dev/use": "true"}
    metadata = {"name": "keys", "namespace": "team-ml", "labels": labels}
    cluster.put({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": data})
    for number in range(count):
        cluster.put(tenant(number))


def entry(cluster: FakeCluster, name: str, entry_: str) -> bytes | None:
    found = cluster.objects.get(("Secret", "team-ml", name))
    return None if found is None else b64decode(found["data"][entry_])


def index_of(cluster: FakeCluster) -> Index | None:
    found = entry(cluster, index_name("simulated"), INDEX_ENTRY)
    return None if found is None else read_index(found)


def accepted(cluster: FakeCluster) -> dict[str, TenantConfig]:
    """What a router serves: through the index where there is one."""
    index = index_of(cluster)
    if index is None:
        return {one.name: one for one in told(cluster).tenancy.tenants}

    def all_of() -> Iterator[TenantConfig]:
        for name in index.shards:
            for raw in read_shard(entry(cluster, name, SHARD_ENTRY) or b""):
                one, faults = read_tenant(raw)
                assert one is not None, faults
                left = index.remaining(one)
                if left is not None:
                    yield left

    return {one.name: one for one in all_of()}


def sha256(number: int) -> str:
    return hashlib.sha256(f"key-{number}".encode()).hexdigest()


async def gone(operator: Operator, cluster: FakeCluster, number: int) -> None:
    item = cluster.objects.pop(("InferenceTenant", "team-ml", f"t{number:03}"))
    operator.store.see("DELETED", "InferenceTenant", item)


@pytest.mark.usefixtures("small")
async def test_tenants_beyond_one_secret_are_in_shards_and_the_oldest_stay() -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    await Operator(cluster).make_pass(KEY)
    assert sorted(accepted(cluster)) == [f"t{n:03}" for n in range(COUNT)]
    inline = [one.name for one in told(cluster).tenancy.tenants]
    assert 0 < len(inline) < COUNT  # for routers that know no shards
    assert inline == [f"t{n:03}" for n in range(len(inline))]
    config, faults = parse_router_config(entry(cluster, "simulated-router", "router.json") or b"")
    assert config is not None, faults
    role = cluster.objects["Role", "team-ml", "simulated-router"]
    names = role["rules"][0]["resourceNames"]
    assert {index_name("simulated"), *(index_of(cluster) or Index()).shards} <= set(names)


@pytest.mark.usefixtures("small")
async def test_a_second_pass_and_a_second_life_write_no_shard() -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    cluster.writes.clear()
    await operator.make_pass(KEY)
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


@pytest.mark.usefixtures("small")
async def test_a_changed_tenant_changes_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_contract.tenantshards.SHARD_BYTES", 2_000)
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert len((index_of(cluster) or Index()).shards) > 4
    cluster.writes.clear()
    await operator.sees(cluster.put(tenant(COUNT - 1, weight=7)))
    written = [one for one in cluster.writes if one.startswith("apply Secret")]
    assert len(written) == 2, written  # the shard, and the index
    assert accepted(cluster)[f"t{COUNT - 1:03}"].weight == 7


@pytest.mark.parametrize("change", ["changed", "deleted"])
async def test_what_the_operator_wrote_itself_is_not_read_again(change: str) -> None:
    cluster = cluster_with_the_sample()
    many(cluster, 8)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await operator.make_pass(KEY)
    cluster.reads.clear()
    cluster.writes.clear()
    if change == "changed":
        await operator.sees(cluster.put(tenant(3, weight=7)))
    else:
        await gone(operator, cluster, 3)
    for _ in range(2):
        await operator.make_pass(KEY)
    found = accepted(cluster)
    assert "apply Secret simulated-router" in cluster.writes
    assert (len(found), "t003" in found) == ((8, True) if change == "changed" else (7, False))
    assert [one for one in cluster.reads if "simulated-router" in one] == []
    # Another life reads the same.
    writes = len(cluster.writes)
    await Operator(cluster).make_pass(KEY)
    assert len(cluster.writes) == writes


async def test_what_routers_have_shares_the_objects_of_tenants_after_a_restart() -> None:
    cluster = cluster_with_the_sample()
    many(cluster, 8)
    await Operator(cluster).make_pass(KEY)

    def grants() -> int:
        gc.collect()
        return sum(type(one) is Grant for one in gc.get_objects())

    before = grants()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert grants() - before == 8
    assert operator.store.roster("team-ml").grants.keys() == accepted(cluster).keys()


@pytest.mark.usefixtures("small")
async def test_fewer_tenants_return_to_the_configuration() -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for number in range(8, COUNT):
        await gone(operator, cluster, number)
    await operator.make_pass(KEY)
    assert index_of(cluster) is None
    assert sorted(accepted(cluster)) == [f"t{n:03}" for n in range(8)]
    left = [name for kind, _, name in cluster.objects if kind == "Secret" and "-tenants" in name]
    assert left == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [0, COUNT - 1], ids=["in the copy", "in a shard alone"])
async def test_a_deleted_tenant_is_revoked_although_no_shard_is_written(number: int) -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    cluster.refuses = lambda item: "no room" if "-tenants-" in item["metadata"]["name"] else None
    await gone(operator, cluster, number)
    await operator.make_pass(KEY)
    name = f"t{number:03}"
    assert name not in accepted(cluster)
    assert len(accepted(cluster)) == COUNT - 1
    assert name not in [one.name for one in told(cluster).tenancy.tenants]
    assert condition(cluster, "Degraded")["reason"] == "Refused"
    cluster.refuses = lambda _: None
    operator.now_s += 1000.0
    await operator.make_pass(KEY)
    assert index_of(cluster) == Index(shards=(index_of(cluster) or Index()).shards)
    assert len(accepted(cluster)) == COUNT - 1


async def test_a_deleted_tenant_is_revoked_although_all_else_fails() -> None:
    cluster = cluster_with_the_sample()
    many(cluster, 3)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await gone(operator, cluster, 1)
    again = Operator(cluster)  # a start: nothing is known
    again.store.see("ADDED", SERVICE, cluster.objects[SERVICE, "team-ml", "simulated"])
    cluster.forbids = lambda kind, _: kind in ("ConfigMap", "Role", "Deployment")
    with pytest.raises(ClusterError):
        await again.make_pass(KEY)
    assert sorted(accepted(cluster)) == ["t000", "t002"]


async def test_a_revoked_key_of_one_secret_goes_although_another_is_unreadable() -> None:
    cluster = cluster_with_the_sample()
    many(cluster, 3)
    other = {"name": "new", "client": "c", "secretRef": {"name": "other", "key": "k"}}
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    item = cluster.put(tenant(2, apiKeys=[other]))
    real = cluster.get

    async def get(kind: str, namespace: str, name: str) -> Any:
        if name == "other":
            raise ClusterError("the connection broke")
        return await real(kind, namespace, name)

    cluster.get = get  # type: ignore[method-assign]
    operator.store.see("MODIFIED", "InferenceTenant", item)
    await gone(operator, cluster, 0)
    with pytest.raises(ClusterError):
        await operator.make_pass(KEY)
    assert sorted(accepted(cluster)) == ["t001", "t002"]
    assert accepted(cluster)["t002"].api_keys == ()  # its key is named no more


async def test_a_key_that_an_invalid_tenant_no_longer_names_is_revoked() -> None:
    cluster = cluster_with_the_sample()
    many(cluster, 2)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await operator.sees(cluster.put(tenant(1, weight=0)))
    assert accepted(cluster)["t001"].api_keys[0].sha256 == sha256(1)  # the last valid spec
    await operator.sees(cluster.put(tenant(1, weight=0, apiKeys=[])))
    assert accepted(cluster)["t001"].api_keys == ()


@pytest.mark.usefixtures("small")
async def test_a_rotated_engine_key_reaches_routers_although_no_shard_does() -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = told(cluster).cluster
    cluster.refuses = lambda item: "no room" if "-tenants-" in item["metadata"]["name"] else None
    operator.store.see("ADDED", "InferenceTenant", cluster.put(tenant(COUNT)))
    service = cluster.objects[SERVICE, "team-ml", "simulated"]
    metadata = {**service["metadata"], "annotations": {"evenkeel.dev/rotate": "now"}}
    await operator.sees(cluster.put({**service, "metadata": metadata}))
    after = told(cluster).cluster
    assert before is not None
    assert after is not None
    assert len(after.api_keys) == 2
    assert after.api_key != before.api_key
    assert len(accepted(cluster)) == COUNT


@pytest.mark.usefixtures("small")
async def test_more_than_the_index_can_list_is_revoked_with_its_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharding, "MAX_REVOKED", 2)
    monkeypatch.setattr("evenkeel_contract.tenantshards.SHARD_BYTES", 2_000)
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    cluster.refuses = lambda item: "no room" if "-tenants-" in item["metadata"]["name"] else None
    for number in range(3):
        await gone(operator, cluster, number)
    await operator.make_pass(KEY)
    assert not {"t000", "t001", "t002"} & accepted(cluster).keys()
    assert accepted(cluster)  # other shards stay


@pytest.mark.usefixtures("small")
async def test_tenants_without_room_are_the_youngest_and_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharding, "CAPACITY_BYTES", 9_000)
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    fitting = sorted(accepted(cluster))
    assert fitting == [f"t{n:03}" for n in range(len(fitting))]
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ConfigTooLarge")
    assert f"{COUNT - len(fitting)} tenants" in found["message"]
    for number in range(len(fitting) - 1, COUNT):
        await gone(operator, cluster, number)
    await operator.make_pass(KEY)
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ConfigNearlyFull")


@pytest.mark.usefixtures("small")
async def test_a_key_that_moves_to_another_tenant_is_not_lost() -> None:
    cluster = cluster_with_the_sample()
    many(cluster)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    stolen = {"name": "k", "client": "c", "secretRef": {"name": "keys", "key": "k5"}}
    operator.store.see("MODIFIED", "InferenceTenant", cluster.put(tenant(5, apiKeys=[])))
    operator.store.see("MODIFIED", "InferenceTenant", cluster.put(tenant(50, apiKeys=[stolen])))
    await operator.make_pass(KEY)
    found = accepted(cluster)
    assert found["t005"].api_keys == ()
    assert [key.sha256 for key in found["t050"].api_keys] == [sha256(5)]
    assert len(sha256(5)[:PREFIX]) == PREFIX


def test_what_the_operator_wrote_is_known_as_if_it_were_read() -> None:
    replicas = (ReplicaConfig(name="r0", url="http://10.0.0.1:30000"),)
    core = config_for(*replicas, tenancy=tenancy(tenants=()), ttft_threshold_s=2.5)
    layout = sharding.Planner().lay_out(core, (), sharding.LiveConfig(), age_of=Roster().age_of)
    written = layout.contents[layout.config]()
    assert layout.read_back == sharding.read_config(written, lambda raws: ())
    assert layout.read_back.core is not None
