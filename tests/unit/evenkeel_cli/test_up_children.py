"""`evenkeel up`, one process at a time: real children, a probe that says what it is told to, and no fleet."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from aiohttp import web
from evenkeel_cli.up import fleet as fleets
from evenkeel_cli.up import launcher as launchers
from evenkeel_cli.up import ports
from evenkeel_cli.up import process_supervisor as supervisors
from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.launcher import Launcher, Program
from evenkeel_cli.up.probes import Probes
from evenkeel_cli.up.process_supervisor import ProcessSupervisor, backoff_s
from evenkeel_cli.up.record import FleetRecord, ProcessRecord
from evenkeel_cli.up.state import StateFolder, descendants, end, leftovers, started_s
from evenkeel_contract.adminstate import STATE_VERSION, ReplicaState, RouterState
from evenkeel_contract.routerconfig import ListenConfig

from tests.support.ports import free_ports
from tests.support.routers import until

WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"
IGNORES = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
ENDS = "import sys\nprint('first\\nlast')\nsys.exit(3)\n"
FORKS = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n{WAITS}"
SAYS = "import os, sys\nprint(sys.argv, os.environ.get('GIVEN'), __name__)\n"


class Place:
    """A folder with a launcher, and modules that children run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = StateFolder.open(path / "state", "ns.svc")
        self.launcher = Launcher(self.folder)
        self.reports: list[str] = []
        self.statuses: dict[str, int | None] = {}
        self.probed = 0
        self._supervisors: list[ProcessSupervisor] = []

    def program(self, code: str, name: str = "replica-0", **changes: Any) -> Program:
        module = f"child_{len(list(self.path.glob('*.py')))}"
        (self.path / f"{module}.py").write_text(code)
        environment = {"PYTHONPATH": os.pathsep.join([str(self.path), *sys.path]), "GIVEN": "yes"}
        given = {"arguments": ("--x", "1"), "probe_url": name, "environment": environment}
        return Program(name=name, module=module, **(given | changes))

    async def probe(self, url: str) -> int | None:
        self.probed += 1
        return self.statuses.get(url, 200)

    def supervise(self, *codes: str, **changes: Any) -> ProcessSupervisor:
        """Runs the first code, after each end the next one, and the last one again and again."""
        left = [self.program(code, **changes) for code in codes]
        made = ProcessSupervisor(
            "replica-0",
            lambda: left.pop(0) if len(left) > 1 else left[0],
            launcher=self.launcher,
            probe=self.probe,
            report=self.reports.append,
            probe_every_s=0.01,
        )
        self._supervisors.append(made)
        return made

    def said(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in report for report in self.reports)

    async def close(self) -> None:
        for one in self._supervisors:
            one.kill()
            await asyncio.gather(one._task, return_exceptions=True)
        self.launcher.close()
        self.folder.close()


