"""Several services in one RouterConfig."""

from __future__ import annotations

from dataclasses import replace

from evenkeel_contract.federationconfig import CellConfig, FederationConfig
from evenkeel_contract.pools import config_of_pool, configs_of
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.routerconfig import (
    PoolConfig,
    ReplicaConfig,
    RouterConfig,
    ShareAcross,
    StateConfig,
    StateStore,
)
from evenkeel_contract.routerdocument import (
    check_router_config,
    dump_router_config,
    parse_router_config,
)

REPLICA = ReplicaConfig(name="r", url="http://127.0.0.1:1")
BIG = PoolConfig(service="big", model="big-70b", replicas=(REPLICA,))
SMALL = PoolConfig(service="small", model="small-8b", model_aliases=("mini",))


def config(*pools: PoolConfig, **changes: object) -> RouterConfig:
    given: dict[str, object] = {"namespace": "ns", "service": "all", "model": "all"}
    return RouterConfig(pools=pools, **(given | changes))  # type: ignore[arg-type]


def test_a_pool_is_configured_as_a_router_of_it_alone() -> None:
    state = StateConfig(store=StateStore.FILE, file="/var/ledger", peer_token="t")
    pool = PoolConfig(service="big", model="big-70b", recording=RecordingConfig(file="/tmp/r"))
    own = config_of_pool(config(pool, state=state), pool)
    assert (own.service, own.model, own.pools) == ("big", "big-70b", ())
    assert own.state.file == "/var/ledger.big"
    assert own.state.peer_token == "t"
    assert own.recording is not None
    assert own.recording.file == "/tmp/r.big"


def test_a_router_of_one_service_is_configured_as_it_is() -> None:
    alone = config()
    assert configs_of(alone) == (alone,)


def test_a_document_with_pools_reads_as_it_was_written() -> None:
    four = replace(BIG, gpus=4)
    given = config(four, SMALL, share_across=ShareAcross.GATEWAY)
    assert config_of_pool(given, four).share_across is None
    assert parse_router_config(dump_router_config(given)) == (given, ())


def test_a_router_of_several_services_has_no_other_cells() -> None:
    cells = (CellConfig(name="oslo", url="https://oslo"),)
    joined = FederationConfig(cell="paris", token="a token of all cells", cells=cells)
    (fault,) = check_router_config(config(BIG, SMALL, federation=joined))
    assert str(fault) == (
        "federation: a router of several services has no other cells; remove it, or give each service its own router"
    )


def test_one_service_shares_with_no_other() -> None:
    (fault,) = check_router_config(config(share_across=ShareAcross.GATEWAY))
    assert str(fault) == "shareAcross: is set for one model, which shares with no other; remove it"
    assert not [*check_router_config(config(share_across=ShareAcross.NONE))]


def test_faults_of_pools_have_their_paths() -> None:
    broken = PoolConfig(
        service="third",
        model="mini",
        allow_fields=("routing_key",),
        replicas=(ReplicaConfig(name="r", url="http://x", kv_events="tcp://x:1"),),
    )
    faults = {
        fault.path: fault.message
        for fault in check_router_config(config(BIG, SMALL, broken, replicas=(REPLICA,)))
    }
    assert set(faults) == {
        "replicas",
        "pools[2].model",
        "pools[2].allowFields[0]",
        "pools[2].replicas[0].kvReplay",
    }
    assert faults["pools[2].model"] == "'mini' is also a name of pools[1]; each model needs its own"
