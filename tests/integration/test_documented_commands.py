"""The commands of the tutorials and of how-to pages for a laptop, run as they are printed, with free ports."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import Block, blocks, user_pages
from tests.support.plain_words import ROOT

DEADLINE_S: Final = 60.0
EVENKEEL: Final = [sys.executable, "-c", "from evenkeel_cli.main import main; main()"]
PAGES: Final = [
    page for page in user_pages() if any(block.note == "test: run" for block in blocks(page))
]

pytestmark = pytest.mark.usefixtures("source_path")


def file_of(page: Path) -> str:
    """The file of the fleet: named by the page's command, or by a comment on a page without one."""
    for block in blocks(page):
        if block.note == "test: up":
            return (
                "examples/quickstart.yaml"
                if block.text == "make up\n"
                else shlex.split(block.text)[2]
            )
    found = re.search(r"<!-- test: up (\S+) -->", page.read_text())
    assert found is not None, f"{page} names no fleet"
    return found[1]


class Fleet:
    """`evenkeel up` with a copy of the examples."""

    def __init__(self, folder: Path, file: str) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples", folder / "examples")
        self._log = folder / "up.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*EVENKEEL, "up", file, "--port=0"],
                cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until_printed(self, text: str, times: int = 1) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while self.output.count(text) < times:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.05)

    def address(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        assert found is not None, self.output
        return found[1]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Fleet]]:
    started: list[Fleet] = []

    def begin(file: str) -> Fleet:
        started.append(Fleet(tmp_path, file))
        started[-1].until_printed("Try it:")
        return started[-1]

    yield begin
    for fleet in started:
        fleet.stop()


def run(block: Block, fleet: Fleet) -> str:
    """Run a block with the fleet's addresses, and return what it prints."""
    text = block.text.replace("http://127.0.0.1:8080", fleet.address(r"router  (http://\S+)/v1"))
    if block.kind == "python":
        command = [sys.executable, "-c", text]
    else:
        text = text.replace(".venv/bin/evenkeel", shlex.join(EVENKEEL))
        command = ["bash", "-euo", "pipefail", "-c", text]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=fleet.folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{block.path}:{block.line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, start: Callable[[str], Fleet]) -> None:
    fleet, edits = start(file_of(page)), 0
    for block in blocks(page):
        if block.note != "test: run":
            continue
        said = run(block, fleet)
        if "curl --no-buffer" in block.text:
            assert "data: [DONE]" in said
        if "evenkeel top" in block.text:
            assert re.search(
                r"^(Fair|Not judged(?: yet)?|Unfair|Held up|Nothing to judge): ", said, re.MULTILINE
            )
        if "sed -i" in block.text:
            edits += 1
            fleet.until_printed(" applied", edits)
