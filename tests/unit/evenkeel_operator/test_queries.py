"""The scaler's PromQL, as Prometheus' own engine computes it over series that are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml
from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.values import Quantity
from evenkeel_operator.core.recommendation import (
    Measurements,
    Sample,
    measurements,
    queries,
    series_of,
)

from tests.support.build_contexts import sample_context
from tests.support.promtool import promtool

GIVEN = sample_context("gpu.yaml").spec.autoscaling
assert GIVEN is not None
QUERIES: Final = queries("team-ml", "llama", GIVEN)
OF: Final = series_of("team-ml", "llama")

# One sample each half minute; two routers, `a` and `b`, say the same of the fleet.
SERVED = "evenkeel_router_tenant_service_total"
ROUTABLE = "evenkeel_router_replica_routable"
WAITS = "evenkeel_router_fleet_backlogged_clients"
SATURATED_S = "evenkeel_router_saturated_seconds_total"
SATURATED_SERVICE = "evenkeel_router_saturated_service_total"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    listed = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{OF},{listed}}}", "values": values}


def both(name: str, values: str, **labels: str) -> list[dict[str, str]]:
    return [series(name, values, pod=pod, **labels) for pod in ("a", "b")]


TWO_REPLICAS = [*both(ROUTABLE, "1x240", replica="r0"), *both(ROUTABLE, "1x240", replica="r1")]
THREE_OF_WHICH_ONE_IS_NOT_READY = [*TWO_REPLICAS, *both(ROUTABLE, "0x240", replica="r2")]
BUSY = both(SERVED, "0+60000x240", tenant="t")  # 2000 a second
CASES: dict[str, tuple[str, list[dict[str, str]], float | None]] = {
    "what a replica did while requests waited": (
        "saturated",
        [*both(SATURATED_S, "0+30x240"), *both(SATURATED_SERVICE, "0+30000x240")], 1000.0),
    "it counts from two scrapes after the first wait": (
        "saturated",
        [*both(SATURATED_S, "0x238 12 40"), *both(SATURATED_SERVICE, "0x238 12000 40000")], 1000.0),
    "a router that starts anew begins at 0": (
        "saturated",
        [*both(SATURATED_S, "0+30x120 0+15x119"), *both(SATURATED_SERVICE, "0+30000x120 0+15000x119")],
        1000.0),
    "a short wait is no capacity": (
        "saturated",
        [*both(SATURATED_S, "0x238 1 2"), *both(SATURATED_SERVICE, "0x238 9000 9000")], None),
    "nothing waited": (
        "saturated", [*both(SATURATED_S, "0x240"), *both(SATURATED_SERVICE, "0x240")], None),
    "replicas that are not ready are no capacity": (
        "seen", [*THREE_OF_WHICH_ONE_IS_NOT_READY, *BUSY], 1000.0),
    "figures of less than two minutes are no rate": (
        "seen", [*TWO_REPLICAS, *both(SERVED, "_x237 0+60000x3", tenant="t")], None),
    "figures of two minutes are": (
        "seen", [*TWO_REPLICAS, *both(SERVED, "_x236 0+60000x4", tenant="t")], 1000.0),
    "what a replica did with nothing waiting": (
        "seen", [*TWO_REPLICAS, *BUSY], 1000.0),
    "times without work say nothing about replicas": (
        "seen", [*TWO_REPLICAS, *both(SERVED, "0+60000x60 3600000x180", tenant="t")], 1000.0),
    "one router that reads its ledger anew jumps, the other does not": (
        "seen",
        [*TWO_REPLICAS, series(SERVED, "0+60000x240", pod="a", tenant="t"),
         series(SERVED, "0x229 13800000+60000x10", pod="b", tenant="t")], 1000.0),
    "all clients' service counts": (
        "seen", [*TWO_REPLICAS, *BUSY, *both(SERVED, "0+30000x240", tenant="u")], 1500.0),
    "how old the newest figures are": (
        "age", [series(WAITS, "0x238", pod="a"), series(WAITS, "0x236", pod="b")], 60.0),
    "a service that nobody scrapes": ("age", [], None),
    "how long requests wait": (
        "queue",
        [*both("evenkeel_router_within_share_waiting", "6x240"),
         *both("evenkeel_router_within_share_ttft_seconds_count", "0+30x240")], 3.0),
    "ninety-five of a hundred first tokens": (
        "ttft",
        [*both("evenkeel_router_within_share_ttft_seconds_bucket", "0x240", le="1.0"),
         *both("evenkeel_router_within_share_ttft_seconds_bucket", "0+60x240", le="2.0"),
         *both("evenkeel_router_within_share_ttft_seconds_bucket", "0+60x240", le="+Inf")], 1.95),
    "requests of all routers": (
        "inFlight",
        [*both("evenkeel_router_requests_in_flight", "2x240", client="x"),
         *both("evenkeel_router_requests_in_flight", "1x240", client="y")], 6.0),
}  # fmt: skip


def evaluated(
    folder: Path, query: str, given: list[dict[str, str]], want: list[Mapping[str, object]]
) -> tuple[int, str]:
    """Of two hours of samples, at their end."""
    test = {
        "interval": "30s",
        "input_series": given,
        "promql_expr_test": [{"expr": query, "eval_time": "120m", "exp_samples": want}],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"tests": [test]}))
    return promtool("test", "rules", path)


@pytest.mark.parametrize("case", CASES)
def test_a_query_says_what_is_meant(case: str, tmp_path: Path) -> None:
    name, given, value = CASES[case]
    want = [] if value is None else [{"labels": "{}", "value": value}]
    code, said = evaluated(tmp_path, QUERIES[name], given, want)
    assert code == 0, said


@pytest.mark.parametrize("name", ["asked", "waiting"])
def test_routers_that_say_the_same_are_not_added_up(name: str, tmp_path: Path) -> None:
    asked = {
        "asked": "evenkeel_router_service_requested",
        "waiting": "evenkeel_router_service_waiting",
    }[name]
    given = [
        *both(asked, "500x240", tenant="t", client="x"),
        series(asked, "700x240", pod="a", tenant="t", client="y"),
        *both(asked, "0x240", tenant="t", client="gone"),
        *both(asked, "900x240", tenant="t", client=OTHER_CLIENTS),
    ]
    want = [
        {"labels": '{tenant="t"}', "value": 900},
        {"labels": '{tenant="t", client="x"}', "value": 500},
        {"labels": '{tenant="t", client="y"}', "value": 700},
    ]
    code, said = evaluated(tmp_path, QUERIES[name], given, want)  # type: ignore[arg-type]
    assert code == 0, said


def test_a_demand_that_is_no_number_is_seen(tmp_path: Path) -> None:
    values = " ".join(["NaN"] * 241)
    given = both("evenkeel_router_service_requested", values, tenant="t", client="x")
    query = f"count({QUERIES['asked']})"  # NaN equals nothing, not even an expected NaN
    code, said = evaluated(tmp_path, query, given, [{"labels": "{}", "value": 1}])
    assert code == 0, said


def test_a_series_without_a_client_is_of_the_tenants_other_clients() -> None:
    answers = {"age": [Sample({}, 1.0)], "asked": [Sample({"tenant": "t"}, 900.0)]}
    found = measurements(answers)
    assert isinstance(found, Measurements)
    assert [(one.tenant, one.client) for one in found.asked] == [("t", OTHER_CLIENTS)]


def test_another_service_is_none_of_its_business(tmp_path: Path) -> None:
    other = series_of("team-ml", "other")
    given = [{"series": f"{WAITS}{{{other}}}", "values": "0x240"}]
    code, said = evaluated(tmp_path, QUERIES["age"], given, [])
    assert code == 0, said


def test_nothing_is_asked_that_the_spec_gives() -> None:
    assert GIVEN is not None
    given = replace(GIVEN.targets, service_per_replica=Quantity.from_plain("1k"))
    asked = queries("n", "s", replace(GIVEN, targets=given))
    assert set(asked) == {"age", "asked", "waiting", "inFlight", "queue", "ttft"}