@asynccontextmanager
async def place(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(supervisors, "_FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(supervisors, "_STARTING_S", 0.01)
    made = Place(path)
    try:
        yield made
    finally:
        await made.close()


def recorded(of: Place) -> list[tuple[str, int]]:
    record = of.folder.read()
    return [] if record is None else [(one.name, one.pid) for one in record.processes]


async def test_a_process_is_recorded_while_it_runs_and_ends_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        child = await at.launcher.launch(at.program(FORKS))
        assert recorded(at) == [("replica-0", child.pid)]
        process = psutil.Process(child.pid)
        await until(lambda: bool(process.children()), "the child of the child")
        assert os.getsid(child.pid) == child.pid
        record = at.folder.read()
        assert record is not None
        ((known, running),) = leftovers(record)
        assert (known.name, running.pid) == ("replica-0", child.pid)
        assert leftovers(FleetRecord("another run", record.processes)) == []
        moved = ProcessRecord("replica-0", child.pid, record.processes[0].started_s + 2.1)
        assert leftovers(FleetRecord(record.run, (moved,))) == []
        (below,) = descendants([process])
        child.send(signal.SIGTERM)
        await child.process.wait()
        at.launcher.ended(child)
        await until(lambda: started_s(below.pid) is None or not below.is_running(), "its end")
        assert recorded(at) == []
        child.send(signal.SIGKILL)  # after its end: does nothing
        assert leftovers(record) == []


async def test_a_child_runs_a_module_as_python_does_and_writes_to_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        at.folder.log_of("replica-0").write_text("of an earlier run\n")
        at.folder.old_log_of("replica-0").write_text("older\n")
        for _ in range(2):  # the second start of the same run keeps the log
            child = await at.launcher.launch(at.program(SAYS))
            assert await child.process.wait() == 0
        lines = at.folder.log_of("replica-0").read_text().splitlines()
        assert len(lines) == 2
        assert all(line.endswith(".py', '--x', '1'] yes __main__") for line in lines)
        assert not at.folder.old_log_of("replica-0").exists()


async def test_a_child_ends_when_the_pipe_of_the_fleet_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        child = await at.launcher.launch(at.program(WAITS))
        await until(lambda: "waits" in at.launcher.tail("replica-0"), "its start")
        at.launcher.close()
        assert await asyncio.wait_for(child.process.wait(), 20) == -signal.SIGTERM
        at.launcher._pipe = os.pipe()


def test_the_end_of_a_log_and_a_log_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "MAX_LOG_BYTES", 100)
    folder = StateFolder.open(tmp_path, "ns.svc")
    made = Launcher(folder)
    log = folder.log_of("router")
    assert made.tail("router") == ""
    log.write_text("".join(f"line {n}\n" for n in range(11)))
    assert made.tail("router") == "\n".join(f"line {n}" for n in range(3, 11))
    assert made.tail("router", lines=1) == "line 10"
    made.bound_log("router")
    assert log.stat().st_size > 0
    log.write_bytes(b"x" * 101)
    made.bound_log("router")
    assert (log.stat().st_size, folder.old_log_of("router").stat().st_size) == (0, 101)
    log.write_bytes(b"y" * launchers._TAIL_BYTES + b"z")
    assert len(made.tail("router")) == launchers._TAIL_BYTES
    made.close()
    folder.close()


async def test_a_process_that_ends_is_restarted_as_its_maker_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        made = at.supervise(ENDS, WAITS)
        await made.get_ready()
        await until(at.said("ready again"), "its second start")
        assert at.reports[1] == "replica-0: ended with status 3; restarts in 0.001 s"
        assert (made.restarts, made.pid) == (1, recorded(at)[0][1])
        await made.stop(20.0)
        assert (made.pid, made.ready.is_set(), recorded(at)) == (None, False, [])
        assert not at.said("killed")()


async def test_a_program_that_cannot_start_fails_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        at.statuses["replica-0"] = None
        made = at.supervise(ENDS)
        with pytest.raises(FleetError, match="ended when it started;(.|\n)*first\nlast$"):
            await made.get_ready()
        assert made.restarts >= 2


async def test_a_process_that_is_never_ready_is_killed_after_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "_REPORT_EVERY_S", 0.2)
    async with place(tmp_path, monkeypatch) as at:
        at.statuses["replica-0"] = 503
        made = at.supervise(IGNORES, start_limit_s=2.0)
        with pytest.raises(FleetError, match="not ready in 2 s"):
            await made.get_ready()
        await until(at.said("not ready in 2 s; killed"), "the end")
        await until(at.said("ended by SIGKILL"), "the restart")
        starting = [one for one in at.reports if "starting for" in one]
        assert len(starting) >= 2
        assert starting[-1].endswith("; its log: waits")


async def test_a_silent_process_is_killed_but_not_one_that_answers_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "_MISSES", 3)
    async with place(tmp_path, monkeypatch) as at:
        made = at.supervise(WAITS)
        await made.get_ready()
        at.statuses["replica-0"] = 503
        begin = at.probed
        await until(lambda: at.probed > begin + 6, "more probes")
        assert (made.ready.is_set(), made.restarts) == (True, 0)
        at.statuses["replica-0"] = None
        await until(at.said("did not answer 3 probes in a row; killed"), "the kill")
        at.statuses["replica-0"] = 200
        await until(at.said("ready again"), "the next process")
        assert made.restarts == 1


