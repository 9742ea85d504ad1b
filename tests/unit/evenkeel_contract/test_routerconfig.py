"""RouterConfig: JSON there and back, and every fault of a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    ClientConfig,
    ClusterConfig,
    FleetPolicyName,
    ListenConfig,
    PeerConfig,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    StateConfig,
    StateStore,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_contract.routerdocument import (
    MAX_CONFIG_BYTES,
    dump_router_config,
    parse_router_config,
)

HASH = "ab" * 32

CONFIG = RouterConfig(
    namespace="team",
    service="llama",
    model="llama-3.1-8b",
    listen=ListenConfig(traffic_port=0, probe_port=0, admin_port=0),
    scheduling=SchedulingConfig(fleet_policy=FleetPolicyName.LEAST_LOADED),
    prefix=PrefixConfig(mode=PrefixMode.TOKENS, tokenizer="/models/llama", page_tokens=64),
    tenancy=TenancyConfig(
        anonymous=Anonymous.SHARE,
        trusted_proxies=("10.0.0.0/8", "::1"),
        tenants=(
            TenantConfig(
                namespace="team",
                name="ads",
                weight=4,
                clients=(ClientConfig(name="chät", weight=3),),
                api_keys=(ApiKeyConfig(name="k", client="chät", sha256=HASH),),
                limits=TenantLimits(requests_per_minute=60),
            ),
        ),
    ),
    state=StateConfig(
        store=StateStore.REDIS,
        redis_url="redis://:secret@127.0.0.1:6379/0",
        peers=(PeerConfig(name="b", url="http://127.0.0.1:3"),),
    ),
    replicas=(ReplicaConfig(name="r0", url="http://127.0.0.1:1", reports="tcp://127.0.0.1:2"),),
)


def test_a_configuration_survives_its_json() -> None:
    assert parse_router_config(dump_router_config(CONFIG)) == (CONFIG, ())


def test_the_smallest_configuration_has_the_defaults() -> None:
    config, faults = parse_router_config(b'{"namespace":"n","service":"s","model":"m"}')
    assert faults == ()
    assert config == RouterConfig(namespace="n", service="s", model="m")


def test_a_fleet_on_a_cluster_is_found_by_its_services() -> None:
    cluster = ClusterConfig(engines="llama-engine", peers="llama-router-peers", api_key="sk-e")
    config = replace(CONFIG, replicas=(), cluster=cluster)
    assert parse_router_config(dump_router_config(config)) == (config, ())


def test_equal_configurations_have_equal_bytes() -> None:
    again, _ = parse_router_config(dump_router_config(CONFIG))
    assert again is not None
    assert dump_router_config(again) == dump_router_config(CONFIG)


_ISSUER = {
    "issuer": "https://login.example.com",
    "audience": "llm",
    "jwksURL": "https://login.example.com/keys",
    "tenantClaim": "team",
}


def _own_keys(lifetime_s: int) -> dict[str, Any]:
    return {
        "keys": [{"id": "a", "secret": "s" * 32}],
        "maxLifetimeS": 7200,
        "selfService": {"lifetimeS": lifetime_s},
    }


Edit = Callable[[dict[str, Any]], object]

CASES: Mapping[str, tuple[Edit, list[str]]] = {
    "ports taken twice": (
        lambda c: c.update(listen={"trafficPort": 9, "probePort": 9}),
        ["listen.probePort: 9 is also trafficPort; use different ports"],
    ),
    "a port out of range": (
        lambda c: c.update(listen={"trafficPort": 70000}),
        ["listen.trafficPort: must be from 0 to 65535, not 70000"],
    ),
    "a fleet that is given and found": (
        lambda c: c.update(cluster={"engines": "llama-engine"}),
        ["replicas: is set together with cluster; remove one of the two"],
    ),
    "a cluster's Service that is no name": (
        lambda c: c.update(cluster={"engines": "a b"}, replicas=[]),
        ["cluster.engines: must be a DNS name such as llm.example.com, not 'a b'"],
    ),
    "an open admin port beyond loopback": (
        lambda c: c.update(listen={"host": "0.0.0.0"}),
        [
            (
                "adminTokenSha256: is required if listen.host ('0.0.0.0') is not a loopback address; "
                "choose a secret token, and set this field to its SHA-256"
            ),
        ],
    ),
    "a key of an unknown client": (
        lambda c: c["tenancy"]["tenants"][0]["apiKeys"][0].update(client="chat"),
        [
            (
                "tenancy.tenants[0].apiKeys[0].client: 'chat' is not in "
                "tenancy.tenants[0].clients; did you mean chät?"
            )
        ],
    ),
    "a key twice": (
        lambda c: c["tenancy"]["tenants"][0]["apiKeys"].append(
            {"name": "l", "client": "chät", "sha256": HASH}
        ),
        ["tenancy.tenants[0].apiKeys[1].sha256: is the same as in tenancy.tenants[0].apiKeys[0]"],
    ),
    "an invalid hash": (
        lambda c: c["tenancy"]["tenants"][0]["apiKeys"][0].update(sha256=HASH.upper()),
        [
            (
                "tenancy.tenants[0].apiKeys[0].sha256: must be a SHA-256 in 64 lower-case "
                f"hexadecimal digits, not '{HASH.upper()[:59]}…'"
            )
        ],
    ),
    "a tenant twice": (
        lambda c: c["tenancy"]["tenants"].append({"namespace": "team", "name": "ads"}),
        [
            "tenancy.tenants[1].name: 'team/ads' is given twice, first in tenancy.tenants[0]",
        ],
    ),
    "weights out of range": (
        lambda c: c["tenancy"]["tenants"][0].update(weight=0),
        ["tenancy.tenants[0].weight: must be from 0.001 to 1000000, not 0.0"],
    ),
    "a timeout of zero": (
        lambda c: c.update(limits={"queueTimeoutS": 0}),
        ["limits.queueTimeoutS: must be above 0 and at most 604800, not 0.0"],
    ),
    "a tokenizer that is no path": (
        lambda c: c.update(prefix={"mode": "Tokens", "tokenizer": "models/llama"}),
        ["prefix.tokenizer: must be an absolute path or 'simulator', not 'models/llama'"],
    ),
    "KV events without a replay": (
        lambda c: c["replicas"][0].update(kvEvents="tcp://127.0.0.1:5557"),
        ["replicas[0].kvReplay: is required with kvEvents"],
    ),
    "a replay without KV events": (
        lambda c: c["replicas"][0].update(kvReplay="tcp://127.0.0.1:5558"),
        ["replicas[0].kvEvents: is required with kvReplay"],
    ),
    "a store without its place": (
        lambda c: c.update(state={"store": "File"}),
        ["state.file: is required with store File"],
    ),
    "a server that is not named": (
        lambda c: c.update(state={"store": "Redis"}),
        ["state.redisUrl: is required with store Redis"],
    ),
    "a server's address of another kind, whose password is not repeated": (
        lambda c: c.update(state={"redisUrl": "http://:secret@host"}),
        ["state.redisUrl: is not an address like redis://:password@host:6379/0"],
    ),
    "a cell with the name of this one, and a text that is no certificate": (
        lambda c: c.update(
            federation={
                "cell": "oslo",
                "token": "a token of all cells",
                # The first one could be read.
                "ca": "".join(
                    f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"
                    for text in ("AAAA", "!")
                ),
                "cells": [{"name": "oslo", "url": "https://oslo"}],
            }
        ),
        [
            "federation.cells[0].name: 'oslo' is the name of this cell; list the other cells only",
            "federation.ca: has no certificate in the form of PEM; give the text between BEGIN and END, too",
        ],
    ),
    "a short token of cells, which is not repeated, and no other cell": (
        lambda c: c.update(federation={"cell": "oslo", "token": "short", "cells": []}),
        [
            "federation.token: must have at least 16 bytes, not 5",
            "federation.cells: must have at least 1 entries, not 0",
        ],
    ),
    "a peer twice": (
        lambda c: c.update(state={"peers": [{"name": "b", "url": "http://127.0.0.1:1"}] * 2}),
        ["state.peers[1].name: 'b' is given twice, first in state.peers[0]"],
    ),
    "a replica's address with a path": (
        lambda c: c["replicas"][0].update(url="http://127.0.0.1:1/v1"),
        [
            (
                "replicas[0].url: 'http://127.0.0.1:1/v1' must end after host and port: "
                "http://127.0.0.1:1"
            )
        ],
    ),
    "keys of clients without an issuer": (
        lambda c: (
            c["tenancy"].update(signedKeys=_own_keys(3600)),
            c["state"].update(revocations="/r.json"),
        ),
        [
            "tenancy.signedKeys.selfService: needs tenancy.jwt, because only a token of an issuer may create keys; add an issuer",
        ],
    ),
    "keys of clients that outlive all others": (
        lambda c: (
            c["tenancy"].update(signedKeys=_own_keys(7201), jwt=[_ISSUER]),
            c["state"].update(revocations="/r.json"),
        ),
        [
            "tenancy.signedKeys.selfService.lifetimeS: must be at most maxLifetimeS (7200), the maximum of all signed keys",
        ],
    ),
}


@pytest.mark.parametrize(("edit", "want"), CASES.values(), ids=CASES.keys())
def test_faults_of_a_configuration(edit: Edit, want: list[str]) -> None:
    plain = json.loads(dump_router_config(CONFIG))
    edit(plain)
    config, faults = parse_router_config(json.dumps(plain).encode())
    assert config is None
    assert [str(fault) for fault in faults] == want


def test_a_configuration_beyond_all_reason_is_not_even_read() -> None:
    config, faults = parse_router_config(b" " * (MAX_CONFIG_BYTES + 1))
    assert config is None
    assert [str(fault) for fault in faults] == ["document: is longer than 67108864 bytes"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b"null"],
    ids=["empty", "cut", "not text", "bad UTF-8", "deep list", "deep map", "null"],
)
def test_what_is_no_configuration_is_a_fault_of_the_document(data: bytes) -> None:
    config, faults = parse_router_config(data)
    assert config is None
    assert [fault.path for fault in faults] == [""]
