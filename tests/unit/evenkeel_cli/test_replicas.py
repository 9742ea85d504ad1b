"""The replicas to keep, start and stop after an edit, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from evenkeel_cli.up.process_supervisor import backoff_s
from evenkeel_cli.up.replicas import (
    ReplicaAddress,
    ReplicaChanges,
    SimulatedReplica,
    changes_to,
    simulated,
)
from evenkeel_contract.spec.resources import FairInferenceService
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


CASES: Mapping[str, tuple[dict[str, SimulatedReplica], int, ReplicaChanges]] = {
    "a new fleet": (
        {},
        2,
        ReplicaChanges(start=("replica-0", "replica-1"), stop=()),
    ),
    "nothing changes": (
        {"replica-0": NEW, "replica-1": NEW},
        2,
        ReplicaChanges(start=(), stop=()),
    ),
    "a larger fleet uses the lowest free names": (
        {"replica-1": NEW},
        3,
        ReplicaChanges(start=("replica-0", "replica-2"), stop=()),
    ),
    "a smaller fleet stops the highest numbers": (
        {"replica-10": NEW, "replica-2": NEW, "replica-9": NEW},
        2,
        ReplicaChanges(start=(), stop=("replica-10",)),
    ),
    "new replicas get new names": (
        {"replica-0": OLD, "replica-1": OLD},
        2,
        ReplicaChanges(start=("replica-2", "replica-3"), stop=("replica-0", "replica-1")),
    ),
    "a fleet of zero": (
        {"replica-0": OLD},
        0,
        ReplicaChanges(start=(), stop=("replica-0",)),
    ),
}


@pytest.mark.parametrize(("current", "count", "want"), CASES.values(), ids=CASES.keys())
def test_replicas_are_kept_started_and_stopped(
    current: dict[str, SimulatedReplica], count: int, want: ReplicaChanges
) -> None:
    assert changes_to(current, command=NEW, count=count) == want


def test_a_replica_gets_the_arguments_of_the_spec() -> None:
    command = simulated(
        service(
            scheduling={"replicaPolicy": "VTC", "clientQuantum": 5, "rejoin": "Paper"},
            engine={"args": ["--kv-tokens=99"]},
        )
    )
    address = ReplicaAddress(
        name="replica-3",
        host="h",
        http_port=1,
        reports_port=2,
        kv_events_port=3,
        kv_replay_port=4,
    )
    program = command.at(address)
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
def test_a_setting_of_the_router_replaces_no_replica(spec: dict[str, object]) -> None:
    assert simulated(service(**spec)) == simulated(service())


def test_backoff_doubles_up_to_half_a_minute() -> None:
    delays = [backoff_s(failures) for failures in (1, 2, 3, 8, 1000)]
    assert delays == [0.25, 0.5, 1.0, 30.0, 30.0]
