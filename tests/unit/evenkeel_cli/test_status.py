"""`evenkeel status`: what a record of processes and the answer of a router mean."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from evenkeel_cli import main
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.status import FleetStatus, _print, make_status
from evenkeel_cli.up.record import FleetRecord, ProcessRecord, admin_url_of, local_admin_url
from evenkeel_contract.adminstate import STATE_VERSION, FleetState, ReplicaState, RouterState
from evenkeel_contract.routerconfig import ListenConfig, ReplicaConfig, RouterConfig
from evenkeel_contract.routerdocument import dump_router_config
from rich.console import Console
from typer.testing import CliRunner

CONFIG = RouterConfig(
    namespace="default",
    service="llama",
    model="m",
    listen=ListenConfig(traffic_port=8080, probe_port=8081, admin_port=8082),
    replicas=(
        ReplicaConfig(name="replica-0", url="http://127.0.0.1:40000"),
        ReplicaConfig(name="replica-1", url="http://127.0.0.1:40001"),
    ),
)
RECORD = FleetRecord(
    "run",
    (
        ProcessRecord("replica-0", 10, 1000.0),
        ProcessRecord("replica-1", 11, 1000.0),
        ProcessRecord("router", 12, 1003.0),
    ),
)


def state(*, verdict: str = "", draining: str = "") -> RouterState:
    return RouterState(
        version=STATE_VERSION,
        time_s=0.0,
        uptime_s=60.0,
        namespace="default",
        service="llama",
        model="m",
        fleet_policy="D2LPM",
        replicas=(
            ReplicaState(name="replica-0", url="", joined=True, routable=True),
            ReplicaState(
                name="replica-1",
                url="",
                joined=True,
                routable=not draining,
                unschedulable_reason=draining,
            ),
        ),
        fleet=FleetState(backlogged=2, verdict=verdict),
    )


def status(
    found: RouterState | None, *, running: frozenset[int] = frozenset((10, 11, 12))
) -> FleetStatus:
    return make_status(
        "default.llama",
        record=RECORD,
        configs={"router": CONFIG},
        ready_routers=frozenset(("router",)) if found else frozenset(),
        state=found,
        running=running,
        now_s=1063.0,
    )


def test_a_fleet_is_ready_once_all_its_processes_are() -> None:
    fleet = status(state())
    assert (fleet.service, fleet.model, fleet.admin_url) == (
        "default/llama",
        "m",
        "http://127.0.0.1:8082",
    )
    assert fleet.running
    assert fleet.ready
    assert [(one.name, one.state, one.url, one.pid) for one in fleet.processes] == [
        ("router", "ready", "http://127.0.0.1:8080", 12),
        ("replica-0", "ready", "http://127.0.0.1:40000", 10),
        ("replica-1", "ready", "http://127.0.0.1:40001", 11),
    ]
    assert [one.uptime_s for one in fleet.processes] == [60.0, 63.0, 63.0]


def test_the_verdict_is_that_of_the_router() -> None:
    assert status(state(verdict="Fair: no client had to wait for another.")).verdict == (
        "Fair: no client had to wait for another."
    )


def test_a_draining_replica_is_not_ready_and_has_its_reason() -> None:
    fleet = status(state(draining="draining"))
    assert not fleet.ready
    assert [(one.state, one.reason) for one in fleet.processes if one.name == "replica-1"] == [
        ("not ready", "draining")
    ]


def test_a_process_that_ended_is_not_running() -> None:
    fleet = status(state(), running=frozenset((10, 12)))
    assert not fleet.ready
    (ended,) = [one for one in fleet.processes if one.name == "replica-1"]
    assert (ended.state, ended.pid, ended.uptime_s) == ("not running", None, None)


def test_nothing_is_ready_and_no_verdict_given_without_the_router_s_answer() -> None:
    fleet = status(None)
    assert {one.state for one in fleet.processes} == {"not ready"}
    assert (fleet.ready, fleet.verdict) == (False, "")


def test_a_fleet_that_was_killed_does_not_run() -> None:
    fleet = status(None, running=frozenset())
    assert (fleet.running, fleet.ready) == (False, False)


def test_processes_are_listed_before_the_router_knows_them() -> None:
    fleet = make_status(
        "default.llama",
        record=RECORD,
        configs={},
        ready_routers=frozenset(),
        state=None,
        running=frozenset((10, 11, 12)),
        now_s=1063.0,
    )
    assert {one.name: one.state for one in fleet.processes} == {
        "router": "not ready",
        "replica-0": "not ready",
        "replica-1": "not ready",
    }


@pytest.mark.parametrize("json_too", [False, True])
def test_without_a_fleet_the_exit_code_is_that_of_a_failure(json_too: bool, tmp_path: Path) -> None:
    options = ["status", f"--state-dir={tmp_path}", *(["--json"] if json_too else [])]
    result = CliRunner().invoke(main.build(options), options)
    assert result.exit_code == ExitCode.FAILED
    if json_too:
        assert json.loads(result.stdout) == {"fleets": []}
    else:
        assert "`evenkeel up FILE` starts one" in result.stderr


def test_a_replica_that_does_not_fit_the_plug_in_is_ready_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gated = state()
    first = msgspec.structs.replace(gated.replicas[0], inactive_reason="calc_priority moved")
    fleet = status(msgspec.structs.replace(gated, replicas=(first, gated.replicas[1])))
    assert fleet.ready
    assert [one.inactive_reason for one in fleet.processes] == ["", "calc_priority moved", ""]
    _print(Console(width=300), fleet)
    assert "replica-0 runs without Evenkeel's replica policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("running", "want"),
    [(True, "http://127.0.0.1:9082"), (False, "http://127.0.0.1:8082")],
    ids=["a fleet runs", "its processes have ended"],
)
def test_the_default_address_is_that_of_the_fleet_that_runs_from_this_folder(
    running: bool, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid() if running else 2**30  # above the largest process id of Linux
    folder = tmp_path / ".evenkeel" / "default.llama"
    folder.mkdir(parents=True)
    record = FleetRecord("run", (ProcessRecord("router", pid, 1000.0),))
    (folder / "state.json").write_bytes(msgspec.json.encode(record))
    listen = ListenConfig(traffic_port=9080, probe_port=9081, admin_port=9082)
    config = replace(CONFIG, listen=listen)
    (folder / "router.json").write_bytes(dump_router_config(config))
    monkeypatch.chdir(tmp_path)
    assert admin_url_of("http://127.0.0.1:9080") == (want if running else None)
    assert admin_url_of("http://127.0.0.1:8080") is None, "another router"
    assert local_admin_url() == want
