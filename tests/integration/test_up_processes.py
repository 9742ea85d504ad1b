"""The processes of `evenkeel up`: restarted, found by the next run, and ended. They are real simulators."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from evenkeel_cli.up import launcher as launcher_module
from evenkeel_cli.up import ports
from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.launcher import Launcher, Program
from evenkeel_cli.up.probes import Probes
from evenkeel_cli.up.process_supervisor import ProcessSupervisor
from evenkeel_cli.up.record import FleetRecord, ProcessRecord
from evenkeel_cli.up.run import changes
from evenkeel_cli.up.state import StateFolder, end, leftovers, started_s
from evenkeel_contract.routerconfig import ListenConfig

DEADLINE_S = 60.0

pytestmark = pytest.mark.usefixtures("source_path")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    state = StateFolder.open(tmp_path, "ns.service")
    yield state
    state.close()


def simulator(port: int, *arguments: str) -> Program:
    return Program(
        name="replica-0",
        module="evenkeel_simulator.server",
        arguments=("--model=m", f"--port={port}", *arguments),
        probe_url=f"http://127.0.0.1:{port}/ready",
    )


@asynccontextmanager
async def supervised(
    folder: StateFolder, *arguments: str
) -> AsyncIterator[tuple[ProcessSupervisor, Launcher, list[str]]]:
    reports: list[str] = []
    launcher = Launcher(folder)
    port = ports.free_port("127.0.0.1")
    async with Probes.open() as probes:
        supervisor = ProcessSupervisor(
            "replica-0",
            lambda: simulator(port, *arguments),
            launcher=launcher,
            probe=probes.status,
            report=reports.append,
        )
        try:
            yield supervisor, launcher, reports
        finally:
            supervisor.kill()
            await supervisor.stop(DEADLINE_S)
            launcher.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of another process, which cannot set an event."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_killed_process_restarts_and_is_recorded(folder: StateFolder) -> None:
    async with supervised(folder) as (supervisor, _, reports):
        await supervisor.get_ready()
        first = supervisor.pid
        assert first is not None
        record = folder.read()
        assert record is not None
        assert [(process.name, process.pid) for process in record.processes] == [
            ("replica-0", first)
        ]
        os.kill(first, signal.SIGKILL)
        await until(lambda: supervisor.pid not in (None, first) and supervisor.ready.is_set())
        assert supervisor.restarts == 1
        assert reports[0] == f"replica-0: started (process {first})"
        assert reports[1] == "replica-0: ended by SIGKILL; restarts in 0.25 s"
        record = folder.read()
        assert record is not None
        assert [process.pid for process in record.processes] == [supervisor.pid]


async def test_a_process_that_cannot_start_is_reported_with_its_log(folder: StateFolder) -> None:
    async with supervised(folder, "--speed=never") as (supervisor, _, reports):
        with pytest.raises(FleetError) as caught:
            await supervisor.get_ready()
        assert "replica-0: ended when it started" in str(caught.value)
        assert "--speed" in str(caught.value), "the end of its log has the cause"
        assert reports[1].startswith("replica-0: ended with status 2; restarts in ")


async def test_a_process_that_does_not_answer_is_restarted(folder: StateFolder) -> None:
    reports: list[str] = []
    launcher = Launcher(folder)
    port = ports.free_port("127.0.0.1")
    frozen: set[int | None] = set()
    async with Probes.open() as probes:

        async def probe(url: str) -> int | None:
            return None if supervisor.pid in frozen else await probes.status(url)

        supervisor = ProcessSupervisor(
            "replica-0",
            lambda: simulator(port),
            launcher=launcher,
            probe=probe,
            report=reports.append,
            probe_every_s=0.01,
        )
        try:
            await supervisor.get_ready()
            first = supervisor.pid
            frozen.add(first)
            await until(lambda: supervisor.pid not in (None, first) and supervisor.ready.is_set())
        finally:
            supervisor.kill()
            await supervisor.stop(DEADLINE_S)
            launcher.close()
    assert reports[1:3] == [
        "replica-0: did not answer 15 probes in a row; killed",
        "replica-0: ended by SIGKILL; restarts in 0.25 s",
    ]


async def test_a_process_that_misses_single_probes_is_not_killed(folder: StateFolder) -> None:
    reports: list[str] = []
    launcher = Launcher(folder)
    port = ports.free_port("127.0.0.1")
    answers = itertools.cycle((200, None))
    probes = 0
    enough = asyncio.Event()

    async def probe(url: str) -> int | None:
        nonlocal probes
        probes += 1
        if probes > 100:
            enough.set()
        return next(answers)

    supervisor = ProcessSupervisor(
        "replica-0",
        lambda: simulator(port),
        launcher=launcher,
        probe=probe,
        report=reports.append,
        probe_every_s=0.001,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
        assert supervisor.restarts == 0
        assert reports == [f"replica-0: started (process {supervisor.pid})"]
    finally:
        supervisor.kill()
        await supervisor.stop(DEADLINE_S)
        launcher.close()


async def test_a_stopped_process_does_not_restart(folder: StateFolder) -> None:
    async with supervised(folder) as (supervisor, _, _):
        await supervisor.get_ready()
        pid = supervisor.pid
        assert pid is not None
        await supervisor.stop(DEADLINE_S)
        assert not psutil.pid_exists(pid)
        assert supervisor.pid is None
        record = folder.read()
        assert record is not None
        assert record.processes == ()


async def test_closing_the_pipe_ends_the_process(folder: StateFolder) -> None:
    """When `evenkeel up` is killed, the kernel closes its end of the pipe."""
    launcher = Launcher(folder)
    port = ports.free_port("127.0.0.1")
    child = await launcher.launch(simulator(port))
    async with Probes.open() as probes, asyncio.timeout(DEADLINE_S):
        while await probes.status(f"http://127.0.0.1:{port}/ready") != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        launcher.close()
        assert await child.process.wait() == 0, "it drained, as on SIGTERM"


async def test_only_a_process_that_matches_its_record_is_a_leftover(folder: StateFolder) -> None:
    reading, writing = os.pipe()
    module = "evenkeel_cli.up.child"
    process = subprocess.Popen(  # noqa: ASYNC220 - without the launcher, which is not under test
        [
            sys.executable,
            "-m",
            module,
            str(reading),
            "run-1",
            "evenkeel_simulator.server",
            "--model=m",
        ]
        + [f"--port={ports.free_port('127.0.0.1')}"],
        pass_fds=(reading,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        began_s = started_s(process.pid)
        assert began_s is not None
        recorded = ProcessRecord("replica-0", process.pid, began_s)
        folder.write(FleetRecord("run-1", (recorded,)))
        record = folder.read()
        assert record is not None
        await until(lambda: leftovers(record))  # a process has no command line for its first moment
        found = leftovers(record)
        assert [named.name for named, _ in found] == ["replica-0"]
        # The same process id, but of another run, another start time, or another program.
        assert leftovers(FleetRecord("run-2", (recorded,))) == []
        assert (
            leftovers(FleetRecord("run-1", (ProcessRecord("r", process.pid, began_s - 60),))) == []
        )
        me = ProcessRecord("me", os.getpid(), started_s(os.getpid()) or 0.0)
        assert leftovers(FleetRecord("run-1", (me,))) == []
        end((running for _, running in found), DEADLINE_S)
        assert process.wait(DEADLINE_S) is not None
        assert leftovers(record) == []
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)


def test_only_one_run_can_use_a_folder(tmp_path: Path) -> None:
    first = StateFolder.open(tmp_path, "ns.service")
    with pytest.raises(FleetError, match=r"another `evenkeel up` uses .*--state-dir"):
        StateFolder.open(tmp_path, "ns.service")
    first.close()
    StateFolder.open(tmp_path, "ns.service").close()


@pytest.mark.parametrize("data", [b"", b"{", b'{"run": 3}', b"\xff"])
def test_a_damaged_record_is_ignored(folder: StateFolder, data: bytes) -> None:
    (folder.path / "state.json").write_bytes(data)
    assert folder.read() is None


def test_a_port_in_use_is_refused_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(FleetError) as caught:
            ports.claim(ListenConfig(traffic_port=port, probe_port=0, admin_port=0))
    message = str(caught.value)
    assert f"port {port} on 127.0.0.1 is taken by" in message
    assert f"(process {os.getpid()})" in message
    assert "--port" in message


def test_port_zero_becomes_three_different_free_ports() -> None:
    listen = ports.claim(ListenConfig(traffic_port=0, probe_port=0, admin_port=0))
    assert len({listen.traffic_port, listen.probe_port, listen.admin_port}) == 3


def test_a_port_that_was_chosen_is_not_chosen_again() -> None:
    """Its process may not listen yet."""
    state = random.getstate()
    first = ports.free_port("127.0.0.1")
    random.setstate(state)  # the same candidates
    assert ports.free_port("127.0.0.1") != first


async def test_a_change_is_noticed_once_the_file_stays_the_same(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"one")
    seen = changes(file, b"one")
    async with asyncio.timeout(DEADLINE_S):
        waiting = asyncio.create_task(anext(seen))
        file.unlink()  # some editors do this
        new = tmp_path / "new"
        new.write_bytes(b"two")
        new.rename(file)
        assert await waiting == b"two"
        waiting = asyncio.create_task(anext(seen))
        file.write_bytes(b"three")
        assert await waiting == b"three"
        waiting = asyncio.create_task(anext(seen))
        file.unlink()  # and no new file
        assert await waiting == "No such file or directory"
        waiting = asyncio.create_task(anext(seen))
        file.write_bytes(b"three")
        assert await waiting == b"three"
    await seen.aclose()


async def test_a_long_log_is_moved_and_starts_empty(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "MAX_LOG_BYTES", 4096)
    log, old = folder.log_of("replica-0"), folder.old_log_of("replica-0")
    old.write_text("of an earlier run")
    async with supervised(folder) as (supervisor, launcher, _):
        await supervisor.get_ready()
        assert not old.exists()
        text = log.read_text()
        with log.open("ab") as more:
            more.write(b"x" * 5000)
        await until(lambda: old.exists() and log.stat().st_size == 0)
        assert old.read_text() == text + "x" * 5000
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGTERM)
        await until(lambda: "draining" in launcher.tail("replica-0"))  # it still writes there
