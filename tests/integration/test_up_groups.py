"""Programs that start other processes, as an engine does: their start is reported, and all end together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from evenkeel_cli.up import ports
from evenkeel_cli.up import process_supervisor as supervisor_module
from evenkeel_cli.up.launcher import Launcher, Program
from evenkeel_cli.up.probes import Probes
from evenkeel_cli.up.process_supervisor import ProcessSupervisor
from evenkeel_cli.up.state import StateFolder

DEADLINE_S = 60.0

pytestmark = pytest.mark.usefixtures("source_path")

ENGINE = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        ready = Path(os.environ["READY"]).exists()
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(str(scheduler.pid).encode())

    def log_message(self, *_):
        pass

print("loading weights", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@asynccontextmanager
async def engine(tmp_path: Path) -> AsyncIterator[tuple[ProcessSupervisor, list[str], Path, str]]:
    """A program with a child process. It is ready once a file exists."""
    (tmp_path / "engine_with_a_child.py").write_text(ENGINE)
    ready = tmp_path / "ready"
    port = ports.free_port("127.0.0.1")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    program = Program(
        name="replica-0",
        module="engine_with_a_child",
        arguments=(str(port),),
        environment={"PYTHONPATH": path, "READY": str(ready)},
        probe_url=f"http://127.0.0.1:{port}/ready",
    )
    folder = StateFolder.open(tmp_path, "ns.service")
    launcher = Launcher(folder)
    reports: list[str] = []
    async with Probes.open() as probes:
        supervisor = ProcessSupervisor(
            "replica-0",
            lambda: program,
            launcher=launcher,
            probe=probes.status,
            report=reports.append,
        )
        try:
            yield supervisor, reports, ready, program.probe_url
        finally:
            supervisor.kill()
            await supervisor.stop(DEADLINE_S)
            launcher.close()
            folder.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of other processes."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def child_of(url: str) -> psutil.Process:
    async with httpx.AsyncClient(trust_env=False) as http:
        return psutil.Process(int((await http.get(url)).text))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_the_children_of_a_program_end_with_it(tmp_path: Path) -> None:
    async with engine(tmp_path) as (supervisor, _, ready, url):
        ready.touch()
        await supervisor.get_ready()
        first, child = supervisor.pid, await child_of(url)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: is_gone(child))
        await until(lambda: supervisor.pid not in (None, first) and supervisor.ready.is_set())
        child = await child_of(url)
        supervisor.kill()
        await supervisor.stop(DEADLINE_S)
        await until(lambda: is_gone(child))


async def test_a_slow_start_is_reported_with_the_last_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_REPORT_EVERY_S", 0.2)
    async with engine(tmp_path) as (supervisor, reports, ready, _):
        ending = "; its log: loading weights"
        await until(lambda: any(line.endswith(ending) for line in reports))
        assert reports[0].startswith("replica-0: started (process ")
        assert all(line.startswith("replica-0: starting for ") for line in reports[1:])
        ready.touch()
        await supervisor.get_ready()
