import pytest
from evenkeel_simulator.experiments.fleet import Fleet
from evenkeel_simulator.experiments.workload_file import read_spec

from bench.fleet_comparison import WORKLOADS
from bench.quanta import LPM, VTC, config, scaled


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (VTC, ("PerClientRoundRobin", "VTC")),
        (LPM, ("RoundRobin", "LPM")),
        ("auto", ("D2LPM", "DLPM")),
        ("20000/8000", ("D2LPM", "DLPM")),
        ("patience=4", ("D2LPM", "DLPM")),
    ],
)
def test_a_rule_is_a_fleet(rule: str, want: tuple[str, str]) -> None:
    made = Fleet(config(rule, read_spec(WORKLOADS / "qa-s1.yaml")), lambda record: None)
    assert (made.policy.name, made.engines[0].policy.name) == want


def test_the_load_per_replica_does_not_depend_on_the_number_of_replicas() -> None:
    spec = read_spec(WORKLOADS / "qa-s1.yaml")
    larger = scaled(spec, 2.5, 8)
    assert larger.replicas == 8
    assert larger.clients[0].arrivals.rate_per_s == 5 * spec.clients[0].arrivals.rate_per_s
