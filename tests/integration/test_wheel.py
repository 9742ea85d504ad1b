"""The wheel in a bare environment, as a user has it after `pip install`. It needs the package index."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from release.names import ROOT, VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DEADLINE_S = 120.0


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Without the tree on the path, and from another folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps",
               f"--wheel-dir={folder}", ROOT, folder=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def environment(folder: Path, *requirements: str) -> Path:
    """The `bin` of a new virtual environment with these packages, at the locked versions."""
    run(sys.executable, "-m", "venv", folder, folder=folder.parent)
    done = run(folder / "bin" / "python", "-m", "pip", "install", "--quiet",
               f"--constraint={ROOT / 'constraints.txt'}", *requirements, folder=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("bare"), f"{wheel}[cli]")


@pytest.fixture
def up(bare: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`evenkeel up` without a file, in an empty folder."""
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [bare / "evenkeel", "up", "--port=0"],
            cwd=tmp_path, stdout=log, stderr=log,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_wheel_has_no_tests_and_no_tools_of_developers(wheel: Path, bare: Path) -> None:
    assert wheel.name == f"evenkeel_llm-{VERSION}-py3-none-any.whl"
    listed = run(bare / "python", "-m", "pip", "list", "--format=json", folder=wheel.parent)
    names = {one["name"].lower() for one in json.loads(listed.stdout)}
    assert {"evenkeel-llm", "aiohttp", "typer"} <= names
    assert not names & {"pytest", "mypy", "ruff", "kopf", "kubernetes", "openai", "anthropic"}


def test_without_the_extra_the_program_names_it(wheel: Path, tmp_path: Path) -> None:
    folder = environment(tmp_path / "small", str(wheel))
    done = run(folder / "evenkeel", "--version", folder=tmp_path)
    assert done.returncode == 1
    assert "pip install 'evenkeel-llm[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_runs_a_fleet(bare: Path, up: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert run(bare / "evenkeel", "--version", folder=tmp_path).stdout == f"evenkeel {VERSION}\n"
    log = tmp_path / "log"
    deadline_s = time.monotonic() + DEADLINE_S
    while "Try it:" not in log.read_text():
        assert up.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
    assert (tmp_path / "quickstart.yaml").read_text() == (
        ROOT / "examples" / "quickstart.yaml"
    ).read_text()
    command = log.read_text().split("Try it:")[1]
    url = re.search(r"http://\S+/chat/completions", command)
    key = re.search(r"Bearer ([\w-]+)", command)
    assert url is not None
    assert key is not None
    body = {"model": "llama-3.1-8b", "max_tokens": 8, "stream": True,
            "messages": [{"role": "user", "content": "Ahoy"}]}  # fmt: skip
    with httpx.stream(
        "POST", url[0], json=body, headers={"Authorization": f"Bearer {key[1]}"}, timeout=30
    ) as answer:
        assert answer.status_code == 200
        assert list(answer.iter_lines())[-2] == "data: [DONE]"
    status = run(bare / "evenkeel", "status", "--json", folder=tmp_path)
    assert status.returncode == 0, status.stdout + log.read_text()
    (fleet,) = json.loads(status.stdout)["fleets"]
    assert fleet["ready"]
    assert len(fleet["processes"]) == 4
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=60) == 0, log.read_text()
    assert run(bare / "evenkeel", "status", folder=tmp_path).returncode == 1


def test_workloads_are_in_the_wheel(bare: Path, tmp_path: Path) -> None:
    done = run(bare / "evenkeel", "simulate", "--workload=none", folder=tmp_path)
    assert done.returncode == 2
    assert "tot-s1" in done.stderr
    assert shutil.which("evenkeel", path=str(bare)) is not None
