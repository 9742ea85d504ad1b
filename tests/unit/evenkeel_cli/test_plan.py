"""What a change of a file means for the processes that run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from evenkeel_cli.up.keeper import backoff_s
from evenkeel_cli.up.plan import (
    Place,
    ReplicaPlan,
    SimulatedReplica,
    plan_replicas,
    simulated,
)
from evenkeel_contract.spec import FairInferenceService
from evenkeel_contract.validate import parse_service

OLD, NEW = SimulatedReplica(("--old",)), SimulatedReplica(("--new",))


def service(**spec: object) -> FairInferenceService:
    found, faults = parse_service(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "FairInferenceService",
            "metadata": {"name": "s"},
            "spec": {"model": {"source": "hf://o/m"}, **spec},
        }
    )
    assert found is not None, faults
    return found


CASES: Mapping[str, tuple[dict[str, SimulatedReplica], int, ReplicaPlan]] = {
    "a fleet is born": (
        {},
        2,
        ReplicaPlan(keep=(), start=("replica-0", "replica-1"), retire=()),
    ),
    "nothing changes": (
        {"replica-0": NEW, "replica-1": NEW},
        2,
        ReplicaPlan(keep=("replica-0", "replica-1"), start=(), retire=()),
    ),
    "it grows into the gap that a replica left": (
        {"replica-1": NEW},
        3,
        ReplicaPlan(keep=("replica-1",), start=("replica-0", "replica-2"), retire=()),
    ),
    "it shrinks by the youngest, counted and not spelled": (
        {"replica-10": NEW, "replica-2": NEW, "replica-9": NEW},
        2,
        ReplicaPlan(keep=("replica-2", "replica-9"), start=(), retire=("replica-10",)),
    ),
    "everything is replaced under new names": (
        {"replica-0": OLD, "replica-1": OLD},
        2,
        ReplicaPlan(keep=(), start=("replica-2", "replica-3"), retire=("replica-0", "replica-1")),
    ),
    "it is emptied": ({"replica-0": OLD}, 0, ReplicaPlan(keep=(), start=(), retire=("replica-0",))),
}


@pytest.mark.parametrize(("current", "count", "want"), CASES.values(), ids=CASES.keys())
def test_replicas_are_kept_started_and_retired(
    current: dict[str, SimulatedReplica], count: int, want: ReplicaPlan
) -> None:
    assert plan_replicas(current, command=NEW, count=count) == want


def test_arguments_say_all_that_a_replica_must_know() -> None:
    command = simulated(
        service(
            scheduling={"replicaPolicy": "VTC", "clientQuantum": 5, "rejoin": "Paper"},
            engine={"args": ["--kv-tokens=99"]},
        )
    )
    place = Place(
        name="replica-3",
        host="h",
        http_port=1,
        reports_port=2,
        kv_events_port=3,
        kv_replay_port=4,
    )
    program = command.at(place)
    assert program.arguments == (
        "--model=m",
        "--replica-policy=VTC",
        "--client-quantum=5",
        "--input-token-weight=1",
        "--output-token-weight=2",
        "--rejoin=Paper",
        "--kv-tokens=99",
        "--host=h",
        "--port=1",
        "--reports-port=2",
        "--kv-events-port=3",
        "--kv-replay-port=4",
    )
    assert (program.name, program.probe_url) == ("replica-3", "http://h:1/ready")


@pytest.mark.parametrize(
    "spec",
    [
        {"scheduling": {"fleetPolicy": "RoundRobin"}},
        {"scheduling": {"workerQuantum": 1}},
        {"router": {"limits": {"queueTimeout": "1s"}}},
        {"engine": {"replicas": 7}},
    ],
    ids=str,
)
def test_what_concerns_the_router_only_restarts_no_replica(spec: dict[str, object]) -> None:
    assert simulated(service(**spec)) == simulated(service())


def test_backoff_doubles_up_to_half_a_minute() -> None:
    delays = [backoff_s(failures) for failures in (1, 2, 3, 8, 1000)]
    assert delays == [0.25, 0.5, 1.0, 30.0, 30.0]
