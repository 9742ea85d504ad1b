"""Resources become the configuration of a router."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.federationconfig import CellConfig, FederationConfig
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.queueorder import RequestOrder
from evenkeel_contract.render import engine_environment, router_config, selects, simulator_flags
from evenkeel_contract.routerconfig import (
    AtZero,
    ClusterConfig,
    FleetPolicyName,
    ListenConfig,
    ReplicaConfig,
    RouterConfig,
)
from evenkeel_contract.routerdocument import (
    check_router_config,
    dump_router_config,
    parse_router_config,
)
from evenkeel_contract.spec.federation import FederationSecrets
from evenkeel_contract.spec.resources import (
    LabelSelector,
    LabelSelectorRequirement,
    SelectorOperator,
)
from evenkeel_contract.validate import parse_service, parse_tenant
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_router.gate.gates import policy_of
from evenkeel_simulator.server.settings import parse_arguments

from tests.support.replica import admit, arrive, request

HASH = "0a" * 32


def render(
    *,
    tenant_labels: dict[str, str] | None = None,
    on_cluster: bool = False,
    cells: FederationSecrets | None = None,
    **spec: Any,
) -> RouterConfig:
    service, faults = parse_service(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "FairInferenceService",
            "metadata": {"name": "llama", "namespace": "ml"},
            "spec": {"model": {"source": "hf://org/m", "servedName": "m"}, **spec},
        }
    )
    assert service is not None, faults
    plain: dict[str, Any] = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "InferenceTenant",
        "metadata": {"name": "b", "namespace": "ml", "labels": tenant_labels or {}},
        "spec": {
            "weight": 4,
            "defaultClientWeight": 2,
            "clients": [{"name": "z", "weight": 3}, {"name": "a"}],
            "apiKeys": [
                {"name": "k", "client": "z", "secretRef": {"name": "s", "key": "k"}},
                {"name": "l", "client": "a", "secretRef": {"name": "s", "key": "missing"}},
            ],
            "limits": {"tokensPerMinute": 9},
        },
    }
    other = deepcopy(plain)
    other["metadata"] = {"name": "a", "namespace": "elsewhere"}
    tenants = [tenant for data in (plain, other) if (tenant := parse_tenant(data)[0])]
    assert len(tenants) == 2
    return router_config(
        service,
        tenants=tenants,
        key_hashes={("ml", "s", "k"): HASH, ("elsewhere", "s", "k"): HASH},
        replicas=()
        if on_cluster
        else [
            ReplicaConfig(name="r1", url="http://127.0.0.1:2"),
            ReplicaConfig(name="r0", url="http://127.0.0.1:1"),
        ],
        cluster=ClusterConfig(engines="llama-engine") if on_cluster else None,
        listen=ListenConfig(traffic_port=0),
        cells=cells,
    )


def test_a_service_with_its_tenants_is_a_good_configuration() -> None:
    config = render(
        scheduling={
            "fleetPolicy": "RoundRobin",
            "workerQuantum": 7,
            "outputTokenWeight": 3,
            "cost": {"kvTime": 4},
        },
        router={"limits": {"maxBodySize": "1Ki", "firstTokenTimeout": "1500ms"}},
        tenancy={"anonymous": "Share", "trustedProxies": ["::1"]},
    )
    assert list(check_router_config(config)) == []
    assert parse_router_config(dump_router_config(config)) == (config, ())
    assert (config.namespace, config.service, config.model) == ("ml", "llama", "m")
    assert config.scheduling.fleet_policy is FleetPolicyName.ROUND_ROBIN
    assert (config.scheduling.worker_quantum, config.scheduling.output_token_weight) == (7, 3)
    assert config.scheduling.kv_time == 4
    assert (config.limits.max_body_bytes, config.limits.first_token_timeout_s) == (1024, 1.5)
    assert [replica.name for replica in config.replicas] == ["r0", "r1"]
    (tenant,) = config.tenancy.tenants
    assert (tenant.name, tenant.weight, tenant.default_client_weight) == ("b", 4, 2)
    assert [(client.name, client.weight) for client in tenant.clients] == [("a", 1), ("z", 3)]
    assert tenant.limits.tokens_per_minute == 9


def scaled(minimum: int) -> dict[str, Any]:
    prometheus = {"url": "http://prometheus:9090"}
    return {"minReplicas": minimum, "maxReplicas": 4, "prometheus": prometheus}


@pytest.mark.parametrize(
    ("spec", "on_cluster", "want"),
    [
        ({}, True, AtZero.WAIT),
        ({"engine": {"replicas": 0}}, True, AtZero.REFUSE),
        ({"engine": {"replicas": 0}}, False, AtZero.REFUSE),
        ({"autoscaling": scaled(1)}, True, AtZero.WAIT),
        ({"autoscaling": scaled(0)}, True, AtZero.ACTIVATE),
        ({"autoscaling": scaled(0)}, False, AtZero.WAIT),  # no operator scales there
    ],
)
def test_handling_of_requests_at_zero_depends_on_the_scaler(
    spec: dict[str, Any], on_cluster: bool, want: AtZero
) -> None:
    limits = {"activationTimeout": "9m"}
    config = render(on_cluster=on_cluster, router={"limits": limits}, **spec)
    assert config.at_zero is want
    assert config.limits.activation_timeout_s == 540


def test_tenants_of_other_namespaces_are_left_out() -> None:
    assert [tenant.namespace for tenant in render().tenancy.tenants] == ["ml"]


def test_tenants_that_the_selector_does_not_take_are_left_out() -> None:
    tenancy = {"selector": {"matchLabels": {"tier": "gold"}}}
    assert render(tenancy=tenancy).tenancy.tenants == ()
    assert len(render(tenancy=tenancy, tenant_labels={"tier": "gold"}).tenancy.tenants) == 1


def test_a_key_without_its_secret_admits_no_client() -> None:
    (tenant,) = render().tenancy.tenants
    assert [(key.name, key.client, key.sha256) for key in tenant.api_keys] == [("k", "z", HASH)]


@pytest.mark.parametrize(
    ("operator", "values", "want"),
    [
        (SelectorOperator.IN, ("x",), {"a": True, "none": False, "other": False}),
        (SelectorOperator.NOT_IN, ("x",), {"a": False, "none": True, "other": True}),
        (SelectorOperator.EXISTS, (), {"a": True, "none": False, "other": True}),
        (SelectorOperator.DOES_NOT_EXIST, (), {"a": False, "none": True, "other": False}),
    ],
)
def test_selectors_read_as_in_kubernetes(
    operator: SelectorOperator, values: tuple[str, ...], want: dict[str, bool]
) -> None:
    term = LabelSelectorRequirement(key="k", operator=operator, values=values)
    selector = LabelSelector(match_expressions=(term,))
    labels: dict[str, dict[str, str]] = {"a": {"k": "x"}, "none": {}, "other": {"k": "y"}}
    assert {name: selects(selector, label) for name, label in labels.items()} == want


@pytest.mark.parametrize(
    ("isolation", "variable", "share"),
    [("50%", None, 0.5), ("120%", "1.2", 1.2), ("Off", "Off", None)],
)
def test_isolation_reaches_engines_that_need_to_know_it(
    isolation: str, variable: str | None, share: float | None
) -> None:
    """Older engines know no such flag, so their default is not written."""
    service, faults = parse_service(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "FairInferenceService",
            "metadata": {"name": "llama"},
            "spec": {"model": {"source": "hf://org/m"}, "scheduling": {"isolation": isolation}},
        }
    )
    assert service is not None, faults
    environment = engine_environment(service.spec, reports_port=None)
    assert environment.get("EVENKEEL_ISOLATION") == variable
    assert EngineSettings.from_environment(environment).isolation == share
    flags = list(simulator_flags(service.spec))
    assert (f"--isolation={isolation}" in flags) == (variable is not None)
    assert parse_arguments(flags).engine.isolation == share


@pytest.mark.parametrize(("order", "written"), [("MatchOctaves", None), ("LongestMatch",) * 2])
def test_the_order_reaches_simulators_engines_and_gates(order: str, written: str | None) -> None:
    """Version 0.2 does not know it, so the default is not written."""
    service, faults = parse_service(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "FairInferenceService",
            "metadata": {"name": "llama"},
            "spec": {"model": {"source": "hf://org/m"}, "scheduling": {"order": order}},
        }
    )
    assert service is not None, faults
    environment = engine_environment(service.spec, reports_port=None)
    assert environment.get("EVENKEEL_ORDER") == written
    assert EngineSettings.from_environment(environment).order is RequestOrder(order)
    flags = list(simulator_flags(service.spec))
    assert any(flag.startswith("--order") for flag in flags) == (written is not None)
    config = router_config(service, tenants=(), key_hashes={}, listen=ListenConfig())
    assert (b'"order"' in dump_router_config(config)) == (written is not None)
    arrivals = request("long", extend=80_000, matched=9), request("short")
    for policy in (parse_arguments(flags).make_policy(), policy_of(config.scheduling)):
        arrive(policy, *arrivals)
        assert admit(policy)[0] == ("long" if written else "short")


def test_every_order_of_the_api_has_a_key() -> None:
    assert [order.value for order in RequestOrder] == list(ORDERS)


def test_routers_may_record_only_if_the_spec_says_so() -> None:
    recording = render(router={"recording": {"maxSize": "2Mi"}}).recording
    assert recording is not None
    assert (recording.start.value, recording.max_bytes) == ("OnRequest", 2 * 1024**2)
    assert render().recording is None


def test_qoe_is_measured_only_if_the_spec_says_so() -> None:
    qoe = render(router={"qoe": {"expectedItl": "50ms"}}).qoe
    assert qoe == QoeConfig(expected_ttft_s=1.0, expected_itl_s=0.05)
    assert render().qoe is None


def test_a_service_is_joined_once_its_token_is_known() -> None:
    federation = {
        "cell": "paris",
        "tokenSecretRef": {"name": "cells", "key": "token"},
        "cells": [
            {"name": "rome", "url": "https://rome/"},
            {"name": "oslo", "url": "https://oslo"},
        ],
        "interval": "2s",
    }
    found = render(federation=federation, cells=FederationSecrets("a token of all cells", "PEM"))
    assert found.federation == FederationConfig(
        cell="paris",
        token="a token of all cells",
        ca="PEM",
        cells=(
            CellConfig(name="oslo", url="https://oslo"),
            CellConfig(name="rome", url="https://rome"),
        ),
        interval_s=2.0,
    )
    assert render(federation=federation).federation is None
    assert render(cells=FederationSecrets("a token of all cells")).federation is None