async def test_a_process_that_ignores_its_end_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as at:
        made = at.supervise(IGNORES)
        await made.get_ready()
        await until(lambda: "waits" in at.launcher.tail("replica-0"), "its start")
        await made.stop(0.1)
        assert at.reports[-1] == "replica-0: did not end within 0.1 s; killed"
        assert (made.pid, made.restarts) == (None, 0)


def test_pauses_between_starts_double_up_to_half_a_minute() -> None:
    assert [backoff_s(n) for n in (1, 2, 3, 7, 8, 9, 2000)] == [0.25, 0.5, 1, 16, 30, 30, 30]
    assert supervisors._ending(2) == "ended with status 2"
    assert supervisors._ending(-9) == "ended by SIGKILL"
    assert supervisors._ending(-999) == "ended by signal 999"


def test_leftovers_get_time_to_end_and_are_killed_afterwards() -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); exec({WAITS!r})"
    stubborn, polite = (
        psutil.Popen([sys.executable, "-c", one], stdout=-1) for one in (code, WAITS)
    )
    for one in (stubborn, polite):
        assert one.stdout.readline() == b"waits\n"
    end([stubborn, polite], 0.5)
    assert (stubborn.wait(), polite.wait()) == (-signal.SIGKILL, -signal.SIGTERM)
    stubborn.stdout.close()
    polite.stdout.close()


# Folders, ports and probes.


def test_a_folder_has_one_user_and_keeps_its_files(tmp_path: Path) -> None:
    folder = StateFolder.open(tmp_path, "ns.svc")
    with pytest.raises(FleetError, match="another `evenkeel up` uses"):
        StateFolder.open(tmp_path, "ns.svc")
    StateFolder.open(tmp_path, "ns.other").close()
    record = FleetRecord("run", (ProcessRecord("router", 1, 2.0),))
    folder.write(record)
    assert folder.read() == record
    folder.forget()
    folder.forget()
    assert folder.read() is None
    assert folder.path.stat().st_mode & 0o777 == 0o700
    names = ("router_config", "recording_of", "log_of", "old_log_of")
    assert [getattr(folder, name)("r").name for name in names] == [
        "r.json", "r.recording.jsonl", "r.log", "r.log.1",
    ]  # fmt: skip
    folder.close()
    StateFolder.open(tmp_path, "ns.svc").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match="file"):
        StateFolder.open(tmp_path / "file", "ns.svc")


def test_ports_that_are_not_given_are_free_and_all_differ() -> None:
    claimed = ports.claim(ListenConfig(traffic_port=0, probe_port=0, admin_port=0))
    chosen = {claimed.traffic_port, claimed.probe_port, claimed.admin_port}
    assert len(chosen) == 3
    assert all(20_000 <= port < 32_000 for port in chosen)
    assert chosen <= ports._chosen
    with pytest.raises(FleetError, match="port 7000 is given twice"):
        ports.claim(ListenConfig(traffic_port=7000, probe_port=0, admin_port=7000))


def test_a_taken_port_is_an_error_that_names_who_listens_there() -> None:
    (own,) = free_ports(1)
    with socket.create_server(("127.0.0.1", own)):
        assert not ports.is_free("127.0.0.1", own)
        with pytest.raises(FleetError) as error:
            ports.claim(ListenConfig(traffic_port=own, probe_port=0, admin_port=0))
        assert f"(process {os.getpid()})" in str(error.value)
        with socket.create_connection(("127.0.0.1", own)) as client:
            assert ports._by_whom(client.getsockname()[1]) == ""
    assert ports.is_free("127.0.0.1", own)
    kept = ports.claim(ListenConfig(traffic_port=own, probe_port=0, admin_port=0))
    assert kept.traffic_port == own


