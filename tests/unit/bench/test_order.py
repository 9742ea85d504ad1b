"""Orders of DLPM against the longest match: the fleet of each, and when one passes."""

from __future__ import annotations

import msgspec
import pytest
from evenkeel_contract.enginesettings import WARMUP_S
from evenkeel_laboratory.experiments.workload_file import read_spec

from bench.fleet_comparison import WORKLOADS, Result
from bench.order import ORDERS, REFERENCE, ordered_fleet, passes, table
from tests.support.replica import admit, arrive, request


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_a_fleet_with_the_warm_up_of_replicas(order: str) -> None:
    policy = ordered_fleet(order, read_spec(WORKLOADS / "qa-s1.yaml")).replica_policy()
    arrive(policy, request("one", extend=100))
    assert policy.tenants.warming_up and WARMUP_S > 0  # type: ignore[attr-defined]
    assert admit(policy) == ["one"]


@pytest.mark.parametrize(
    ("workload", "ratios", "want"),
    [
        ("qa-s1", (0.98, 0.95, 1.2, 1.2, 2.0), True),
        ("qa-s1", (0.979, 1.0, 0.5, 0.5, 0.5), False),
        ("qa-s1", (1.0, 0.949, 0.5, 0.5, 0.5), False),
        ("mooncake-synthetic", (1.0, 1.0, 0.75, 1.0, 2.0), True),
        ("mooncake-synthetic", (1.0, 1.0, 0.751, 0.5, 0.5), False),
        ("mooncake-synthetic", (1.0, 1.0, 0.5, 1.01, 0.5), False),
    ],
    ids=["others may wait longer", "throughput", "hit rate", "at the goal", "above it", "a loss"],
)
def test_an_order_passes_a_workload(workload: str, ratios: tuple[float, ...], want: bool) -> None:
    assert passes(workload, [[ratio] for ratio in ratios]) is want


def result(system: str, seed: int, throughput: float) -> Result:
    values = dict.fromkeys(Result.__struct_fields__, 1)
    return msgspec.convert(
        {**values, "workload": "flood", "system": system, "seed": seed, "throughput": throughput},
        Result,
    )


def test_ratios_are_to_the_longest_match_with_the_same_seed() -> None:
    results = [result(REFERENCE, 0, 100), result(REFERENCE, 1, 200)]
    results += [result("HRRN", 0, 99), result("HRRN", 1, 202), result("HRRN", 2, 500)]
    assert table(results).splitlines()[2:] == [
        "| flood, D=1 | HRRN | 2 | 1.000 ± 0.014 | 1.000 ± 0.000 | 1.000 ± 0.000 | 1.000 ± 0.000 | 1.000 ± 0.000 | yes |"
    ]
