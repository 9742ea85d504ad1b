"""`evenkeel status` beside a running fleet, one that changes, and one that was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from evenkeel_cli import main
from evenkeel_cli.exitcode import ExitCode
from typer.testing import CliRunner, Result

from tests.integration.test_up_command import Up

pytestmark = pytest.mark.usefixtures("source_path")


def status(folder: Path, *options: str) -> Result:
    arguments = ["status", f"--state-dir={folder / '.evenkeel'}", *options]
    return CliRunner().invoke(main.build(arguments), arguments, env={"COLUMNS": "200"})


def read(folder: Path) -> dict[str, Any]:
    (fleet,) = json.loads(status(folder, "--json").stdout)["fleets"]
    return dict(fleet)


def test_status_of_a_fleet_from_its_start_to_its_end(tmp_path: Path) -> None:
    up = Up(tmp_path)
    try:
        up.until_ready()
        result = status(tmp_path)
        assert result.exit_code == ExitCode.OK, result.output
        assert "default/sample  m  3 of 3 processes are ready" in result.stdout
        assert up.url in result.stdout
        assert "Nothing to judge: no request came." in result.stdout
        assert read(tmp_path)["admin_url"] == up.admin_url
        pids = {one["name"]: one["pid"] for one in read(tmp_path)["processes"]}
        assert pids == up.pids()

        os.kill(pids["replica-0"], signal.SIGSTOP)  # the router finds out after some probes
        up.until(lambda: not read(tmp_path)["ready"])
        assert status(tmp_path).exit_code == ExitCode.FAILED
        os.kill(pids["replica-0"], signal.SIGKILL)
        up.until(lambda: read(tmp_path)["ready"])
        assert {one["name"]: one["pid"] for one in read(tmp_path)["processes"]} != pids

        up.process.kill()
        up.process.wait()
        assert read(tmp_path)["ready"] is False
    finally:
        up.process.kill()
        up.process.wait()