def test_without_a_free_port_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda host, port: False)
    with pytest.raises(FleetError, match="no port from 20000 to 32000 on 127.0.0.1 is free"):
        ports.free_port("127.0.0.1")


async def test_probes_are_values_whatever_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    (dead,) = free_ports(1)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{dead}")
    replicas = [ReplicaState(name="a", url="", routable=True), ReplicaState(name="b", url="")]
    asked = 0

    async def state(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise web.HTTPServiceUnavailable
        if asked == 5:
            replicas[1] = msgspec.structs.replace(replicas[1], routable=True)
        body = RouterState(
            version=STATE_VERSION, time_s=0.0, uptime_s=1.0, namespace="n", service="s",
            model="m", fleet_policy="D2LPM", replicas=tuple(replicas),
        )  # fmt: skip
        return web.Response(body=msgspec.json.encode(body))

    made = web.Application()
    made.router.add_get("/v1/state", state)
    runner = web.AppRunner(made)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Probes.open() as probes:
            assert await probes.status(f"{url}/none") == 404
            assert await probes.status(f"http://127.0.0.1:{dead}") is None
            assert await probes.state(f"http://127.0.0.1:{dead}") is None
            assert await probes.state(url) is None
            assert await probes.routes(url, frozenset("ab"), 20.0)
            assert asked == 5
            assert (found := await probes.state(url)) is not None
            assert found.model == "m"
            assert not await probes.routes(url, frozenset("abc"), 0.2)
            assert not await probes.routes(url, frozenset("a"), 0.2)
    finally:
        await runner.cleanup()


# What a fleet reports.


class Answers:
    """Probes of one router that answers like this."""

    def __init__(self, routes: bool, state: Any) -> None:
        self._routes, self._state = routes, state
        self.asked: list[frozenset[str]] = []

    async def routes(self, admin_url: str, names: frozenset[str], limit_s: float) -> bool:
        self.asked.append(names)
        return self._routes

    async def state(self, admin_url: str) -> Any:
        return self._state


@pytest.mark.parametrize(
    ("routes", "state", "reported"),
    [
        (True, SimpleNamespace(config_faults=()), []),
        (True, None, []),
        (False, None, ["router: not all of a, b take requests yet"]),
        (
            True,
            SimpleNamespace(config_faults=("x: is odd",)),
            ["router: still uses its previous configuration: x: is odd"],
        ),
    ],
)
async def test_a_router_that_does_not_follow_the_file_is_reported(
    routes: bool, state: Any, reported: list[str]
) -> None:
    reports: list[str] = []
    probes = Answers(routes, state)
    fleet: Any = SimpleNamespace(replicas={"b": 1, "a": 2}, _probes=probes, _report=reports.append)
    router: Any = SimpleNamespace(name="router", admin_url="http://x")
    await fleets.LocalFleet._until_applied(fleet, router)
    assert (reports, probes.asked) == (reported, [frozenset("ab")])


def test_what_a_killed_run_left_is_ended_and_reported(tmp_path: Path) -> None:
    folder = StateFolder.open(tmp_path, "ns.svc")
    reports: list[str] = []
    fleets._clean_up(folder, reports.append)
    assert reports == []
    folder.write(FleetRecord("run", (ProcessRecord("router", 2**22 + 1, 1.0),)))
    fleets._clean_up(folder, reports.append)
    assert reports.pop() == "an earlier run was killed; none of its processes is left"
    assert folder.read() is None
    left = subprocess.Popen([sys.executable, "-c", WAITS, "the run"], stdout=subprocess.PIPE)
    assert left.stdout is not None
    assert left.stdout.readline() == b"waits\n"
    began_s = started_s(left.pid)
    assert began_s is not None
    folder.write(FleetRecord("the run", (ProcessRecord("router", left.pid, began_s),)))
    fleets._clean_up(folder, reports.append)
    assert reports == [
        f"an earlier run was killed and left router (process {left.pid}); ending them"
    ]
    assert started_s(left.pid) is None
    left.wait()  # its status is taken already
    assert folder.read() is None
    left.stdout.close()
    folder.close()
