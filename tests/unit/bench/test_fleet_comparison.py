import msgspec
import pytest
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.fleet.least_loaded import LeastLoaded
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.hrrn import Hrrn
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.workload_file import read_spec
from evenkeel_laboratory.policies.registry import PrintedDlpm
from evenkeel_laboratory.policies.routers import CacheAware
from evenkeel_simulator.traffic.workload import Program, Workload

from bench.fleet_comparison import (
    COMPARED,
    OURS,
    SYSTEMS,
    VTC,
    WORKLOADS,
    Result,
    cut,
    fleet_of,
    label,
    scaled,
    table,
)


@pytest.mark.parametrize(
    ("system", "want_fleet", "want_replica"),
    [
        (OURS, AutoD2lpm, Dlpm),
        (VTC, None, Vtc),
        ("least-loaded + LPM", LeastLoaded, Lpm),
        ("cache-aware + LPM", CacheAware, Lpm),
        ("least-loaded + HRRN", LeastLoaded, Hrrn),
        ("20000/8000", D2lpm, Dlpm),
        ("auto/1000", AutoD2lpm, Dlpm),
        ("patience=4", AutoD2lpm, Dlpm),
        ("printed", AutoD2lpm, PrintedDlpm),
    ],
)
def test_a_system_is_a_fleet(system: str, want_fleet: type | None, want_replica: type) -> None:
    made = Fleet(fleet_of(system, read_spec(WORKLOADS / "qa-s1.yaml")), lambda record: None)
    assert want_fleet is None or type(made.policy) is want_fleet
    assert type(made.engines[0].policy) is want_replica


def test_every_compared_workload_and_every_system_is_there() -> None:
    for workload in COMPARED:
        spec = read_spec(WORKLOADS / f"{workload}.yaml")
        for system in SYSTEMS:
            fleet_of(system, spec)


def test_the_load_per_replica_does_not_depend_on_the_number_of_replicas() -> None:
    spec = read_spec(WORKLOADS / "qa-s1.yaml")
    larger = scaled(spec, 2.5, 8)
    assert larger.replicas == 8
    assert larger.clients[0].arrivals.rate_per_s == 5 * spec.clients[0].arrivals.rate_per_s


def result(system: str, seed: int, throughput: float) -> Result:
    values = dict.fromkeys(Result.__struct_fields__, 0.5)
    named = {
        "workload": "qa-s1",
        "load": 2.5,
        "replicas": 4,
        "length": 1,
        "system": system,
        "seed": seed,
    }
    return msgspec.convert({**values, **named, "throughput": throughput, "requests": 1,
                            "finished": 1}, Result)  # fmt: skip


def test_throughput_is_compared_with_vtc_s_of_the_same_seed() -> None:
    results = [result(OURS, 0, 300), result(OURS, 1, 200), result(VTC, 0, 100), result(VTC, 1, 100)]
    lines = table(results).splitlines()
    assert lines[0] == "#### qa-s1, load ×2.5, D=4"
    assert lines[4].startswith("| D2LPM + DLPM | 250 ± 71 | 2.50 ± 0.71 | 0.500 ± 0.000 |")
    assert "| – |" in table(results[:2])


def test_a_case_is_named_by_what_differs_from_its_workload() -> None:
    assert label(("flood", 1.0, 3, 1.0)) == "flood, D=3"
    assert label(("qa-s1", 2.5, 8, 0.5)) == "qa-s1, load ×2.5, length ×0.5, D=8"


def test_a_part_of_a_trace_is_its_beginning() -> None:
    programs = [Program(str(n), "a", float(n), ()) for n in range(5)]
    assert cut(Workload("w", programs), 0.5).programs == programs[:3]
